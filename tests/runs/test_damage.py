"""Checkpoints that are not as they were left: the same draws come out, or a sentence."""

import io
import json
import os
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc.durable import PART, append_record, read_records, write_atomically
from fahmc.errors import CheckpointError
from fahmc.runs import checkpoint

MODEL = fahmc.Model(lambda position, batch: -((batch - position) ** 2) / 2, init=jnp.zeros(()))
FEDERATION = fahmc.Federation.from_clients({"a": np.arange(4.0), "b": np.arange(6.0)})


def sample(folder, **changes):
    options = {"num_rounds": 6, "num_chains": 2, "block_rounds": 2, "seed": 3, "progress": False} | changes
    return fahmc.sample(MODEL, FEDERATION, fahmc.FAHMC(0.1, 3), checkpoint_dir=folder, **options).flat()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of three blocks."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, sample(folder)


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it, its draws, and its blocks."""
    folder = tmp_path / "run"
    folder.mkdir()
    for file in whole[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder, whole[1], sorted(folder.glob("block-*"))


@pytest.mark.parametrize("under", ["its own name", "the name of ours"])
def test_a_block_of_another_run_is_drawn_again(run, tmp_path, under):
    folder, expected, blocks = run
    sample(tmp_path / "other", seed=4)
    for index in (1, 2):
        blocks[index].unlink()
        (stranger,) = (tmp_path / "other").glob(f"block-{index:06d}-*")
        stranger.rename(folder / (stranger.name if under == "its own name" else blocks[index].name))
    np.testing.assert_array_equal(sample(folder), expected)


def test_a_block_twice_or_in_anothers_place_changes_nothing(run):
    folder, expected, blocks = run
    (folder / blocks[1].name.replace("000001", "000000")).write_bytes(blocks[1].read_bytes())
    (folder / blocks[0].name.replace("000000", "0000000")).write_bytes(blocks[0].read_bytes())
    blocks[1].rename(folder / blocks[1].name.replace("000001", "000007"))
    np.testing.assert_array_equal(sample(folder), expected)


def test_files_of_others_stay(run):
    folder, expected, blocks = run
    foreign = ["notes.tmp", "block-7.npz", "block-000001-mine.npz", f".mine{PART}", "thesis.npz"]
    for name in foreign:
        (folder / name).write_text("mine")
    leftovers = [f".run.json{PART}", f".{blocks[0].name}{PART}"]
    for name in leftovers:
        (folder / name).write_text("half")
    np.testing.assert_array_equal(sample(folder), expected)
    assert all((folder / name).read_text() == "mine" for name in foreign)
    assert not any((folder / name).exists() for name in leftovers)


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("kind", ["directory", "dangling link", "pipe"])
def test_what_is_no_file_is_refused_and_left_alone(run, place, kind):
    folder, _, blocks = run
    blocks[place].unlink()
    {"directory": os.mkdir, "dangling link": lambda path: os.symlink("nowhere", path), "pipe": os.mkfifo}[kind](
        blocks[place]
    )
    with pytest.raises(CheckpointError, match=f"{blocks[place].name} cannot be read"):
        sample(folder)
    assert os.path.lexists(blocks[place])


@pytest.mark.parametrize("name", ["run.json", ".lock", f".run.json{PART}"])
def test_a_directory_in_the_place_of_a_file_gets_a_sentence(run, name):
    folder, _, _ = run
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises(CheckpointError, match=r"(cannot be|Is a directory)"):
        sample(folder)


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "7", "", "null", "[" * 100_000, '{"seed": ' + "9" * 5000 + "}", '{"seed": "' + "a" * 5000 + '"}', "{}"],
    ids=["list", "number", "empty", "null", "deep", "digits", "long", "nothing"],
)
def test_settings_of_another_kind_get_a_sentence(run, text):
    folder, _, blocks = run
    (folder / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"(cannot be read|holds a run with)") as caught:
        sample(folder)
    assert len(str(caught.value)) < 1000 and all(block.exists() for block in blocks)


def forge(folder, block, change):
    """Change the arrays of a block, and give it the name that says it is the run's own."""
    settings = json.loads((folder / "run.json").read_text())
    del settings["versions"]
    first = checkpoint._checksum("", json.dumps(settings, sort_keys=True).encode())
    with np.load(block) as arrays:
        content = io.BytesIO()
        np.savez(content, **change(dict(arrays)))
    block.unlink()
    for later in folder.glob("block-00000[12]-*"):
        later.unlink()
    name = f"block-000000-{checkpoint._checksum(first, content.getvalue())}.npz"
    (folder / name).write_bytes(content.getvalue())


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {"somebody": np.zeros(3)},
        lambda arrays: {name: array for name, array in arrays.items() if name != "positions"},
        lambda arrays: arrays | {"positions": arrays["positions"][:1]},
        lambda arrays: arrays | {"positions": arrays["positions"].astype(str)},
        lambda arrays: arrays | {"positions": np.concatenate([arrays["positions"]] * 2, axis=1)},
        lambda arrays: arrays | {"state/position": np.zeros(7)},
        lambda arrays: arrays | {"state/extra": np.zeros(7)},
        lambda arrays: arrays | {"state": np.zeros(7)},
        lambda arrays: arrays | {"first_round": np.int64(5)},
        lambda arrays: arrays | {"phase": np.int64(1)},
        lambda arrays: arrays | {"rounds": np.float64(2)},
        lambda arrays: arrays | {"rounds": np.int64(-2)},
        lambda arrays: arrays | {"seconds": np.array(["long"])},
        lambda arrays: arrays | {"stats/step_size": np.zeros(3)},
        lambda arrays: arrays | {"drift_squares": np.zeros(3)},
        lambda arrays: arrays | {"gradients": np.zeros(3)},
        lambda arrays: arrays | {"positions": np.array([{"a": 1}], dtype=object)},
    ],
)
def test_a_block_of_the_wrong_content_with_the_right_checksum_is_refused(run, change):
    folder, expected, blocks = run
    forge(folder, blocks[0], change)
    try:
        np.testing.assert_array_equal(sample(folder), expected)  # what is no npz without pickle is drawn again
    except CheckpointError as error:
        assert "not what belongs there" in str(error)


