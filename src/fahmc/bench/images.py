"""Fashion-MNIST in its original idx files; without them, random images of the same shapes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

NUM_PIXELS, NUM_CLASSES = 784, 10
_FOLDER, _IMAGES, _LABELS = "fashion-mnist", "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def training_images(num_rows: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return images [row, pixel] in [0, 1], labels [row], and whether they are the real ones.

    The files are looked for in ``$FAHMC_DATA/fashion-mnist``. Speed does not depend on the pixels' values.
    """
    folder = Path(os.environ.get("FAHMC_DATA", ".")) / _FOLDER
    if (folder / _IMAGES).exists() and (folder / _LABELS).exists():
        images, labels = read_idx(folder / _IMAGES)[:num_rows], read_idx(folder / _LABELS)[:num_rows]
        return images.reshape(len(images), -1).astype(np.float32) / 255, labels.astype(np.int32), True
    rng = np.random.default_rng(0)
    images = rng.random((num_rows, NUM_PIXELS), dtype=np.float32)
    return images, rng.integers(NUM_CLASSES, size=num_rows, dtype=np.int32), False


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped idx file of bytes: two zeros, the type (8), the number of axes, their lengths, the values."""
    content = gzip.decompress(path.read_bytes())
    num_axes = content[3]
    shape = np.frombuffer(content, ">u4", num_axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes).reshape(shape)
