import gc
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fahmc
from fahmc.density import subset
from fahmc.runs.history import History
from gaussian_study import Study

# Once for the whole suite: identities are checked to double precision, a key used twice is an error, and so are shapes
# and dtypes that would be adapted silently.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
_XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
# Files of half a minute and more, besides those with real federations.
_LONG = {
    f"tests/{file}.py"
    for file in (
        "adaptive/test_auto", "bench/test_bench", "bench/test_rounds", "cli/test_app", "contract/test_contract",
        "engines/test_row_space", "experiments/test_figures", "test_numpyro_model",
    )
}  # fmt: skip
_HANDLERS = tuple(logging.getLogger("fahmc").handlers)


def pytest_configure(config):
    """Let all workers, and the processes they start, share compiled programs: many run the same ones.

    The small ones too: a process compiles a hundred of them before its first round.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        config.fahmc_cache = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="fahmc-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    # Compiling is most of what the suite does: none of LLVM's optimisations and XLA's older emitters make it shorter.
    os.environ.setdefault("XLA_FLAGS", _XLA_FLAGS)
    # Traces are many small objects; to look through them every few hundred is a tenth of the work.
    gc.set_threshold(100_000, 20, 20)
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    """Run the tests of a file in one worker, unless they name another group: many of them share compiled programs.

    Groups that take long begin first, so that no worker is left alone with one at the end.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    items.sort(key=lambda item: not (item.get_closest_marker("federation") or item.location[0] in _LONG))


def pytest_unconfigure(config):
    if folder := getattr(config, "fahmc_cache", None):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def short_shuffles():
    """Minibatches from shuffles of one round instead of twelve, for identities, which hold for shuffles of any length.

    Of a program with minibatches, shuffles are most of what there is to trace and to compile.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subset, "_NUM_ROUNDS", 1)
        yield


@pytest.fixture
def after_each_block(monkeypatch):
    """Let a test count something after each block of a run: blocks share a program, which two runs do not."""
    append, seen = History.append, []

    def call(count: Callable[[], Any]) -> list:
        def count_and_append(self, block, seconds):
            jax.effects_barrier()
            seen.append(count())
            append(self, block, seconds)

        monkeypatch.setattr(History, "append", count_and_append)
        return seen

    return call


@pytest.fixture
def compilations():
    """How many programs XLA has compiled since."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


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


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The documentation as `make docs` makes it; a page that is left out, a link that leads nowhere fails it."""
    root, folder = Path(__file__).parents[1], tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(autouse=True)
def _library_logging():
    """Let every test find the library's logger as it was imported: commands, also in fixtures, set it up for theirs."""
    logger = logging.getLogger("fahmc")
    logger.handlers, logger.propagate = list(_HANDLERS), True
    logger.setLevel(logging.NOTSET)  # not by assignment: loggers remember what they let through
    logging.disable(logging.NOTSET)
    yield
    logging.disable(logging.NOTSET)
