"""Fashion-MNIST's training images; without its files, random images of the same shapes."""

from __future__ import annotations

import numpy as np

from fahmc.experiments.image_sets import is_available, load_images

NUM_PIXELS, NUM_CLASSES = 784, 10


def training_images(num_rows: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return images [row, pixel] in [0, 1], labels [row], and whether they are the real ones.

    Nothing is downloaded: speed does not depend on the pixels' values.
    """
    if is_available("fashion-mnist"):
        rows = load_images("fashion-mnist", download=False).train
        return rows["x"][:num_rows], rows["y"][:num_rows], True
    rng = np.random.default_rng(0)
    images = rng.random((num_rows, NUM_PIXELS), dtype=np.float32)
    return images, rng.integers(NUM_CLASSES, size=num_rows, dtype=np.int32), False
