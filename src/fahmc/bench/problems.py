"""The rows and models that are sampled in the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fahmc import models
from fahmc.bench.images import NUM_CLASSES, NUM_PIXELS, training_images
from fahmc.data import partition
from fahmc.data.federation import Federation
from fahmc.density.model import Model
from fahmc.experiments.logistic_rows import logistic_rows

Rows = dict[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A model, who holds which rows, and the name of the model's gradient in `oracle`."""

    kind: str
    model: Model
    clients: dict[str, Rows]
    widths: tuple[int, ...]
    """Features, units of hidden layers, outputs."""
    note: str = ""
    """What a reader of the results should know of the rows."""

    @property
    def federation(self) -> Federation:
        """The clients as fahmc takes them."""
        return Federation.from_clients(self.clients)

    @property
    def num_rows(self) -> int:
        """Rows of all clients."""
        return sum(len(rows["y"]) for rows in self.clients.values())

    @property
    def dimension(self) -> int:
        """Length of a flat position."""
        if self.widths[-1] == 1:  # the regressions with one output have no intercept
            return self.widths[0]
        return sum((width_in + 1) * width_out for width_in, width_out in pairwise(self.widths))

    def stacked(self) -> tuple[np.ndarray, np.ndarray]:
        """Return x [client, row, feature] and y [client, row] of clients of equal size, in single precision."""
        x, y = (np.stack([rows[name] for rows in self.clients.values()]) for name in "xy")
        return x.astype(np.float32), y.astype(np.float32)

    def pooled(self) -> Rows:
        """Return all rows in one place."""
        return {name: np.concatenate([rows[name] for rows in self.clients.values()]) for name in "xy"}

    def cut(self, num_rows: int) -> Problem:
        """Keep the first rows of every client: enough to compare gradients."""
        clients = {name: {key: rows[key][:num_rows] for key in "xy"} for name, rows in self.clients.items()}
        return replace(self, clients=clients)


def figure_one(num_clients: int = 20, client_rows: int = 50, dim: int = 1000) -> Problem:
    """Return the logistic regression of the paper's figure 1: rows on the unit sphere, a standard normal truth."""
    return _logistic(partition.equal(logistic_rows(num_clients * client_rows, dim), num_clients, seed=0))


def small(num_clients: int = 4, num_rows: int = 200, dim: int = 10) -> Problem:
    """Return a regression so small that a round is all overhead."""
    return _logistic(partition.equal(logistic_rows(num_rows, dim), num_clients, seed=0))


def many_clients(num_clients: int, *, is_zipf: bool, num_rows: int = 20_000, dim: int = 20) -> Problem:
    """Deal the same rows out to few or many clients, of equal or of Zipf-distributed sizes."""
    rows = logistic_rows(num_rows, dim)
    if not is_zipf:
        return _logistic(partition.equal(rows, num_clients, seed=0))
    owners = np.repeat(np.arange(num_clients), zipf_sizes(num_rows, num_clients))
    return _logistic(partition.by_column(rows, owners))


def zipf_sizes(num_rows: int, num_clients: int) -> np.ndarray:
    """Return sizes that fall like 1 / rank, each at least 1."""
    shares = 1 / np.arange(1, num_clients + 1)
    sizes = 1 + np.floor((num_rows - num_clients) * shares / shares.sum()).astype(int)
    sizes[0] += num_rows - sizes.sum()
    return sizes


def fashion(kind: str, *, num_clients: int = 10, client_rows: int = 6000, hidden: tuple[int, ...] = ()) -> Problem:
    """Return Fashion-MNIST at equal random clients: softmax regression (``"softmax"``) or a network (``"mlp"``)."""
    images, labels, is_real = training_images(num_clients * client_rows)
    clients = partition.equal({"x": images, "y": labels}, num_clients, seed=0)
    model = models.mlp(NUM_CLASSES, hidden)
    if kind == "softmax":
        model = models.softmax_regression(NUM_CLASSES, intercept_scale=1.0)
    missing = "Fashion-MNIST was not found in $FAHMC_DATA or the cache: random images of the same shapes stand in."
    return Problem(kind, model, clients, (NUM_PIXELS, *hidden, NUM_CLASSES), "" if is_real else missing)


def linear(num_clients: int = 4, client_rows: int = 10, dim: int = 100) -> Problem:
    """Return a linear regression with few rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_clients * client_rows, dim)) / dim**0.5
    rows = {"x": x, "y": x @ rng.normal(size=dim) + rng.normal(size=len(x))}
    model = models.linear_regression(noise_scale=1.0, intercept=False)
    return Problem("linear", model, partition.equal(rows, num_clients, seed=0), (dim, 1))


def _logistic(clients: dict[str, Rows]) -> Problem:
    (dim,) = next(iter(clients.values()))["x"].shape[1:]
    return Problem("logistic", models.logistic_regression(prior_scale=1.0, intercept=False), clients, (dim, 1))
