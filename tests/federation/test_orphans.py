"""Nobody is left behind by a process that was killed and could clean up nothing."""

import signal
import subprocess
import sys

import psutil
import pytest

from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.processes import find_processes

pytestmark = pytest.mark.federation

LOOK_AFTER = """
import sys, pathlib
from fahmc.engines.flare.loopback import Loopback
from fahmc.engines.flare.rules import Rules
with Loopback(pathlib.Path(sys.argv[1]), {"north": Rules(file="rows.csv", columns="all")}) as federation:
    print("started", flush=True)
    federation.participants["north"].wait()
"""


def test_server_and_sites_end_with_a_process_that_is_killed(tmp_path):
    command = [sys.executable, "-c", LOOK_AFTER, str(tmp_path / "kits")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        kits = [Kit.load(tmp_path / "kits" / name) for name in ("server", "north")]
        family = [psutil.Process(pid) for kit in kits for pid in find_processes(kit)]
        assert len(family) == 2
        process.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert [pid for kit in kits for pid in find_processes(kit)] == []
