"""FA-HMC in the space of the rows, for models that see their coefficients only through the linear predictor xβ.

Let the likelihood depend on β through xβ alone, and β have a N(0, s² I) prior. Then the likelihood's force on client c
is a combination X_c′ g of its rows, and the prior's is −λβ with λ = 1/(s² τ). Leapfrog steps are linear in the forces:

    β_k = a_k β_0 + b_k p_0 + X_c′ γ_k       (a_k, b_k) the first row of A^k, A a leapfrog step under the prior alone

and γ, one number a row, follows the same leapfrog from 0 under the forces λγ + ∇ℓ(h), where the predictor

    h_k = X_c β_k = a_k X_c β_0 + b_k X_c p_0 + X_c X_c′ γ_k

needs n_c² multiplications instead of the 2 n_c d of a gradient. The average over the clients has the same form, with
w_c γ_c over the rows of all of them, and its predictors follow from X X′: β itself is computed when a draw is kept and
once a trajectory. The chain is the plain one to rounding.

Noise N(0, σ² I) on each gradient is simulated inside the span of a client's rows, where the likelihood sees it, with an
orthonormal basis Q_c in the place of X_c′: the law of Algorithm 1, whose g(θ_k, ξ_{k−1/2}) and g(θ_k, ξ_k) enter the
path only through their mean, so that one draw of N(0, σ²/2) serves for the two. Outside the span it meets nothing but
the prior; its effect after k steps is N(0, V_k) on each coordinate, and the clients' average is drawn at once, with
covariance Σ_c w_c² V_k ⊗ (I − Q_c Q_c′). The same law, not the same numbers.
"""

from fahmc.engines.in_process.row_space.choice import choose
from fahmc.engines.in_process.row_space.rounds import RowSpace

__all__ = ["RowSpace", "choose"]
