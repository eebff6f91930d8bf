import os
import shutil
import tempfile

import jax
import numpy as np
import pytest

import fahmc
from gaussian_study import Study

# Once for the whole suite: identities are checked to double precision, and a key used twice is an error.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_debug_key_reuse", True)


def pytest_configure(config):
    """Let all workers share compiled programs: many tests run the same sampler on the same shapes."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        config.fahmc_cache = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="fahmc-tests-")
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_unconfigure(config):
    if folder := getattr(config, "fahmc_cache", None):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def unlike_gaussians() -> Study:
    """Three clients that disagree in mean, curvature and weight."""
    generator = np.random.default_rng(7)
    factors = generator.normal(size=(3, 2, 2))
    precisions = np.einsum("cij,ckj->cik", factors, factors) + 0.5 * np.eye(2)
    return Study(means=generator.normal(scale=2, size=(3, 2)), precisions=precisions, weights=np.array([0.5, 0.2, 0.3]))


@pytest.fixture(scope="session")
def logistic_study() -> fahmc.Federation:
    """Three clients of unequal size with their own covariate shift, and a common logistic law."""
    generator = np.random.default_rng(11)
    clients = {}
    for name, size, shift in [("north", 90, 0.0), ("south", 35, 0.4), ("east", 60, -0.3)]:
        x = generator.normal(size=(size, 3)) + shift
        chance = 1 / (1 + np.exp(-x @ np.array([1.0, -0.8, 0.4])))
        clients[name] = {"x": x, "y": (generator.random(size) < chance).astype(float)}
    return fahmc.Federation.from_clients(clients)