def test_a_compressed_block_is_not_unpacked():
    content = io.BytesIO()
    np.savez_compressed(content, positions=np.zeros(10))
    assert checkpoint._decode(content.getvalue()) is None
    np.savez(content := io.BytesIO(), positions=np.zeros(10))
    assert checkpoint._decode(content.getvalue()) is not None
    with zipfile.ZipFile(content := io.BytesIO(), "w") as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
        archive.writestr("positions.npy", header.getvalue())
    assert checkpoint._decode(content.getvalue()) is None


def test_a_run_that_cannot_be_written_gets_a_sentence(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with pytest.raises(CheckpointError, match=r"cannot be written to .*No space left"):
        sample(tmp_path / "run")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    write_atomically(file, b"first", b" and last")
    with pytest.raises(TypeError):
        write_atomically(file, b"half", "not bytes")  # pyright: ignore[reportArgumentType]
    assert file.read_bytes() == b"first and last" and os.listdir(tmp_path) == ["file"]
    # A link in the place of what is being written leads nowhere; one in the place of the file itself is replaced.
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".file{PART}").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(file, b"over")
    file.unlink()
    (tmp_path / f".file{PART}").unlink()
    file.symlink_to(tmp_path / "mine")
    write_atomically(file, b"over")
    assert (tmp_path / "mine").read_text() == "mine" and file.read_bytes() == b"over"


def test_a_line_that_was_cut_short_costs_no_other(tmp_path):
    file = tmp_path / "records"
    assert list(read_records(file)) == []
    append_record(file, {"a": 1})
    with file.open("a") as torn:
        torn.write('{"a": {"b": 2}')
    append_record(file, {"a": 3})
    append_record(file, {"a": 4})
    assert list(read_records(file)) == [{"a": 1}, {"a": 3}, {"a": 4}]
