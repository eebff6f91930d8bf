"""Image data sets: real small files in every form, refusals that name the file, and downloads from a local server."""

import errno
import gzip
import hashlib
import io
import os
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fahmc.errors import DataError
from fahmc.experiments.fetch import MissingFileError, Source, locate, obtain
from fahmc.experiments.image_formats import records_digest
from fahmc.experiments.image_sets import (
    IMAGE_SETS,
    CifarPair,
    IdxPart,
    IdxSet,
    ImageSet,
    is_available,
    load_images,
    stand_in,
)
from fahmc.experiments.logistic_rows import logistic_rows

# The discard port: nothing listens there.
NOWHERE = "http://127.0.0.1:9"
RNG = np.random.default_rng(0)
TRAIN_X, TRAIN_Y = RNG.integers(256, size=(6, 2, 2), dtype=np.uint8), RNG.integers(10, size=6, dtype=np.uint8)
TEST_X, TEST_Y = RNG.integers(256, size=(5, 2, 2), dtype=np.uint8), RNG.integers(10, size=5, dtype=np.uint8)
CONTENTS = {"train-x.gz": TRAIN_X, "train-y.gz": TRAIN_Y, "test-x.gz": TEST_X, "test-y.gz": TEST_Y}


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def tiny_set(address: str = NOWHERE, num_split: int | None = None) -> IdxSet:
    def source(file: str) -> Source:
        return Source("tiny", file, f"{address}/{file}", hashlib.sha256(idx(CONTENTS[file])).hexdigest())

    return IdxSet(
        "tiny",
        IdxPart(source("train-x.gz"), source("train-y.gz"), num_rows=6, side=2),
        IdxPart(source("test-x.gz"), source("test-y.gz"), num_rows=5, side=2),
        num_split=num_split,
    )


def write(folder, files=tuple(CONTENTS), *, is_gzipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        content = idx(CONTENTS[file])
        name = file if is_gzipped else file.removesuffix(".gz")
        (folder / name).write_bytes(gzip.compress(content) if is_gzipped else content)


def assert_same(images: ImageSet, others: ImageSet):
    for part, other in [(images.train, others.train), (images.test, others.test)]:
        for key in "xy":
            np.testing.assert_array_equal(part[key], other[key])


@pytest.fixture
def data(tmp_path, monkeypatch, _own_folders):
    monkeypatch.setenv("FAHMC_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "fahmc"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch, request):
    """Keep tests out of the user's folders, but for the one of the published files, and requests away from proxies."""
    if "real_name" in request.fixturenames:
        return
    monkeypatch.delenv("FAHMC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Server(NamedTuple):
    folder: Path
    address: str
    requests: list[str]


@pytest.fixture
def server(tmp_path):
    """Serve a folder on the loopback interface, and list what was asked for."""
    folder, requests = tmp_path / "served", []
    folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            super().do_GET()

        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Server(folder, f"http://127.0.0.1:{httpd.server_port}", requests)
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize("is_gzipped", [True, False])
def test_idx_files_are_read(data, is_gzipped):
    write(data / "tiny", is_gzipped=is_gzipped)
    images = tiny_set().load(download=False)
    np.testing.assert_array_equal(images.train["x"], TRAIN_X.reshape(6, 4).astype(np.float32) / 255)
    np.testing.assert_array_equal(images.test["x"], TEST_X.reshape(5, 4).astype(np.float32) / 255)
    np.testing.assert_array_equal(images.train["y"], TRAIN_Y)
    np.testing.assert_array_equal(images.test["y"], TEST_Y)
    assert {key: values.dtype for key, values in images.train.items()} == {"x": np.float32, "y": np.int32}
    assert (images.name, images.num_classes, images.note) == ("tiny", 10, "")


def test_unpacked_content_under_the_packed_name_is_read(data):
    write(data / "tiny")
    (data / "tiny" / "train-x.gz").write_bytes(idx(TRAIN_X))
    assert tiny_set().load(download=False).train["x"].shape == (6, 4)


def test_other_content_is_refused_with_both_checksums(data):
    write(data / "tiny")
    other = idx(TRAIN_X ^ 1)
    (data / "tiny" / "train-x.gz").write_bytes(gzip.compress(other))
    with pytest.raises(DataError) as refusal:
        tiny_set().load(download=False)
    expected, came = (hashlib.sha256(content).hexdigest() for content in (idx(TRAIN_X), other))
    assert str(refusal.value) == (
        f"{data / 'tiny' / 'train-x.gz'} is not the published file: its content should have SHA-256 {expected} but has "
        f"{came}; delete it and run again."
    )


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>", id="a page"),
        pytest.param(idx(TRAIN_X)[:-1], id="short"),
        pytest.param(idx(TRAIN_X) + b"0", id="long"),
        pytest.param(idx(TRAIN_X[:5]), id="other shape"),
        pytest.param(idx(TRAIN_Y), id="other axes"),
        pytest.param(b"\0\0\x0d" + idx(TRAIN_X)[3:], id="other type"),
    ],
)
def test_headers_and_lengths_are_checked_where_no_checksum_is_known(data, content):
    write(data / "tiny")
    (data / "tiny" / "images").write_bytes(content)
    part = IdxPart(Source("tiny", "images", NOWHERE), tiny_set().train.labels, num_rows=6, side=2)
    with pytest.raises(DataError, match=r"images is not an idx file of 6 x 2 x 2 bytes.*delete it and run again"):
        part.load(download=False)
    (data / "tiny" / "images").write_bytes(idx(TRAIN_X))
    assert part.load(download=False)["x"].shape == (6, 4)


def test_broken_compression_and_folders_in_a_files_place_are_refused(data):
    write(data / "tiny")
    path = data / "tiny" / "train-x.gz"
    path.write_bytes(gzip.compress(idx(TRAIN_X))[:-9])
    with pytest.raises(DataError, match=r"train-x.gz cannot be read \(.*\); delete it and run again"):
        tiny_set().load(download=False)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"train-x.gz cannot be read \(.*directory"):
        tiny_set().load(download=False)


