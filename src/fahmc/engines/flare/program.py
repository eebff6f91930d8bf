"""What a participant's process runs: FLARE's server or client, with three differences.

The server watches who says what, and at a site the doors are shut that fahmc does not use. The process says how it
fares. And it ends, with its workers, when the one that looks after it is gone, also if that was killed and could not
say so.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.app.server import server_train
from nvflare.private.fed.app.utils import version_check

from fahmc.engines.flare.doors import shut_doors
from fahmc.engines.flare.gate import watch_gate
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.launcher import import_ahead
from fahmc.engines.flare.processes import end_all
from fahmc.engines.flare.reporter import ServerReporter, SiteReporter


def main(workspace: Path) -> None:
    """Run FLARE's server or client."""
    version_check()
    kit = Kit.load(workspace)
    import_ahead(kit.role)  # before anything that might have to end it
    threading.Thread(target=_end_with_starter, args=(kit,), daemon=True).start()
    if kit.role == "server":
        watch_gate()
        ServerReporter(kit).start()
    else:
        shut_doors()
        SiteReporter(kit).start()
    program: Any = server_train if kit.role == "server" else client_train
    code: Any = MainProcessMonitor.run(main_func=program.main, run_dir=str(kit.path), args=program.parse_arguments())
    sys.exit(code)


def _end_with_starter(kit: Kit) -> None:
    """Wait for the end of standard input: nobody writes to it, so it ends when nobody holds it any more."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    end_all(kit, but=os.getpid())
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[sys.argv.index("-m") + 1]))
