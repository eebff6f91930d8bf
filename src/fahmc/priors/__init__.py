"""What is believed of a model's coefficients before any row is seen, by name: ``prior=fahmc.priors.Horseshoe(3)``.

A prior of your own is a frozen dataclass with ``@fahmc.register("prior")`` that inherits from `Prior`.
"""

from fahmc.priors.by_feature import ByFeature
from fahmc.priors.horseshoe import Horseshoe
from fahmc.priors.normal import Flat, Normal
from fahmc.priors.prior import COEFFICIENTS, Prior
from fahmc.priors.student_t import StudentT

__all__ = ["COEFFICIENTS", "ByFeature", "Flat", "Horseshoe", "Normal", "Prior", "StudentT"]
