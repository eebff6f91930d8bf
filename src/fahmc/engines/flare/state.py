"""How a participant fares, as its process last wrote it into the kit: `start` prints it, and `status` reads it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fahmc.engines.flare.kits import Kit

_FILE = "fahmc-state.json"
# The process writes at least every few seconds; after this long it hangs, or its machine slept.
_STALE = 30.0
Word = Literal["starting", "listening", "connected", "refused", "unreached"]


class State(NamedTuple):
    """What a participant says of itself."""

    word: Word
    reason: str = ""
    """Why it is refused, or cannot reach the server."""
    sites: tuple[str, ...] = ()
    """Of a server: who is connected."""
    process: int = 0
    since: float = 0.0
    at: float = 0.0
    clock: float | None = None
    """Of a site: seconds by which the server's clock is ahead, as it was last told."""

    @property
    def silence(self) -> float:
        """Seconds since it was written, if these are too many; else 0."""
        seconds = time.time() - self.at
        return seconds if seconds > _STALE else 0.0


def write_state(kit: Kit, state: State) -> None:
    """Replace the kit's state; whoever reads sees the old or the new one, whole."""
    draft = kit.path / f"{_FILE}.{os.getpid()}"
    draft.write_text(json.dumps(state._asdict()))
    os.replace(draft, kit.path / _FILE)


def read_state(kit: Kit) -> State | None:
    """Return the kit's state, if there is one that can be read."""
    try:
        entries: dict[str, Any] = json.loads((kit.path / _FILE).read_text())
        state = State(**entries)._replace(sites=tuple(map(str, entries["sites"])))
        numbers = (state.process, state.since, state.at, state.clock or 0.0)
        is_sound = state.word in get_args(Word) and all(isinstance(number, int | float) for number in numbers)
        return state if is_sound and isinstance(state.reason, str) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_state(kit: Kit) -> None:
    """Forget it: the participant is stopped."""
    Path(kit.path / _FILE).unlink(missing_ok=True)