def test_the_users_folder_comes_before_the_cache(data, cache):
    source = tiny_set().train.images
    assert locate(source) is None  # FAHMC_DATA may name a folder that does not exist
    write(cache / "tiny")
    assert locate(source) == cache / "tiny" / "train-x.gz"
    assert_same(tiny_set().load(download=False), tiny_set().load(download=True))
    write(data / "tiny", is_gzipped=False)
    assert locate(source) == data / "tiny" / "train-x"
    (data / "tiny" / "train-x").write_bytes(b"broken")
    with pytest.raises(DataError, match="train-x is not the published file"):  # the cache does not hide it
        tiny_set().load(download=True)


def test_the_cache_is_in_the_home_folder_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".cache" / "fahmc" / "tiny")
    assert tiny_set().is_available()


def test_downloads_are_kept_in_the_cache(server, cache):
    write(server.folder)
    images = tiny_set(server.address).load(download=True)
    assert len(server.requests) == 4
    assert sorted(path.name for path in (cache / "tiny").iterdir()) == sorted(CONTENTS)
    assert_same(tiny_set(server.address).load(download=True), images)
    assert_same(tiny_set(NOWHERE).load(download=False), images)
    assert len(server.requests) == 4


def test_refused_downloads_leave_nothing_behind(server, cache):
    write(server.folder)
    (server.folder / "test-y.gz").write_bytes(b"<html>log in first</html>")
    with pytest.raises(MissingFileError, match=r"test-y.gz .*\(what was sent is not the published file"):
        tiny_set(server.address).load(download=True)
    assert [path.name for path in (cache / "tiny").iterdir()] == ["test-x.gz"]
    (server.folder / "test-y.gz").unlink()
    with pytest.raises(MissingFileError, match=r"test-y.gz .*\(the download failed: HTTP Error 404"):
        tiny_set(server.address).load(download=True)
    assert [path.name for path in (cache / "tiny").iterdir()] == ["test-x.gz"]


def test_interrupted_downloads_leave_nothing_behind(server, cache):
    def interrupt(path):
        assert path.exists()
        raise KeyboardInterrupt

    write(server.folder)
    with pytest.raises(KeyboardInterrupt):
        obtain(tiny_set(server.address).test.images, interrupt)
    assert list((cache / "tiny").iterdir()) == []


def test_missing_files_are_explained_in_one_sentence(data, cache):
    with pytest.raises(DataError) as refusal:
        tiny_set().load(download=True)
    refused = f"[Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}"
    assert str(refusal.value) == (
        f"test-x.gz of the data set tiny was not found in {data / 'tiny'} or {cache / 'tiny'}, and did not come from "
        f"{NOWHERE}/test-x.gz (the download failed: {refused}); put it into {cache / 'tiny'}, or "
        "set FAHMC_DATA to a folder that holds tiny/test-x.gz."
    )


