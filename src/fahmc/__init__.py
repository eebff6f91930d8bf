"""Bayesian federated learning: one posterior when the rows sit with several owners and may not move."""

from fahmc import checks, data, engines, errors, models, priors, privacy, report, theory
from fahmc.adaptive.auto import Auto
from fahmc.adaptive.private_laplace import PrivateLaplace
from fahmc.adaptive.surrogate_posterior import SurrogatePosterior
from fahmc.adaptive.surrogate_transition import SurrogateTransition
from fahmc.adaptive.tuned import Tuned
from fahmc.checks.check import Check
from fahmc.checks.cross_validation import compare_models
from fahmc.data import partition
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.density.gradient import FullGradient, GaussianNoise, Gradient, Minibatch
from fahmc.density.model import Linear, Model
from fahmc.density.supports import (
    correlation_cholesky,
    interval,
    ordered,
    positive,
    positive_ordered,
    simplex,
    unit_interval,
)
from fahmc.draws import Draws
from fahmc.dynamics import schedules
from fahmc.dynamics.debiased import DebiasedFAHMC
from fahmc.dynamics.fa_hmc import FAHMC, FALD
from fahmc.dynamics.hmc import HMC
from fahmc.dynamics.sampler import Exchange, Field, Leader, Outcome, Phase, Sampler
from fahmc.dynamics.split_hmc import SplitHMC
from fahmc.private_laplace import private_laplace
from fahmc.registry import register
from fahmc.report.convergence import EssAbove, RHatBelow
from fahmc.sample import sample
from fahmc.sample_prior import sample_prior
from fahmc.tune import tune

__all__ = [
    "FAHMC",
    "FALD",
    "HMC",
    "Auto",
    "Check",
    "DebiasedFAHMC",
    "Draws",
    "EssAbove",
    "Exchange",
    "Federation",
    "Field",
    "FullGradient",
    "GaussianNoise",
    "Gradient",
    "Leader",
    "Linear",
    "Minibatch",
    "Model",
    "Outcome",
    "Phase",
    "PrivateLaplace",
    "RHatBelow",
    "Sampler",
    "Sites",
    "SplitHMC",
    "SurrogatePosterior",
    "SurrogateTransition",
    "Tuned",
    "checks",
    "compare_models",
    "correlation_cholesky",
    "data",
    "engines",
    "errors",
    "interval",
    "models",
    "ordered",
    "partition",
    "positive",
    "positive_ordered",
    "priors",
    "privacy",
    "private_laplace",
    "register",
    "report",
    "sample",
    "sample_prior",
    "schedules",
    "simplex",
    "theory",
    "tune",
    "unit_interval",
]
