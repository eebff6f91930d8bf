"""Decode image files: idx, and the forms in which two classes of CIFAR-10 are found. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fahmc.experiments.fetch import ContentError, read_content

# A record of the binary version: the label, then the red, the green and the blue pixels, row by row.
_RECORD_BYTES = 1 + 3 * 32 * 32
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILE = "test_batch.bin"


def read_idx(path: Path, shape: tuple[int, ...], sha256: str | None = None) -> np.ndarray:
    """Read an idx file of bytes: two zeros, the type (8), the number of axes, their lengths, the values."""
    content = read_content(path, sha256)
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
    num_bytes = len(header) + int(np.prod(shape))
    if not content.startswith(header) or len(content) != num_bytes:
        raise ContentError(
            f"is not an idx file of {' x '.join(map(str, shape))} bytes: it should start with {header.hex()} and have "
            f"{num_bytes:,} bytes, but starts with {content[: len(header)].hex()} and has {len(content):,}"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test records [row, 1 + pixel], a label before its image, of the labels 0 and 1.

    ``path`` is the folder of the binary version, its archive, which is read in memory, or an .npz file of these two
    classes with x_train, y_train, x_test and y_test.
    """
    try:
        if path.suffix == ".npz":
            # Opened here, because NumPy leaves a broken archive open.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return _joined(arrays["x_train"], arrays["y_train"]), _joined(arrays["x_test"], arrays["y_test"])
        batches = dict(_batches_in_folder(path) if path.is_dir() else _batches_in_archive(path))
        return np.concatenate([batches[name] for name in _TRAIN_FILES]), batches[_TEST_FILE]
    except KeyError as error:
        raise ContentError(f"is incomplete ({error.args[0]})") from error
    # TypeError: what NumPy makes of an .npy file that is called .npz.
    except (OSError, EOFError, TypeError, ValueError, zlib.error, tarfile.TarError, BadZipFile) as error:
        first_line = str(error).partition("\n")[0].rstrip(":")  # tarfile goes on with all that it tried
        raise ContentError(f"cannot be read as CIFAR-10 ({first_line})") from error


def records_digest(records: np.ndarray) -> str:
    """Return a SHA-256 of all records that depends neither on their order nor on the files that hold them."""
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(record).digest() for record in records))).hexdigest()


def _joined(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.concatenate([labels.reshape(-1, 1), images.reshape(len(labels), -1)], axis=1)


def _batches_in_folder(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for name in (*_TRAIN_FILES, _TEST_FILE):
        yield name, _two_classes(name, (folder / name).read_bytes())


def _batches_in_archive(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    with tarfile.open(path) as archive:
        # In the archive's order: going back in a compressed file means decompressing it again.
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name in (*_TRAIN_FILES, _TEST_FILE):
                file = archive.extractfile(member)
                assert file is not None  # as it is for every regular file
                yield name, _two_classes(name, file.read())


def _two_classes(name: str, content: bytes) -> np.ndarray:
    if len(content) % _RECORD_BYTES:
        raise ValueError(f"{name} has {len(content):,} bytes, not a multiple of {_RECORD_BYTES:,}")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    return records[records[:, 0] < 2]
