"""Tells the analyst who is waited for: soon if a site is lost, later if it computes, and then ever more seldom."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from fahmc.engines.flare.watch import Awaited

logger = logging.getLogger("fahmc")

# A site on a busy machine may take some seconds to give a sign of life.
LOST_AFTER = 4.0
# A round that takes this long is worth a word.
_SLOW_AFTER = 30.0
# What is said once is said again when it has gone on for so many times as long.
_AGAIN = 2.0


def in_words(awaited: Awaited) -> str:
    """Say who is waited for."""
    if awaited.silent_for >= LOST_AFTER:
        return f"waiting for {awaited.site}, lost {awaited.silent_for:.0f} s ago"
    return f"waiting for {awaited.site}, which has been at work for {awaited.asked_for:.0f} s"


def in_short(awaited: Awaited) -> str:
    """Say how a site is that is waited for."""
    if awaited.silent_for >= LOST_AFTER:
        return f"lost {awaited.silent_for:.0f} s ago"
    return f"at work for {awaited.asked_for:.0f} s"


class Lookout:
    """Says what should be said."""

    def __init__(self):
        self.awaited: list[str] = []
        """Those whom the server waited for when it last said so."""
        self._lost_at: dict[str, float] = {}
        self._said: dict[tuple[str, bool], float] = {}

    def see(self, awaited: Iterable[Awaited]) -> None:
        """Take what the server knows of the sites that it waits for."""
        awaited = list(awaited)
        self.awaited = [one.site for one in awaited]
        for one in awaited:
            is_lost = one.silent_for >= LOST_AFTER
            if is_lost:
                self._lost_at[one.site] = time.monotonic() - one.silent_for
            if is_lost or one.asked_for >= _SLOW_AFTER:
                self._say(one, is_lost)

    def miss(self, sites: Iterable[str]) -> None:
        """Take that sites are not connected."""
        now = time.monotonic()
        for site in sites:
            lost_for = now - self._lost_at.setdefault(site, now)
            if lost_for >= LOST_AFTER:
                self._say(Awaited(site, lost_for, lost_for), is_lost=True)

    def rest(self) -> None:
        """Forget who was lost: everybody is there."""
        self.awaited, self._lost_at = [], {}
        self._said = {(site, was_lost): seconds for (site, was_lost), seconds in self._said.items() if not was_lost}

    def _say(self, awaited: Awaited, is_lost: bool) -> None:
        seconds = awaited.silent_for if is_lost else awaited.asked_for
        if seconds >= _AGAIN * self._said.get((awaited.site, is_lost), 0.0):
            self._said[awaited.site, is_lost] = seconds
            words = in_words(awaited)
            logger.warning("%s.", words[0].upper() + words[1:])
