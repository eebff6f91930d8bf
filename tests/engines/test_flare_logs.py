"""A kit's logs are told as one story, and what is added later is told once."""

from fahmc.engines.flare.logs import Line, Logs
from kit_forge import copy_kit

JOB = "12345678-1234-1234-1234-123456789012"


def test_files_become_one_story(made_kits, tmp_path):
    kit = copy_kit(made_kits["north"], tmp_path / "north")
    logs = Logs(kit)
    assert logs.read() == []
    (kit.path / JOB).mkdir()
    (kit.path / "output.txt").write_text(
        "Traceback\n2026-11-18 10:00:00 - starting\n2026-11-18 10:00:05 - connected\nhalf"
    )
    (kit.path / "log.txt.1").write_text("2026-11-18 09:00:00,123 - fahmc - WARNING - old\n")
    (kit.path / "log.txt").write_text("2026-11-18 10:00:02,123 - x - ERROR - oh\n  more of it\x1b[31m\n")
    (kit.path / JOB / "log.txt").write_text("2026-11-18 10:00:03,000 - fahmc - WARNING - refused: few rows\n")
    assert logs.read() == [
        Line("", "north", "Traceback"),
        Line("2026-11-18 09:00:00", "north", "fahmc - WARNING - old"),
        Line("2026-11-18 10:00:00", "north", "starting"),
        Line("2026-11-18 10:00:02", "north", "x - ERROR - oh"),
        Line("2026-11-18 10:00:02", "north", "  more of it�[31m"),
        Line("2026-11-18 10:00:03", "job 12345678", "fahmc - WARNING - refused: few rows"),
        Line("2026-11-18 10:00:05", "north", "connected"),
    ]
    assert logs.read() == []
    with (kit.path / "output.txt").open("a") as file:
        file.write(" a line\n2026-11-18 10:00:09 - unreached\n")
    assert [line.text for line in logs.read()] == ["half a line", "unreached"]
    (kit.path / "log.txt").write_text("2026-11-18 11:00:00,1 - y - begun anew\n")
    assert [line.text for line in logs.read()] == ["y - begun anew"]


def test_a_file_of_bytes_and_a_long_one(made_kits, tmp_path):
    kit = copy_kit(made_kits["south"], tmp_path / "south")
    (kit.path / "output.txt").write_bytes(b"\xff\xfe\n" + b"x" * 2**21 + b"\n2026-11-18 10:00:00 - end\n")
    assert Logs(kit).read()[-1] == Line("2026-11-18 10:00:00", "south", "end")
    assert sum(len(line.text) for line in Logs(kit).read()) < 2**21
