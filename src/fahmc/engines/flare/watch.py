"""Who is waited for, and whether they are there: a site that computes for a minute is not lost, one that is silent is.

While the server waits for replies, sites that have not answered are asked now and then for a sign of life. FLARE's part
of a worker gives it, whatever fahmc's part is busy with.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

logger = logging.getLogger("fahmc")

# Between two looks at sites that have not answered; the first comes as long after the question.
_LOOK_EVERY = 1.0
# No sign of life for this long, and the site is taken to be gone: sooner than its time to answer would be over.
GONE_AFTER = 15.0


class Awaited(NamedTuple):
    """A site that has not answered."""

    site: str
    asked_for: float
    """Seconds since it was asked."""
    silent_for: float
    """Seconds since it was last heard of."""


class Watch:
    """Keeps an eye on sites that were asked something.

    ``sign_of_life`` asks some of them whether they are there, and returns those that are.
    """

    def __init__(self, sign_of_life: Callable[[list[str]], Collection[str]]):
        self._sign_of_life = sign_of_life
        self._lock = threading.Lock()
        self._asked: dict[str, float] = {}
        self._heard: dict[str, float] = {}

    @contextlib.contextmanager
    def asking(self, sites: Sequence[str]) -> Iterator[None]:
        """Watch sites while they are asked something."""
        with self._lock:
            now = time.monotonic()
            self._asked = dict.fromkeys(sites, now)
            # A site that is asked again because it did not answer has been silent for longer.
            self._heard = dict.fromkeys(sites, now) | {site: at for site, at in self._heard.items() if site in sites}
        try:
            yield
        finally:
            with self._lock:
                self._asked = {}

    def answered(self, site: str) -> None:
        """Note a site's answer."""
        with self._lock:
            self._asked.pop(site, None)
            self._heard.pop(site, None)

    def awaited(self) -> list[Awaited]:
        """Return the sites that have not answered, in the order in which they were asked."""
        with self._lock:
            now = time.monotonic()
            return [Awaited(site, now - asked, now - self._heard[site]) for site, asked in self._asked.items()]

    def look(self) -> None:
        """Ask those who have not answered for a while for a sign of life."""
        if sites := [awaited.site for awaited in self.awaited() if awaited.asked_for >= _LOOK_EVERY]:
            there = self._sign_of_life(sites)
            with self._lock:
                self._heard |= {site: time.monotonic() for site in there if site in self._asked}

    def keep_looking(self) -> None:
        """Look again and again, on a thread of its own."""

        def go_on() -> None:
            while True:
                time.sleep(_LOOK_EVERY)
                try:
                    self.look()
                except Exception:
                    logger.exception("sites could not be asked for a sign of life")

        threading.Thread(target=go_on, name="fahmc-watch", daemon=True).start()
