"""Rows drawn from a known law, at clients that differ in their covariates, their outcomes or their sizes."""

from __future__ import annotations

import numpy as np

Rows = dict[str, np.ndarray]


def logistic(dim: int, seed: int, *, num_clients: int = 20, client_rows: int = 50) -> list[Rows]:
    """Draw x ~ N(m_c, diag s_c²) / √d, with m_c and log s_c of the client's own; θ ~ N(0, 4 I)."""
    rng = np.random.default_rng(seed)
    theta = 2 * rng.normal(size=dim)

    def client() -> Rows:
        mean, scale = rng.normal(size=dim), np.exp(0.5 * rng.normal(size=dim))
        x = (mean + scale * rng.normal(size=(client_rows, dim))) / dim**0.5
        return {"x": x, "y": _coin(rng, x @ theta)}

    return [client() for _ in range(num_clients)]


def student_t(seed: int, *, num_clients: int = 6, dim: int = 9, degrees: float = 4.0) -> list[Rows]:
    """Draw y = xθ + 1 + 0.7 ε, ε ~ t_ν, at clients of 15, 25, 35, … rows around covariates of their own."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=dim)

    def client(num_rows: int) -> Rows:
        x = rng.normal(size=dim) + rng.normal(size=(num_rows, dim))
        return {"x": x, "y": x @ theta + 1 + 0.7 * rng.standard_t(degrees, size=num_rows)}

    return [client(15 + 10 * index) for index in range(num_clients)]


def linear(seed: int, *, num_clients: int = 5, num_rows: int = 200) -> list[Rows]:
    """Draw columns in units of their own (years, cm, …), not centred; cut clients from the sorted outcomes."""
    rng = np.random.default_rng(seed)
    means = np.array([55.0, 170.0, 25.0, 6000.0, 0.9, 0.02])
    sds = np.array([12.0, 9.0, 4.0, 1800.0, 0.25, 0.01])
    z = rng.normal(size=(num_rows, len(means)))
    z[:, 2] = 0.8 * z[:, 1] + 0.6 * z[:, 2]
    y = 120 + z @ (6 * rng.normal(size=len(means))) + 10 * rng.normal(size=num_rows)
    return _cut(np.argsort(y), num_clients, {"x": means + sds * z, "y": y})


def nearly_separable(seed: int, *, num_clients: int = 4, num_rows: int = 100, dim: int = 7) -> list[Rows]:
    """Divide outcomes by a hyperplane, save the two rows next to it; cut clients along a covariate."""
    rng = np.random.default_rng(seed)
    x, normal = rng.normal(size=(num_rows, dim)), rng.normal(size=dim)
    y = (x @ normal > 0).astype(float)
    nearest = np.argsort(np.abs(x @ normal))[:2]
    y[nearest] = 1 - y[nearest]
    return _cut(np.argsort(x[:, 0]), num_clients, {"x": x, "y": y})


def sites(seed: int, *, sizes: tuple[int, ...] = (40, 80, 120, 160), dim: int = 10) -> list[Rows]:
    """Draw logistic rows with site intercepts α_c ~ N(−0.5, 0.8²) and covariates around means of the site."""
    rng = np.random.default_rng(seed)
    theta = 0.7 * rng.normal(size=dim)

    def client(index: int, num_rows: int) -> Rows:
        alpha = -0.5 + 0.8 * rng.normal()
        x = 0.5 * rng.normal(size=dim) + rng.normal(size=(num_rows, dim))
        return {"x": x, "y": _coin(rng, x @ theta + alpha), "site": np.full(num_rows, index, dtype=np.int32)}

    return [client(index, num_rows) for index, num_rows in enumerate(sizes)]


def poisson(seed: int, *, num_clients: int = 5, client_rows: int = 60, dim: int = 19) -> list[Rows]:
    """Draw counts whose exposures range from 0.1 to 10,000, the clients' being decades apart."""
    rng = np.random.default_rng(seed)
    theta = 0.4 * rng.normal(size=dim)

    def client(decade: int) -> Rows:
        x = 0.3 * rng.normal(size=dim) + rng.normal(size=(client_rows, dim))
        offset = np.log(10.0) * rng.uniform(decade, decade + 1, size=client_rows)
        return {"x": x, "y": rng.poisson(np.exp(x @ theta - 1 + offset)).astype(float), "offset": offset}

    return [client(index - 1) for index in range(num_clients)]


def softmax(
    seed: int, *, num_clients: int = 5, client_rows: int = 80, dim: int = 6, num_classes: int = 5
) -> list[Rows]:
    """Draw five classes, around covariates of the client's own, so that some have next to none of a class."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(dim, num_classes))

    def client() -> Rows:
        x = rng.normal(size=dim) + rng.normal(size=(client_rows, dim))
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        return {"x": x, "y": np.argmax(x @ theta + rng.gumbel(size=(client_rows, num_classes)), axis=1)}

    return [client() for _ in range(num_clients)]


def _coin(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return (rng.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(float)


def _cut(order: np.ndarray, num_clients: int, rows: Rows) -> list[Rows]:
    return [{name: values[part] for name, values in rows.items()} for part in np.array_split(order, num_clients)]
