"""The paper's image data sets: Fashion-MNIST, Kuzushiji-MNIST (KMNIST) and two classes of CIFAR-10.

>>> images = stand_in("cifar2", num_train=6, num_test=2)
>>> images.train["x"].shape, images.train["y"].shape, images.num_classes
((6, 3072), (6,), 2)

`load_images` returns the real ones; `fahmc.experiments.fetch` says where their files are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fahmc.errors import DataError
from fahmc.experiments.fetch import ContentError, MissingFileError, Source, locate, obtain
from fahmc.experiments.image_formats import read_cifar, read_idx, records_digest

Rows = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images x [row, pixel] in [0, 1] with labels y [row], in two parts."""

    name: str
    train: Rows
    test: Rows
    num_classes: int
    note: str = ""
    """What a reader of results should know of the images; empty where the set is complete."""

    def first(self, num_train: int, num_test: int) -> ImageSet:
        """Keep the first rows of each part."""

        def keep(part: str, rows: Rows, num_rows: int) -> Rows:
            if not 0 < num_rows <= len(rows["y"]):
                raise DataError(
                    f"{num_rows:,} {part} images of {self.name} were asked for; "
                    f"ask for at least 1 and at most the {len(rows['y']):,} that it has."
                )
            return {key: values[:num_rows] for key, values in rows.items()}

        train, test = keep("training", self.train, num_train), keep("test", self.test, num_test)
        return replace(self, train=train, test=test)


@dataclass(frozen=True)
class IdxPart:
    """Square images and their labels in two idx files."""

    images: Source
    labels: Source
    num_rows: int
    side: int = 28

    def load(self, *, download: bool) -> Rows:
        """Read both files."""

        def read(source: Source, *shape: int) -> np.ndarray:
            return obtain(source, lambda path: read_idx(path, shape, source.sha256), download=download)

        images = read(self.images, self.num_rows, self.side, self.side)
        return _rows(images.reshape(self.num_rows, -1), read(self.labels, self.num_rows))

    def is_available(self) -> bool:
        """Whether both files lie on this machine."""
        return locate(self.images) is not None and locate(self.labels) is not None


@dataclass(frozen=True)
class IdxSet:
    """A data set of the MNIST family."""

    name: str
    train: IdxPart
    test: IdxPart
    num_classes: int = 10
    num_split: int | None = None
    """How many test images become training images where the files of the training part cannot be had."""

    @property
    def num_pixels(self) -> int:
        """Length of a row."""
        return self.test.side**2

    def load(self, *, download: bool) -> ImageSet:
        """Read all files, or split the test part in two."""
        test = self.test.load(download=download)
        try:
            return ImageSet(self.name, self.train.load(download=download), test, self.num_classes)
        except MissingFileError:
            if self.num_split is None:
                raise
            return self._split(test, self.num_split)

    def is_available(self) -> bool:
        """Whether `load` can do without a download."""
        return self.test.is_available() and (self.num_split is not None or self.train.is_available())

    def _split(self, rows: Rows, num_train: int) -> ImageSet:
        # A fixed seed: whoever loads the set gets the same two parts.
        order = np.random.default_rng(0).permutation(self.test.num_rows)
        train, test = ({key: rows[key][part] for key in rows} for part in (order[:num_train], order[num_train:]))
        missing = [source for source in (self.train.images, self.train.labels) if locate(source) is None]
        places = " and ".join(f"$FAHMC_DATA/{source.folder}/{source.file}" for source in missing)
        note = (
            f"The training images of {self.name} were not found (missing: {places}), so {num_train:,} of its "
            f"{self.test.num_rows:,} test images stand in for training and the other {len(test['y']):,} for testing."
        )
        return ImageSet(self.name, train, test, self.num_classes, note)


