"""From a sampler's settings to its kernel: what an engine runs."""

from __future__ import annotations

import numpy as np

from fahmc.density.gradient import build_gradient
from fahmc.density.potential import Potentials
from fahmc.dynamics import debiased, fa_hmc, hmc
from fahmc.dynamics.debiased import DebiasedFAHMC
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.hmc import HMC
from fahmc.dynamics.mass import build_mass
from fahmc.types import Client, Kernel


def build_kernel(sampler: FAHMC | HMC, potentials: Potentials, client: Client, dtype: np.dtype) -> Kernel:
    """Build a sampler's kernel; ``client`` is the one that a sampler on one machine looks at."""
    mass = build_mass(sampler.inverse_mass_matrix, potentials.template, dtype)
    gradient_fn = build_gradient(sampler.gradient, potentials)
    if isinstance(sampler, DebiasedFAHMC):
        return debiased.build_kernel(sampler, gradient_fn, mass, potentials)
    if isinstance(sampler, FAHMC):
        return fa_hmc.build_kernel(sampler, gradient_fn, mass, potentials.dimension)
    if sampler.metropolis:
        return hmc.build_metropolis_kernel(sampler, mass, potentials, client)
    return fa_hmc.build_kernel(sampler.as_fahmc(), gradient_fn, mass, potentials.dimension)
