"""Ready-made models. Rows are ``{"x": [row, feature], "y": [row]}``; each model can `predict`.

A family of your own is a function with the decorator `family`; `generalized_linear` does most of it where the
likelihood sees coefficients through xβ.
"""

from fahmc.models.family import family
from fahmc.models.generalized_linear import check_counts, generalized_linear
from fahmc.models.mlp import mlp
from fahmc.models.regressions import linear_regression, logistic_regression, poisson_regression, softmax_regression

__all__ = [
    "check_counts",
    "family",
    "generalized_linear",
    "linear_regression",
    "logistic_regression",
    "mlp",
    "poisson_regression",
    "softmax_regression",
]
