"""Whether there is a posterior: a prior that is flat in some direction needs rows that are not.

Rows may leave a direction free altogether (columns that determine each other), which shows in the curvature; or bound
it to one side only (an outcome that a combination of columns predicts without error), which shows far out: along any
ray φ + t u of a posterior the potential must grow faster than log t.
"""

from __future__ import annotations

import numpy as np

from fahmc.adaptive.knowledge import Knowledge
from fahmc.adaptive.surrogate import Gaussian
from fahmc.errors import ModelError

# How far out rays are looked at, in standard deviations of the surrogate posterior.
_FAR = 1e5
_NUM_AXES = 3


def is_flat_somewhere(knowledge: Knowledge) -> bool:
    """Whether the prior alone bounds not every direction."""
    return flat_directions(knowledge).shape[1] > 0


def flat_directions(knowledge: Knowledge) -> np.ndarray:
    """Return a basis of the directions that the prior does not bound, [size, direction].

    Only told of priors that are Gaussian or flat; none of others.
    """
    size = len(knowledge.start)
    if knowledge.affine is None or not knowledge.is_identity:
        return np.zeros((size, 0))
    curvature = knowledge.affine.curvature
    scales = np.sqrt(np.maximum(np.diag(curvature), 0.0))
    scales[scales == 0] = 1.0
    values, vectors = np.linalg.eigh(curvature / scales[:, None] / scales)
    return vectors[:, values < 1e-12] / scales[:, None]


def check_curvature(knowledge: Knowledge, precision: np.ndarray, dtype: np.dtype) -> None:
    """Refuse a posterior whose precision cannot be told from a singular one."""
    scales = np.sqrt(np.maximum(np.diag(precision), 1e-300))
    least = np.linalg.eigvalsh(precision / scales[:, None] / scales).min()
    if least < 4 * len(precision) * np.finfo(dtype).eps and is_flat_somewhere(knowledge):
        more = "" if dtype == np.float64 else ' (or, if they only nearly do, set dtype = "float64")'
        raise improper(f"the rows leave a combination of the parameters free{more}")


def ray_points(law: Gaussian, start: np.ndarray, flat: np.ndarray) -> np.ndarray:
    """Return points far out in ``flat`` directions: the surrogate's widest there, the way from the start, backwards.

    Along others the prior grows however the likelihood goes, and nothing would be seen of it.
    """
    # φ = mean + flat v, whose part of the surrogate has the precision (F⁻¹ flat)′(F⁻¹ flat).
    inside = np.linalg.solve(law.factor, flat)
    covariance = np.linalg.inv(inside.T @ inside)
    scales = np.sqrt(np.diag(covariance))
    vectors = np.linalg.eigh(covariance / scales[:, None] / scales)[1]
    way = covariance @ inside.T @ np.linalg.solve(law.factor, law.mean - start)
    axes = [*(vectors[:, -_NUM_AXES:] * scales[:, None]).T, way]
    lengths = [np.linalg.norm(inside @ axis) for axis in axes]
    units = np.array([flat @ axis / length for axis, length in zip(axes, lengths, strict=True) if length > 0])
    return law.mean + _FAR * np.concatenate([units, -units])


def check_rays(heights: np.ndarray) -> None:
    """Refuse if the potential far out, compared with the middle's, has not grown as the logarithm of the distance."""
    if (heights <= np.log(_FAR)).any():
        raise improper(
            "the likelihood does not fall however far some combination of the parameters is moved, as when columns "
            "predict an outcome without error (separable data)"
        )


def improper(reason: str) -> ModelError:
    """Refuse a posterior that is none."""
    return ModelError(
        f"There is no posterior to sample: {reason}, and the prior is flat there. Give the coefficients a proper prior "
        "(prior_scale), or leave out columns."
    )
