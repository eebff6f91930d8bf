"""`fahmc demo --federated`, stopped by Ctrl-C: nothing may be left running."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.federation
# Seconds; it takes some ten.
LIMIT = 120


def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path):
    fahmc = str(Path(sys.executable).parent / "fahmc")
    command = [fahmc, "demo", "--federated", "--output", str(tmp_path / "demo")]
    # A temporary folder of its own: what other runs on this machine leave in the common one says nothing of this one.
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    settings = {
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": tmp_path,
        "env": os.environ | {"TMPDIR": str(temporary)},
    }
    # Tests that a shell runs in the background ignore Ctrl-C, and so would what they start.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, **settings)
    signal.signal(signal.SIGINT, ignored)
    with process:
        assert process.stderr is not None
        # A demo that is stuck must not work on for an hour; its sites end with it.
        end = threading.Timer(LIMIT, process.kill)
        end.start()
        lines = iter(process.stderr.readline, "")
        said = next(line for line in lines if line.startswith("Four clinics"))
        assert "over mutual TLS" in said
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 5, "a server and four sites"
        assert list(temporary.glob("fahmc-demo-*/kits")), "the kits are elsewhere, so that the last line proves nothing"
        process.send_signal(signal.SIGINT)  # while the sites connect and the job starts
        rest = "".join(lines)
        assert process.wait(timeout=LIMIT) == 130, rest
        end.cancel()
    assert not psutil.wait_procs(family, timeout=30)[1]
    assert not list(temporary.glob("fahmc-demo-*")), "the kits, with their keys, are left"
