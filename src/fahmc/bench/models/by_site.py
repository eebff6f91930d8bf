"""Posteriors with effects of sites, on real tables: the trial's clinics, the trauma hospitals, eight schools."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from fahmc import models
from fahmc.bench.models.cases import Case, Rows, case
from fahmc.bench.rounds import hospitals
from fahmc.data.trial import load_opt_trial

_COMMON, _EFFECTS = ("coefficients", "intercept", "site_sd"), ("site_effect",)
_SCHOOLS = {"A": (28, 15), "B": (8, 10), "C": (-3, 16), "D": (7, 11), "E": (-1, 9), "F": (1, 11), "G": (18, 10),
            "H": (12, 18)}  # fmt: skip


def random_intercepts(x, site, num_sites, prior_scale, y=None) -> None:
    """Model y ~ (1 | site) + x in NumPyro, without a line of fahmc."""
    coefficients = numpyro.sample("coefficients", dist.Normal(0, prior_scale).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 10))
    spread = numpyro.sample("site_sd", dist.HalfNormal(1))
    with numpyro.plate("sites", num_sites):
        z = numpyro.sample("site_z", dist.Normal(0, 1))
    effect: Any = numpyro.deterministic("site_effect", spread * z)
    law: Any = dist.Bernoulli(logits=x @ coefficients + intercept + effect[site])
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", law, obs=y)


def eight_schools(sigma, site, num_sites, y=None) -> None:
    """Model an effect of coaching at every school, known to a standard error (Rubin 1981), non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", num_sites):
        z = numpyro.sample("z", dist.Normal(0, 1))
    theta: Any = numpyro.deterministic("theta", mu + tau * z)
    with numpyro.plate("rows", sigma.shape[0]):
        numpyro.sample("y", dist.Normal(theta[site], sigma), obs=y)


def _pooled_peer(num_sites: int, prior_scale: float):
    def peer(x, y, site):
        random_intercepts(x, site, num_sites, prior_scale, y)

    return peer


def _trial() -> tuple[tuple[str, ...], dict[str, Rows]]:
    study = load_opt_trial()
    return study.feature_names, study.clients


@case
def trial_site_intercept() -> Case:
    """Preterm births at four clinics, each with an intercept of its own."""
    names, clients = _trial()
    model = models.logistic_regression(2.5, site_effects="intercept", feature_names=names)
    return Case(model, clients, _pooled_peer(len(clients), 2.5), (*_COMMON, *_EFFECTS))


@case
def trial_private_site_intercept() -> Case:
    """Preterm births again, the clinics' intercepts integrated out where they belong."""
    names, clients = _trial()
    model = models.logistic_regression(2.5, site_effects="private intercept", feature_names=names)
    return Case(model, clients, _pooled_peer(len(clients), 2.5), _COMMON)


@case
def trial_in_numpyro() -> Case:
    """Preterm births again, by the model that is written in NumPyro."""
    clients = _trial()[1]
    model = models.from_numpyro(
        random_intercepts,
        {name: values[:2] for name, values in next(iter(clients.values())).items()},
        constants={"prior_scale": 2.5},
        sees=["coefficients", "intercept", "site_effect"],
    )
    return Case(model, clients, _pooled_peer(len(clients), 2.5), (*_COMMON, *_EFFECTS))


@case
def trauma_centre_effects() -> Case:
    """Deaths at three hospitals, each with an intercept of its own."""
    clients = hospitals.trauma()
    model = models.logistic_regression(10.0, site_effects="intercept")
    return Case(model, clients, _pooled_peer(len(clients), 10.0), (*_COMMON, *_EFFECTS))


@case
def eight_schools_in_numpyro() -> Case:
    """Eight schools, each of which keeps its one row."""
    clients = {
        name: {"y": np.array([float(y)]), "sigma": np.array([float(sigma)])} for name, (y, sigma) in _SCHOOLS.items()
    }

    def peer(sigma, y, site):
        eight_schools(sigma, site, len(clients), y)

    model = models.from_numpyro(eight_schools, clients["A"], sees=["theta"])
    return Case(model, clients, peer, ("mu", "theta"))
