"""`fahmc federation logs`: what a server or site on this machine said."""

from __future__ import annotations

import time
from pathlib import Path

from fahmc.cli.output import Output
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.logs import Line, Logs
from fahmc.errors import SettingsError

# Seconds between two looks at files that may grow.
_POLL = 0.5


def show_logs(kit: Path, num_lines: int, is_following: bool, output: Output) -> None:
    """Print the last lines of a kit's logs, newest last, and with ``is_following`` those that come, until Ctrl-C."""
    own = Kit.load(kit)
    if own.role == "analyst":
        raise SettingsError(f"{kit} is the analyst's kit, which has no logs; `fahmc sample` says what happens.")
    if is_following and output.as_json:
        raise SettingsError("--json prints one object at the end, and --follow has none; leave out one of the two.")
    logs = Logs(own)
    lines = logs.read()[-num_lines:]
    _print(lines, output)
    if not lines:
        output.show(f"{own.path} holds no logs yet.")
    try:
        while is_following:
            time.sleep(_POLL)
            _print(logs.read(), output)
    except KeyboardInterrupt:
        return  # the way to end it
    output.result(lines=[line._asdict() for line in lines])


def _print(lines: list[Line], output: Output) -> None:
    if not (output.as_json or output.is_quiet):
        for line in lines:
            print(f"{line.time:19} {line.source:12} {line.text}", flush=True)
