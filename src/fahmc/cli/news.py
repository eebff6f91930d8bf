"""How a server or site fares, in words: what `fahmc federation start` prints as it happens, and `status` when asked."""

from __future__ import annotations

import time

from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.state import State
from fahmc.report.quantities import in_time


def title(kit: Kit) -> str:
    """Name a server or site."""
    return "The server" if kit.role == "server" else f"Site {kit.name}"


def news(kit: Kit, before: State, now: State, was_up: bool) -> list[str]:
    """Say what changed between two states; ``was_up`` tells whether all was well at any time before."""
    if now.word == "starting" and not now.process and before.process:
        return [f"The process of {_inside(title(kit))} ended and is started again."]
    said = []
    if (now.word, now.reason) != (before.word, before.reason):
        said = _of_server(kit, now, was_up) if kit.role == "server" else _of_site(kit, before, now, was_up)
    said += [f"Site {site} is connected." for site in now.sites if site not in before.sites]
    return said + [f"Site {site} is not connected any more." for site in before.sites if site not in now.sites]


def _of_server(kit: Kit, now: State, was_up: bool) -> list[str]:
    if now.word != "listening":
        return []
    if was_up:
        return [f"The server listens at {kit.server} again."]
    stop = f"Ctrl-C, or `fahmc federation stop {kit.path}`, stops it"
    return [f"The server of study {kit.study} is running and listens at {kit.server}; {stop}."]


def _of_site(kit: Kit, before: State, now: State, was_up: bool) -> list[str]:
    goes_on = "The site goes on trying."
    if now.word == "connected":
        return [f"Site {kit.name} is connected to the server {kit.server}{' again' if was_up else ''}."]
    if now.word == "refused":
        return [f"Site {kit.name} is refused: {now.reason} {goes_on}"]
    if now.word == "unreached" and before.word == "connected":
        return [f"Site {kit.name} has lost its connection: {now.reason} {goes_on}"]
    return [f"Site {kit.name} does not reach the server: {now.reason} {goes_on}"] if now.word == "unreached" else []


def condition(kit: Kit, process: int | None, state: State | None) -> list[str]:
    """Say how a participant fares now."""
    if process is None:
        return [f"{title(kit)} does not run on this machine."]
    runs = f"{title(kit)} runs (process {process}) on this machine"
    if state is None or state.word == "starting":
        return [f"{runs} and is starting."]
    if state.silence:
        return [f"{runs}, but has not said how it fares for {in_time(state.silence)}: it hangs, or the machine slept."]
    lasts = f"for {in_time(max(0.0, time.time() - state.since))}"
    if state.word == "listening":
        return [f"{runs} and listens at {kit.server}."]
    if state.word == "connected":
        return [f"{runs} and is connected to the server {kit.server}, {lasts}."]
    how = "is refused" if state.word == "refused" else "does not reach the server"
    return [f"{runs}, but {how}, {lasts}: {state.reason}"]


def _inside(name: str) -> str:
    return name[0].lower() + name[1:]
