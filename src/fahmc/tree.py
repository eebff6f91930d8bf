"""Pytrees of arrays: flattening draws, naming leaves, checksums, and a JSON skeleton so that files need no pickle."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, namedtuple
from typing import Any

import jax
import numpy as np

from fahmc.errors import FahmcError, first_line, shown
from fahmc.types import Position


def leaf_names(tree: Any, root: str = "position") -> list[str]:
    """Name the leaves by their path: ``{"a": {"b": x}}`` has ``a.b``; a bare array is called ``root``."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator=".") or root for path, _ in paths]


def named_leaves(tree: Any, root: str = "position") -> dict[str, Any]:
    """Return the leaves by their names."""
    return dict(zip(leaf_names(tree, root), jax.tree.leaves(tree), strict=True))


def as_arrays(tree: Any, name: str, error: type[FahmcError]) -> Any:
    """Return a user's pytree with NumPy arrays as its leaves, or refuse it."""
    try:
        arrays = jax.tree.map(np.asarray, tree)
    except Exception as reason:  # of flattening: too deep, keys of two kinds; or of an object that is no array
        cause = f"{type(reason).__name__}: {first_line(reason)}"
        raise error(f"{name} is {shown(tree)}, which is no tree of arrays ({cause}). Give a dict of arrays.") from None
    if any(np.ma.is_masked(leaf) for leaf in jax.tree.leaves(tree)):
        raise error(f"{name} holds masked numbers, which would count as any others. Fill them in, or drop these rows.")
    return arrays


def as_numbers(tree: Any, name: str, error: type[FahmcError]) -> Any:
    """Return a user's pytree with arrays of real numbers as its leaves, or refuse it."""
    arrays = as_arrays(tree, name, error)
    for leaf_name, leaf in zip(leaf_names(arrays, root=""), jax.tree.leaves(arrays), strict=True):
        if leaf.dtype.kind not in "fiub":
            what = f"{name}: {leaf_name}" if leaf_name else name
            raise error(f"{what} has dtype {leaf.dtype}; these must be real numbers. Encode text first.")
    return arrays


def unflatten_draws(flat: np.ndarray, template: Position) -> Position:
    """Turn ``[..., dim]`` into a pytree of ``[..., *leaf shape]``, the inverse of flattening each position.

    ``template`` gives structure and leaf shapes; it may hold arrays or ``jax.ShapeDtypeStruct``.
    """
    leaves, structure = jax.tree.flatten(template)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
    parts = np.split(flat, ends[:-1], axis=-1)
    return structure.unflatten(
        part.reshape(*flat.shape[:-1], *leaf.shape) for part, leaf in zip(parts, leaves, strict=True)
    )


def flatten_draws(positions: Position, batch_ndim: int = 2) -> np.ndarray:
    """Turn a pytree of ``[chain, draw, ...]`` into ``[chain, draw, dim]``."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    return np.concatenate([leaf.reshape(*leaf.shape[:batch_ndim], -1) for leaf in leaves], axis=-1)


def digest(value: Any) -> str:
    """Checksum of a pytree of arrays: values, shapes, dtypes and structure."""
    leaves, structure = jax.tree.flatten(value)
    sha = hashlib.sha256(str(structure).encode())
    for leaf in map(np.asarray, leaves):
        sha.update(f"{leaf.dtype.str}{leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()[:16]


def skeleton(tree: Any) -> Any:
    """Describe dicts, lists, tuples and NamedTuples as JSON, with the leaf's name in the place of each leaf.

    Raises TypeError for what JSON cannot describe: other containers, and dicts whose keys are not strings.
    """
    names = iter(leaf_names(tree))

    def describe(node: Any) -> Any:
        if node is None:
            return None
        if isinstance(node, dict):
            if not all(isinstance(key, str) for key in node):
                raise TypeError(f"a dict with the keys {list(node)}, which are not all strings")
            # JAX walks a dict by its sorted keys, an OrderedDict by its own order.
            ordered = list(node) if isinstance(node, OrderedDict) else sorted(node)
            return {type(node).__name__: [[key, describe(node[key])] for key in ordered]}
        if fields := getattr(node, "_fields", None):
            return {"NamedTuple": [[field, describe(getattr(node, field))] for field in fields]}
        if isinstance(node, list | tuple):
            return {type(node).__name__: [describe(child) for child in node]}
        if not jax.tree_util.all_leaves([node]):
            raise TypeError(f"a {type(node).__name__}")
        return next(names)

    return describe(tree)


def fill(description: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Rebuild the tree that `skeleton` described, with ``arrays`` as its leaves."""
    if description is None:
        return None
    if isinstance(description, str):
        return arrays[description]
    ((kind, children),) = description.items()
    if kind in ("list", "tuple"):
        filled = [fill(child, arrays) for child in children]
        return filled if kind == "list" else tuple(filled)
    filled = {key: fill(child, arrays) for key, child in children}
    if kind == "NamedTuple":
        # The class itself cannot be stored; one with the same fields can be made.
        return namedtuple("Position", filled)(**filled)
    return OrderedDict(filled) if kind == "OrderedDict" else filled