def test_a_cache_that_cannot_be_written_is_explained(server, cache):
    write(server.folder)
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"test-x.gz .*\(the download failed: .*Not a directory"):
        tiny_set(server.address).load(download=True)


def test_the_network_is_left_alone_on_request(server, cache):
    write(server.folder)
    with pytest.raises(DataError, match=r"FAHMC_DATA is not set.*no download was tried"):
        tiny_set(server.address).load(download=False)
    assert not tiny_set(server.address).is_available()
    write(cache / "tiny", ["test-x.gz", "test-y.gz"])
    assert tiny_set(server.address, num_split=3).load(download=False).note
    assert server.requests == []


@pytest.mark.parametrize("download", [True, False])
def test_test_images_are_split_where_the_training_images_are_missing(data, download):
    write(data / "tiny", ["test-x.gz", "test-y.gz", "train-y.gz"])
    tiny = tiny_set(num_split=3)
    assert tiny.is_available() and not tiny_set().is_available()
    images = tiny.load(download=download)
    assert images.note == (
        "The training images of tiny were not found (missing: $FAHMC_DATA/tiny/train-x.gz), so 3 of its 5 test images "
        "stand in for training and the other 2 for testing."
    )
    assert_same(images, tiny.load(download=download))
    assert (len(images.train["y"]), len(images.test["y"])) == (3, 2)
    both = np.concatenate([images.train["x"], images.test["x"]])
    labels = np.concatenate([images.train["y"], images.test["y"]])
    # Every test image appears once, with its own label.
    original = {tuple(pixels): label for pixels, label in zip(TEST_X.reshape(5, 4), TEST_Y, strict=True)}
    assert len(original) == 5
    assert {tuple(np.rint(row * 255)): label for row, label in zip(both, labels, strict=True)} == original

    write(data / "tiny", ["train-x.gz"])
    assert (tiny.load(download=False).note, len(tiny.load(download=False).train["y"])) == ("", 6)


def test_broken_training_images_are_not_taken_for_missing_ones(data):
    write(data / "tiny")
    (data / "tiny" / "train-x.gz").write_bytes(b"broken")
    with pytest.raises(DataError, match="delete it and run again"):
        tiny_set(num_split=3).load(download=False)


# CIFAR-10: five training files and one test file of a few records each, with labels of all ten classes.
BATCHES = {
    name: np.concatenate([np.arange(12)[:, None] % 10, RNG.integers(256, size=(12, 3072))], axis=1).astype(np.uint8)
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
}
PAIR = {name: records[records[:, 0] < 2] for name, records in BATCHES.items()}
CIFAR_TRAIN, CIFAR_TEST = np.concatenate([*PAIR.values()][:5]), PAIR["test_batch.bin"]


def tiny_cifar(address: str = NOWHERE) -> CifarPair:
    source = Source("cifar", "cifar.tar.gz", f"{address}/cifar.tar.gz", other_names=("pair.npz", "batches"))
    return CifarPair("tiny", source, records_digest(CIFAR_TRAIN), records_digest(CIFAR_TEST))


def write_archive(path, batches=BATCHES):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        # The published archive does not have its files in alphabetical order either.
        for name, records in reversed(batches.items()):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = records.nbytes
            archive.addfile(member, io.BytesIO(records.tobytes()))


def write_folder(path, batches=BATCHES):
    path.mkdir(parents=True)
    for name, records in batches.items():
        (path / name).write_bytes(records.tobytes())


def write_pair(path, train=CIFAR_TRAIN, test=CIFAR_TEST):
    path.parent.mkdir(parents=True, exist_ok=True)
    (x_train, y_train), (x_test, y_test) = ((part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0]) for part in (train, test))
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


