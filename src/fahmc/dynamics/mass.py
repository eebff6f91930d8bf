"""The mass matrix Σ, with standard normal momentum.

The joint law is exp(−f(θ) − ½ p′Σ⁻¹p). With F F′ = Σ⁻¹ and the momentum divided by Σ^½ this is

    p ~ N(0, I),     dθ/dt = F p,     dp/dt = −F′ ∇f(θ),

so momenta are drawn standard normal whatever Σ, as Algorithms 2 and 3 do, and Σ_c w_c p_c stays standard normal.
Equation (1) of the paper prints Σ^½ in the second line. Read with p ~ N(0, Σ) that flow is θ″ = −∇f: the mass would
have no effect. The form above is the one whose flow depends on Σ and leaves the joint law invariant.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from fahmc import tree
from fahmc.errors import SettingsError
from fahmc.types import Position, Vector


class Mass(NamedTuple):
    """A factor F of Σ⁻¹: nothing for the identity, a vector for a diagonal, a lower triangle for a dense Σ⁻¹."""

    factor: Any = None

    def speed(self, dimension: int) -> Any:
        """Return (E|F p|²)^½ = (tr Σ⁻¹)^½, how far a momentum carries a position in unit time."""
        return dimension**0.5 if self.factor is None else jnp.linalg.norm(self.factor)

    def velocity(self, momentum: Vector) -> Vector:
        """Return F p."""
        if self.factor is None:
            return momentum
        return self.factor * momentum if self.factor.ndim == 1 else self.factor @ momentum

    def force(self, gradient: Vector) -> Vector:
        """Return F′ g."""
        if self.factor is None:
            return gradient
        return self.factor * gradient if self.factor.ndim == 1 else self.factor.T @ gradient

    def whitened(self, displacement: Vector) -> Vector:
        """Return F⁻¹ x."""
        if self.factor is None:
            return displacement
        if self.factor.ndim == 1:
            return displacement / self.factor
        return solve_triangular(self.factor, displacement, lower=True)


def mass_factor(inverse_mass_matrix: Any, template: Position, dtype: np.dtype) -> np.ndarray | None:
    """Return a factor of Σ⁻¹, given as nothing, a vector, a matrix, or a pytree like the position (its diagonal).

    Σ⁻¹ plays the role of the posterior covariance; vectors and matrices follow the order of the flattened position,
    whose structure and shapes ``template`` has.
    """
    if inverse_mass_matrix is None:
        return None
    dimension = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(template))
    values = as_array(inverse_mass_matrix, template)
    if values is None or values.shape not in [(dimension,), (dimension, dimension)]:
        shape = "another structure" if values is None else f"shape {values.shape}"
        raise SettingsError(
            f"inverse_mass_matrix has {shape}; as a position has {dimension} numbers, give {dimension} variances, a "
            f"{dimension} x {dimension} matrix, or variances in the position's own structure."
        )
    if values.ndim == 1:
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise SettingsError("inverse_mass_matrix has entries that are not positive; a variance is needed for each.")
        return np.sqrt(values).astype(dtype)
    if not np.isfinite(values).all() or not np.allclose(values, values.T):
        raise SettingsError("inverse_mass_matrix is not symmetric and finite; give a covariance matrix.")
    try:
        return np.linalg.cholesky(values).astype(dtype)
    except np.linalg.LinAlgError:
        raise SettingsError("inverse_mass_matrix is not positive definite; give a covariance matrix.") from None


def as_array(values: Any, template: Position) -> np.ndarray | None:
    """Flatten what has the position's structure to a vector; take anything else as an array, if it is one."""

    def shapes(arrays: Any) -> list[tuple[int, ...]]:
        return [leaf.shape for leaf in jax.tree.leaves(arrays)]

    try:
        arrays = tree.as_numbers(values, "the setting", SettingsError)
        same = jax.tree.structure(arrays) == jax.tree.structure(template)
        if same and shapes(arrays) == [leaf.shape for leaf in jax.tree.leaves(template)]:
            return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(arrays)])
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, SettingsError):
        return None
