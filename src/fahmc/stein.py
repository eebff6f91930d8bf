"""What gradients tell of draws: the posterior's own means and standard deviations.

A sampler without accept/reject step draws from some q near the posterior p ∝ exp(−f). With g = ∇f, for any vector field
u that does not grow too fast

    E_p[u·g − ∇·u] = 0                                                                       (Stein's identity)

so whatever this average is over draws, it is their error. If h = E_p[h] + (u·g − ∇·u) + rest, the average of
h − (u·g − ∇·u) over draws of q estimates E_p[h]: bias and Monte Carlo error of all but the rest are gone. For h = θ_i
and h = (θ_i − m_i)², u is fitted by regression of h on what an affine field u = a + A z gives,

    g_j    and    z_j g_k − δ_jk,        z = F⁻¹(θ − m),    F F′ = Cov(θ) of the draws

(zero-variance Monte Carlo; Mira, Solgi and Imparato 2013). On a Gaussian posterior N(μ, Σ) there g = Σ⁻¹(θ − μ), so

    θ = μ + Σ g        (θ_i − μ_i)² = Σ_ii + Σ_k Σ_ik ((θ_i − μ_i) g_k − δ_ik)

and no rest remains, whatever q is: μ and Σ are found exactly. The products z_j g_k matter for means too: where the
scale of a noise is unknown, g alone misses a shift that comes with too wide a spread. There are d² of them, too many in
high dimensions; there θ is regressed on g alone, θ − μ ≈ s = B g, and (θ_i − m_i)² on s_i and (θ_i − m_i) s_i − B_ii.

Other functions h of the draws, such as parameters that the sampler moved on another scale, take the same terms; in high
dimensions g alone.

The coefficients that correct a chain are fitted to the other chains, so that a fit to noise shows as what it is: noise
in the rest, and in the standard error of its average (by `arviz.mcse`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# Draws for every coefficient of a regression, below which it follows noise.
_DRAWS_PER_TERM = 10
# Regressions on more terms than this take minutes.
_MOST_TERMS = 2000
# As many chains, or parts of chains, take turns in being left out.
_LEAST_FOLDS = 4

Numbers = Float[np.ndarray, " dim"]


class Moments(NamedTuple):
    """The posterior's moments as draws and gradients tell them; NaN where they do not."""

    mean: Numbers
    mean_error: Numbers
    """Monte Carlo standard error."""
    sd: Numbers
    sd_error: Numbers
    mean_rest: Numbers
    """Share of the variance of θ_i, or h, that is left."""
    sd_rest: Numbers
    """Likewise of (θ_i − m_i)²."""
    width: float
    """(E[(θ − m)·∇f] / d)^½: 1 for draws of the posterior, 2 for draws that are twice as wide in all directions."""


def posterior_moments(
    positions: Float[np.ndarray, "chain draw dim"],
    gradients: Float[np.ndarray, "chain draw dim"],
    values: Float[np.ndarray, "chain draw value"] | None = None,
) -> Moments:
    """Estimate the posterior's moments from draws near it and ∇f at each of them.

    They are those of ``values``, functions of the draws; by default of the draws themselves.
    """
    positions, gradients = (np.asarray(array, np.float64) for array in (positions, gradients))
    num_draws = positions.shape[0] * positions.shape[1]
    center, spread = positions.mean(axis=(0, 1)), positions.std(axis=(0, 1))
    # A constant has neither shift nor spread; what is not finite has no moments.
    moves = (spread > 0) & np.isfinite(spread) & np.isfinite(gradients).all(axis=(0, 1))
    count = int(moves.sum())
    steps, slopes = ((positions - center)[..., moves] / spread[moves], gradients[..., moves] * spread[moves])
    width = float(np.sqrt(np.maximum(np.mean(np.sum(steps * slopes, axis=-1)), 0) / max(1, count)))
    told, targets = moves, steps
    if has_own := values is not None:
        values = np.asarray(values, np.float64)
        center, spread = values.mean(axis=(0, 1)), values.std(axis=(0, 1))
        told = (spread > 0) & np.isfinite(spread)
        targets = (values - center)[..., told] / spread[told]
    found = np.full((6, len(told)), np.nan)
    if count and told.any() and max(2 * count, _LEAST_FOLDS) * _DRAWS_PER_TERM <= num_draws:
        is_full = count + count**2 <= min(_MOST_TERMS, num_draws / _DRAWS_PER_TERM)
        if is_full:
            firsts, squares = _full_rests(targets, steps, slopes)
        elif has_own:
            firsts, squares = _rest(targets, slopes), _rest(targets**2, slopes)
        else:
            firsts, squares = _linear_rests(steps, slopes)
        mean = firsts.mean(axis=(0, 1))
        variance = squares.mean(axis=(0, 1)) - mean**2
        # Draws that are much too wide can be told to be so, but not by how much: the regression then leads too far.
        sd = np.sqrt(np.where(variance > 0, variance, np.nan))
        # By the derivative of the root of E[square] − E[first]².
        sd_error = mcse(squares - 2 * mean * firsts) / (2 * sd)
        moments = [mean, mcse(firsts), sd, sd_error] * spread[told]
        moments[0] += center[told]
        shares = [firsts.var(axis=(0, 1)), squares.var(axis=(0, 1)) / (targets**2).var(axis=(0, 1))]
        found[:, told] = [*moments, *shares]
    mean, mean_error, sd, sd_error, mean_rest, sd_rest = found
    return Moments(mean, mean_error, sd, sd_error, mean_rest, sd_rest, width)