@pytest.mark.parametrize(
    ("name", "writer"), [("cifar.tar.gz", write_archive), ("batches", write_folder), ("pair.npz", write_pair)]
)
def test_every_form_of_cifar_gives_the_same_rows(data, name, writer):
    assert not tiny_cifar().is_available()
    writer(data / "cifar" / name)
    assert tiny_cifar().is_available()
    images = tiny_cifar().load(download=False)
    np.testing.assert_array_equal(images.train["x"], CIFAR_TRAIN[:, 1:] / np.float32(255))
    np.testing.assert_array_equal(images.test["x"], CIFAR_TEST[:, 1:] / np.float32(255))
    np.testing.assert_array_equal(images.train["y"], [0, 1, 0, 1] * 5)
    np.testing.assert_array_equal(images.test["y"], [0, 1, 0, 1])
    assert (images.num_classes, images.note) == (2, "")
    assert {key: values.dtype for key, values in images.train.items()} == {"x": np.float32, "y": np.int32}


def test_cifar_is_downloaded_as_one_archive(server, cache):
    write_archive(server.folder / "cifar.tar.gz")
    images = tiny_cifar(server.address).load(download=True)
    assert_same(tiny_cifar(server.address).load(download=True), images)
    assert [path.name for path in (cache / "cifar").iterdir()] == ["cifar.tar.gz"]  # and nothing is unpacked
    assert len(server.requests) == 1


def test_the_digest_sees_every_byte_but_not_the_order():
    assert records_digest(CIFAR_TRAIN[::-1].copy()) == records_digest(CIFAR_TRAIN)
    for column in (0, 1, 3072):
        changed = CIFAR_TRAIN.copy()
        changed[7, column] ^= 1
        assert records_digest(changed) != records_digest(CIFAR_TRAIN)
    assert records_digest(CIFAR_TRAIN[:-1]) != records_digest(CIFAR_TRAIN)


def refusal_of_cifar() -> str:
    with pytest.raises(DataError) as refusal:
        tiny_cifar().load(download=False)
    message = str(refusal.value)
    assert message.endswith("; delete it and run again.") and "\n" not in message
    return message


def test_other_images_or_labels_are_refused(data):
    swapped = CIFAR_TRAIN.copy()
    swapped[:, 0] = 1 - swapped[:, 0]
    write_pair(data / "cifar" / "pair.npz", train=swapped)
    digests = f"automobiles should be {records_digest(CIFAR_TRAIN)} but is {records_digest(swapped)}"
    start = "pair.npz does not hold the published training images: the digest of its 20 airplanes and "
    assert start + digests in refusal_of_cifar()
    write_pair(data / "cifar" / "pair.npz", test=CIFAR_TEST[:3])
    assert "the published test images: the digest of its 3 airplanes" in refusal_of_cifar()


def test_broken_arrays_are_refused(data):
    path = data / "cifar" / "pair.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, x_train=CIFAR_TRAIN)
    assert "pair.npz is incomplete (y_train is not a file" in refusal_of_cifar()
    np.savez(path, x_train=np.array([{}]), y_train=np.zeros(1))
    assert "pair.npz cannot be read as CIFAR-10 (Object arrays cannot be loaded" in refusal_of_cifar()
    np.save(path.with_suffix(".npy"), CIFAR_TRAIN)
    for content in (b"", b"<html>", path.read_bytes()[:-99], path.with_suffix(".npy").read_bytes()):
        path.write_bytes(content)
        assert "pair.npz cannot be read as CIFAR-10 (" in refusal_of_cifar()


def test_broken_folders_are_refused(data):
    folder = data / "cifar" / "batches"
    write_folder(folder)
    (folder / "data_batch_3.bin").write_bytes(b"0" * 3074)
    expected = "batches cannot be read as CIFAR-10 (data_batch_3.bin has 3,074 bytes, not a multiple of 3,073)"
    assert expected in refusal_of_cifar()
    (folder / "data_batch_3.bin").unlink()
    assert "No such file or directory" in refusal_of_cifar() and "data_batch_3.bin" in refusal_of_cifar()