@dataclass(frozen=True)
class CifarPair:
    """The first two classes of CIFAR-10, airplane and automobile, in any of the forms that `read_cifar` takes."""

    name: str
    source: Source
    train_digest: str
    test_digest: str
    num_classes: int = 2
    num_pixels: int = 3 * 32 * 32

    def load(self, *, download: bool) -> ImageSet:
        """Read both parts, and refuse images or labels other than the published ones."""
        train, test = obtain(self.source, self._read, download=download)
        return ImageSet(self.name, _rows(train[:, 1:], train[:, 0]), _rows(test[:, 1:], test[:, 0]), self.num_classes)

    def is_available(self) -> bool:
        """Whether `load` can do without a download."""
        return locate(self.source) is not None

    def _read(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        train, test = read_cifar(path)
        for part, records, digest in [("training", train, self.train_digest), ("test", test, self.test_digest)]:
            came = records_digest(records)
            if came != digest:
                raise ContentError(
                    f"does not hold the published {part} images: the digest of its {len(records):,} airplanes and "
                    f"automobiles should be {digest} but is {came}"
                )
        return train, test


def _rows(pixels: np.ndarray, labels: np.ndarray) -> Rows:
    return {"x": pixels / np.float32(255), "y": labels.astype(np.int32)}


def _idx_part(
    folder: str, address: str, prefix: str, num_rows: int, *, images: str | None = None, labels: str | None = None
) -> IdxPart:
    def source(file: str, sha256: str | None) -> Source:
        return Source(folder, file, f"{address}/{file}", sha256)

    return IdxPart(
        source(f"{prefix}-images-idx3-ubyte.gz", images), source(f"{prefix}-labels-idx1-ubyte.gz", labels), num_rows
    )


_FASHION = ("fashion-mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com")
_KMNIST = ("kmnist", "http://codh.rois.ac.jp/kmnist/dataset/kmnist")
_SETS: dict[str, IdxSet | CifarPair] = {
    "fashion-mnist": IdxSet(
        "fashion-mnist",
        train=_idx_part(
            *_FASHION,
            "train",
            60_000,
            images="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            labels="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        test=_idx_part(
            *_FASHION,
            "t10k",
            10_000,
            images="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            labels="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    "kmnist": IdxSet(
        "kmnist",
        # The training images could not be had when this was written, so the SHA-256 of their decompressed content is
        # not known: they are checked by the idx header (60,000 x 28 x 28 bytes) and their length.
        train=_idx_part(
            *_KMNIST,
            "train",
            60_000,
            labels="2a16eeae62da984b8bd24fa32e31d47291f01dac3fe84d5594f304f71e7d374b",
        ),
        test=_idx_part(
            *_KMNIST,
            "t10k",
            10_000,
            images="76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
            labels="a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
        ),
        num_split=8_000,
    ),
    "cifar2": CifarPair(
        "cifar2",
        Source(
            "cifar10",
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            other_names=("cifar2_airplane_automobile.npz", "cifar-10-batches-bin"),
        ),
        train_digest="579dda02e667ba08d745d0d2d779d763a41987cb37a6373615ee5f29e3b8bb5e",
        test_digest="b66bc817d5cc0aa1da4f14891794926afc296b406812dc4986ca9563eee43603",
    ),
}
IMAGE_SETS = tuple(_SETS)


def load_images(name: str, *, download: bool = True) -> ImageSet:
    """Return one of `IMAGE_SETS`, from this machine or, where ``download`` allows it, from its public address."""
    return _described(name).load(download=download)


def is_available(name: str) -> bool:
    """Whether `load_images` would find the set's files on this machine. Their content is not looked at."""
    return _described(name).is_available()


def stand_in(name: str, num_train: int, num_test: int, seed: int = 0) -> ImageSet:
    """Simulate images with the named set's numbers of pixels and classes, for tests and smoke runs.

    Every class has a template of uniform pixels; an image is its class's template with noise, cut off at 0 and 1.
    """
    described = _described(name)
    rng = np.random.default_rng(seed)
    templates = rng.random((described.num_classes, described.num_pixels), dtype=np.float32)

    def draw(num_rows: int) -> Rows:
        labels = rng.permutation(np.arange(num_rows, dtype=np.int32) % described.num_classes)
        noise = rng.standard_normal((num_rows, described.num_pixels), dtype=np.float32)
        # As wide as a template's own spread (about 0.3): classes overlap in a pixel but not in an image.
        return {"x": np.clip(templates[labels] + np.float32(0.3) * noise, 0, 1), "y": labels}

    note = f"Simulated images with the shapes of {name} stand in for the real ones."
    return ImageSet(name, draw(num_train), draw(num_test), described.num_classes, note)


def _described(name: str) -> IdxSet | CifarPair:
    if name not in _SETS:
        raise DataError(f"There is no image data set {name!r}; choose from {', '.join(IMAGE_SETS)}.")
    return _SETS[name]
