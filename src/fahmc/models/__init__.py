"""Ready-made models. Rows are ``{"x": [row, feature], "y": [row]}``, more in `fahmc.models.rows`; each can `predict`.

A family of your own is a function with the decorator `family`; `generalized_linear` does most of it where the
likelihood sees coefficients through xβ; `from_numpyro` takes a model that is written in NumPyro.
"""

from fahmc.models.counts import binomial_regression, negative_binomial_regression
from fahmc.models.family import family
from fahmc.models.gamma import gamma_regression
from fahmc.models.generalized_linear import generalized_linear
from fahmc.models.mlp import mlp
from fahmc.models.numpyro_model import from_numpyro
from fahmc.models.ordered import ordered_regression
from fahmc.models.regressions import linear_regression, logistic_regression, poisson_regression, softmax_regression
from fahmc.models.rows import check_counts
from fahmc.models.student_t import student_t_regression
from fahmc.models.survival import exponential_survival, piecewise_exponential, weibull_survival

__all__ = [
    "binomial_regression",
    "check_counts",
    "exponential_survival",
    "family",
    "from_numpyro",
    "gamma_regression",
    "generalized_linear",
    "linear_regression",
    "logistic_regression",
    "mlp",
    "negative_binomial_regression",
    "ordered_regression",
    "piecewise_exponential",
    "poisson_regression",
    "softmax_regression",
    "student_t_regression",
    "weibull_survival",
]
