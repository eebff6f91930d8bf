"""Bayesian federated learning: one posterior when the rows sit with several owners and may not move."""

from fahmc import data, engines, errors, models, report, theory
from fahmc.adaptive.auto import Auto
from fahmc.adaptive.surrogate_posterior import SurrogatePosterior
from fahmc.adaptive.surrogate_transition import SurrogateTransition
from fahmc.adaptive.tuned import Tuned
from fahmc.data import partition
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.density.gradient import FullGradient, GaussianNoise, Gradient, Minibatch
from fahmc.density.model import Linear, Model
from fahmc.draws import Draws
from fahmc.dynamics import schedules
from fahmc.dynamics.debiased import DebiasedFAHMC
from fahmc.dynamics.fa_hmc import FAHMC, FALD
from fahmc.dynamics.hmc import HMC
from fahmc.dynamics.sampler import Exchange, Field, Leader, Outcome, Phase, Sampler
from fahmc.dynamics.split_hmc import SplitHMC
from fahmc.registry import register
from fahmc.report.convergence import EssAbove, RHatBelow
from fahmc.sample import sample
from fahmc.tune import tune

__all__ = [
    "FAHMC",
    "FALD",
    "HMC",
    "Auto",
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
    "RHatBelow",
    "Sampler",
    "Sites",
    "SplitHMC",
    "SurrogatePosterior",
    "SurrogateTransition",
    "Tuned",
    "data",
    "engines",
    "errors",
    "models",
    "partition",
    "register",
    "report",
    "sample",
    "schedules",
    "theory",
    "tune",
]