def mcse(series: Float[np.ndarray, "chain draw dim"]) -> Numbers:
    """Return the Monte Carlo standard error of every mean."""
    from fahmc._arviz import dataset, diagnose

    return diagnose("mcse", dataset({"x": series}), "mean")["x"]


def _full_rests(targets: np.ndarray, steps: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what is left of h and of its squares after all terms; their means are the posterior's."""
    dim, count = steps.shape[-1], targets.shape[-1]
    values, vectors = np.linalg.eigh(np.cov(steps.reshape(-1, dim), rowvar=False).reshape(dim, dim))
    scales = np.sqrt(np.maximum(values, 1e-12 * values.max()))
    z, g = steps @ vectors / scales, slopes @ vectors * scales
    products = z[..., :, None] * g[..., None, :] - np.eye(dim)
    terms = np.concatenate([g, products.reshape(*g.shape[:-1], -1)], axis=-1)
    rests = _rest(np.concatenate([targets, targets**2], axis=-1), terms)
    return rests[..., :count], rests[..., count:]


def _linear_rests(steps: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the same after few terms."""
    dim = steps.shape[-1]
    flat = slopes.reshape(-1, dim)
    slope = np.linalg.lstsq(flat - flat.mean(axis=0), steps.reshape(-1, dim), rcond=None)[0]
    fits, squares = slopes @ slope, np.empty_like(steps)
    for i in range(dim):
        terms = np.stack([fits[..., i], steps[..., i] * fits[..., i] - slope[i, i]], axis=-1)
        squares[..., i] = _rest(steps[..., i, None] ** 2, terms)[..., 0]
    return _rest(steps, slopes), squares


def _rest(values: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Subtract from every chain's values the regression on terms that fits the other chains."""
    shape, values, terms = values.shape, _folds(values), _folds(terms)
    terms = terms / np.maximum(terms.std(axis=(0, 1)), np.finfo(float).tiny)
    num_folds, length, num_terms = terms.shape
    squares = np.einsum("fnp,fnq->fpq", terms, terms, optimize=True)
    products = np.einsum("fnp,fnr->fpr", terms, values, optimize=True)
    rest = np.empty_like(values)
    for fold in range(num_folds):
        others = np.arange(num_folds) != fold
        count = length * others.sum()
        term_mean, value_mean = (array[others].mean(axis=(0, 1)) for array in (terms, values))
        gram = squares[others].sum(axis=0) / count - np.outer(term_mean, term_mean)
        # Of terms that determine each other, each keeps a part.
        gram[np.diag_indices(num_terms)] += 1e-9 * np.trace(gram) / num_terms
        slope = np.linalg.solve(gram, products[others].sum(axis=0) / count - np.outer(term_mean, value_mean))
        rest[fold] = values[fold] - terms[fold] @ slope
    return rest.reshape(shape)


def _folds(array: np.ndarray) -> np.ndarray:
    """Cut [chain, draw, ...] into enough parts, each of neighbours in one chain."""
    chains, draws = array.shape[:2]
    parts = -(-_LEAST_FOLDS // chains)
    # Where the number of draws cannot be divided so, into single draws at worst.
    parts = next(number for number in range(parts, draws + 1) if draws % number == 0)
    return array.reshape(chains * parts, draws // parts, *array.shape[2:])
