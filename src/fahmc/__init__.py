"""Bayesian federated learning: one posterior when the rows sit with several owners and may not move."""

from fahmc import data, engines, errors, models, report, theory
from fahmc.data import partition
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.density.gradient import FullGradient, GaussianNoise, Minibatch
from fahmc.density.potential import Linear, Model
from fahmc.draws import Draws
from fahmc.dynamics import schedules
from fahmc.dynamics.debiased import DebiasedFAHMC
from fahmc.dynamics.fa_hmc import FAHMC, FALD
from fahmc.dynamics.hmc import HMC
from fahmc.report.convergence import RHatBelow
from fahmc.sample import sample

__all__ = [
    "FAHMC",
    "FALD",
    "HMC",
    "DebiasedFAHMC",
    "Draws",
    "Federation",
    "FullGradient",
    "GaussianNoise",
    "Linear",
    "Minibatch",
    "Model",
    "RHatBelow",
    "Sites",
    "data",
    "engines",
    "errors",
    "models",
    "partition",
    "report",
    "sample",
    "schedules",
    "theory",
]