def test_broken_archives_are_refused(data):
    path = data / "cifar" / "cifar.tar.gz"
    write_archive(path, {name: BATCHES[name] for name in [*BATCHES][1:]})
    assert "cifar.tar.gz is incomplete (data_batch_1.bin)" in refusal_of_cifar()
    write_archive(path)
    content = path.read_bytes()
    for broken in (b"", b"<html>", content[: len(content) // 2], content[:500] + b"????" + content[504:]):
        path.write_bytes(broken)
        assert "cifar.tar.gz " in refusal_of_cifar()


def test_missing_cifar_names_every_form():
    with pytest.raises(DataError, match=r"cifar.tar.gz \(or pair.npz or batches\) of the data set cifar was not found"):
        tiny_cifar().load(download=False)


@pytest.mark.parametrize(
    ("name", "num_pixels", "num_classes"), [("fashion-mnist", 784, 10), ("kmnist", 784, 10), ("cifar2", 3072, 2)]
)
def test_stand_ins_have_the_sets_shapes(name, num_pixels, num_classes):
    images = stand_in(name, num_train=40, num_test=20)
    assert (images.train["x"].shape, images.test["x"].shape) == ((40, num_pixels), (20, num_pixels))
    assert images.num_classes == num_classes and f"the shapes of {name}" in images.note
    for rows, num_rows in [(images.train, 40), (images.test, 20)]:
        assert (rows["x"].dtype, rows["y"].dtype) == (np.float32, np.int32)
        assert rows["x"].min() >= 0 and rows["x"].max() <= 1
        assert np.bincount(rows["y"]).tolist() == [num_rows // num_classes] * num_classes
    assert_same(images, stand_in(name, 40, 20))
    assert not np.array_equal(images.train["x"], stand_in(name, 40, 20, seed=1).train["x"])
    # Both parts come from the same templates: the nearest class mean finds every label.
    means = np.stack([images.train["x"][images.train["y"] == label].mean(axis=0) for label in range(num_classes)])
    distances = ((images.test["x"][:, None] - means) ** 2).sum(axis=2)
    np.testing.assert_array_equal(distances.argmin(axis=1), images.test["y"])


def test_first_keeps_the_first_rows():
    images = stand_in("kmnist", 8, 5)
    few = images.first(3, 2)
    for key in "xy":
        np.testing.assert_array_equal(few.train[key], images.train[key][:3])
        np.testing.assert_array_equal(few.test[key], images.test[key][:2])
    assert (few.name, few.num_classes, few.note) == (images.name, images.num_classes, images.note)
    with pytest.raises(DataError, match=r"9 training images of kmnist were asked for; .* at most the 8 that it has"):
        images.first(9, 2)
    with pytest.raises(DataError, match="0 test images of kmnist were asked for; ask for at least 1"):
        images.first(3, 0)


def test_unknown_names_are_refused():
    for function in (load_images, is_available, lambda name: stand_in(name, 1, 1)):
        with pytest.raises(DataError, match="no image data set 'mnist'; choose from fashion-mnist, kmnist, cifar2"):
            function("mnist")


@pytest.mark.parametrize("real_name", IMAGE_SETS)
def test_the_published_files(real_name):
    if not is_available(real_name):
        pytest.skip(f"{real_name} lies neither in $FAHMC_DATA nor in the cache")
    images = load_images(real_name, download=False)
    sizes = {"fashion-mnist": (60_000, 10_000), "kmnist": (60_000, 10_000), "cifar2": (10_000, 2_000)}
    expected = (8_000, 2_000) if images.note else sizes[real_name]
    assert (len(images.train["y"]), len(images.test["y"])) == expected
    assert real_name == "kmnist" or not images.note
    for rows in (images.train, images.test):
        assert rows["x"].shape == (len(rows["y"]), 3072 if real_name == "cifar2" else 784)
        assert (rows["x"].dtype, rows["x"].min(), rows["x"].max()) == (np.float32, 0, 1)
        counts = np.bincount(rows["y"], minlength=images.num_classes)
        # Every class is equally frequent, but for the random split.
        assert (counts == counts.mean()).all() or images.note
    # The means that are commonly subtracted from these images.
    common = {"fashion-mnist": 0.2860, "kmnist": 0.1918}
    if real_name in common and not images.note:
        assert images.train["x"].mean(dtype=np.float64) == pytest.approx(common[real_name], abs=1e-4)


def test_simulated_rows_have_unit_length_and_the_stated_chance():
    rows = logistic_rows(num_rows=200, dim=5, seed=3)
    np.testing.assert_allclose(np.linalg.norm(rows["x"], axis=1), 1)
    rng = np.random.default_rng(3)
    rng.normal(size=(200, 5))
    truth = rng.normal(size=5)
    np.testing.assert_array_equal(rows["y"], rng.random(200) < 1 / (1 + np.exp(-rows["x"] @ truth)))
    assert not np.array_equal(rows["x"], logistic_rows(200, 5, seed=4)["x"])
