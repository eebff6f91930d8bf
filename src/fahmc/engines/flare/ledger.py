"""A site's ledger: who asked what, what was answered, and what is left of each allowance.

A file in the site's own kit, for people (`fahmc federation ledger KIT`) and to count by. What is counted is written
before it is answered, so that a crash can count too much, never too little. Rounds are reserved so many at a time, as
one can take less time than the disk.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from fahmc.engines.flare.chained_lines import BrokenChain, ChainedLines, Entry, begin_lines, now
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.errors import FederationError

LEDGER_FILE, _ANCHOR_FILE = "ledger.jsonl", "fahmc-ledger.json"
MARK_BYTES = 6
# Some seconds of quick rounds; at most as many are counted in vain after a crash.
_RESERVED = 64
# Refusals that one job has written in full; of more, and of the same again, only how many there were.
_MOST_REFUSALS = 200


class LedgerFault(Refused, FederationError):
    """A ledger without which a site does nothing."""

    def __init__(self, path: Path, what: str):
        super().__init__(Refusal.LEDGER)
        self.args = (
            f"The site's ledger {path} {what}. It says what was answered to others and what is left of each allowance, "
            "so nothing is answered without it. Make room if the disk is full; restore it from a copy if it was lost "
            "or damaged; or, if you accept that counting begins anew, run `fahmc federation ledger KIT --begin-anew`.",
        )


class Spent(NamedTuple):
    """What a private answer cost."""

    release: str
    """What was released: asked for again, it is the same answer and costs nothing."""
    epsilon: float
    delta: float


class Account:
    """What was answered of one content of the site's file."""

    def __init__(self):
        self.asked: dict[str, dict[str, None]] = defaultdict(dict)
        """By kind (survey, run, question), each once, in the order in which they came first."""
        self.spent: list[Spent] = []


class Ledger:
    """The ledger of a site, as one process has it open.

    Parameters
    ----------
    kit
        The site's kit, which must hold a ledger (`begin_ledger`). Without one the entries end with the process.
    who, job
        Who asks, as far as the site can tell, and in which job: for people to read.
    """

    def __init__(self, kit: Path | None = None, *, who: str = "", job: str = ""):
        self._asker = {name: value for name, value in (("who", who), ("job", job)) if value}
        self.entries: list[Entry] = []
        """All but the marks of rounds."""
        self.accounts: dict[str, Account] = defaultdict(Account)
        """By content of the file."""
        self.rounds: dict[str, int] = defaultdict(int)
        """By run: those that were computed or are reserved."""
        self._marks: dict[str, set[bytes]] = defaultdict(set)
        self._reserved: dict[str, int] = defaultdict(int)
        self._unwritten: dict[str, list[bytes]] = defaultdict(list)
        self._admitted: set[str] = set()
        self._refusals: dict[tuple[object, ...], int] = defaultdict(int)
        self._lines: ChainedLines | None = None
        if kit is not None:
            self._path = kit / LEDGER_FILE
            with self._in_words():
                self._lines = ChainedLines(self._path, kit / "local" / _ANCHOR_FILE, self._take)

    @property
    def is_torn(self) -> bool:
        """Whether a crash cut the last line short: nothing was answered on its account."""
        return self._lines is not None and bool(self._lines.torn)

    def note(self, what: str, **facts: object) -> None:
        """Write an entry that nothing depends on."""
        with self._locked() as add:
            add({"what": what, **facts})

    @contextlib.contextmanager
    def admitting(
        self, kind: str, key: str, content: str, maximum: int, refusal: Refusal, **facts: object
    ) -> Iterator[None]:
        """Refuse what is new if as many as may be were answered of this content; write what the block has answered.

        ``key`` names all that the answer follows from. What the block refuses does not count.
        """
        told = f"{kind} {content} {key} {facts}"
        if told in self._admitted:  # in this job, a moment ago
            yield
            return
        with self._locked():
            self._check_room(kind, key, content, maximum, refusal)
        yield
        with self._locked() as add:
            self._check_room(kind, key, content, maximum, refusal)
            add({"what": kind, "content": content, kind: key, **facts})
        self._admitted.add(told)

    def _check_room(self, kind: str, key: str, content: str, maximum: int, refusal: Refusal) -> None:
        asked = self.accounts[content].asked[kind]
        if key not in asked and len(asked) >= maximum:
            raise Refused(refusal)

    def count_round(self, run: str, mark: bytes, maximum: int) -> None:
        """Count a round before it is computed; one that was computed before has the same answer, and counts once.

        ``mark`` names all that the answer follows from, in `MARK_BYTES`.
        """
        if mark in self._marks[run]:
            return
        if self._reserved[run] == 0:
            with self._locked() as add:
                number = min(_RESERVED, maximum - self.rounds[run])
                if number <= 0:
                    raise Refused(Refusal.ROUNDS)
                self._reserve(add, run, number)
        self._reserved[run] -= 1
        self._marks[run].add(mark)
        self._unwritten[run].append(mark)

    def settle(self) -> None:
        """Give back the rounds that were reserved and not computed: no more are to come."""
        for run in [run for run, number in self._reserved.items() if number]:
            with self._locked() as add:
                self._reserve(add, run, -self._reserved[run])

    def _reserve(self, add: Callable[[Entry], None], run: str, number: int) -> None:
        marks = base64.b64encode(b"".join(self._unwritten[run])).decode()
        add({"what": "rounds", "run": run, "rounds": number, "marks": marks})
        self._reserved[run] += number
        self._unwritten[run].clear()

    def spend(
        self,
        release: str,
        content: str,
        epsilon: float,
        delta: float,
        check: Callable[[list[Spent]], None],
        **facts: object,
    ) -> None:
        """Write what a private answer costs, before it is given; the same release again costs nothing.

        ``check`` is called with all that was spent of this content and this cost at the end, and raises `Refused` if it
        is too much. Nobody else spends in between.
        """
        cost = Spent(release, float(epsilon), float(delta))
        with self._locked() as add:
            before = self.accounts[content].spent
            if all(spent.release != release for spent in before):
                check([*before, cost])
                add({"what": "spent", "content": content, **cost._asdict(), **facts})

    def refuse(self, during: str, refusal: Refusal, words: tuple[str, ...]) -> None:
        """Write that something was refused; who asks without end does not fill the disk."""
        key = during, refusal, words
        if key not in self._refusals and len(self._refusals) >= _MOST_REFUSALS:
            key = during, refusal, ()
        self._refusals[key] += 1
        times = self._refusals[key]
        if times & (times - 1) == 0:  # the first, second, fourth, eighth, ...
            named = {"named": list(key[2])} if key[2] else {}
            self.note("refusal", rule=refusal.name, during=during, times=times, **named)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Callable[[Entry], None]]:
        """Know what other processes wrote, and give what adds an entry while they wait."""

        def entry_of(facts: Entry) -> Entry:
            return {"at": now(), **self._asker, **facts}

        if self._lines is None:
            yield lambda facts: self._take(entry_of(facts))
            return
        with self._in_words(), self._lines.locked() as add:
            yield lambda facts: add(entry_of(facts))

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except BrokenChain as error:
            raise LedgerFault(self._path, str(error)) from error

    def _take(self, entry: Entry) -> None:
        """Do the sums."""
        match entry["what"]:
            case "survey" | "run" | "question" as kind:
                self.accounts[entry["content"]].asked[kind][entry[kind]] = None
            case "rounds":
                run, marks = entry["run"], base64.b64decode(entry["marks"])
                self.rounds[run] += entry["rounds"]
                places = range(0, len(marks), MARK_BYTES)
                self._marks[run].update(marks[place : place + MARK_BYTES] for place in places)
            case "spent":
                spent = Spent(entry["release"], entry["epsilon"], entry["delta"])
                self.accounts[entry["content"]].spent.append(spent)
        self.entries.append({name: value for name, value in entry.items() if name != "marks"})


class HasLedger(Protocol):
    """What writes into a ledger."""

    ledger: Ledger


_Self = TypeVar("_Self", bound=HasLedger)
_Rest = ParamSpec("_Rest")
_Answer = TypeVar("_Answer")


def noting_refusals(
    method: Callable[Concatenate[_Self, _Rest], _Answer],
) -> Callable[Concatenate[_Self, _Rest], _Answer]:
    """Have a method write into the ledger what it refuses, or fails to do."""

    @functools.wraps(method)
    def noted(self: _Self, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Answer:
        try:
            return method(self, *args, **kwargs)
        except LedgerFault:
            raise
        except Refused as refused:
            self.ledger.refuse(method.__name__, refused.refusal, refused.words)
            raise
        except Exception:
            self.ledger.refuse(method.__name__, Refusal.FAULT, ())
            raise

    return noted


def begin_ledger(kit: Path, **facts: object) -> str | None:
    """Begin the ledger of a kit; one that is there is kept beside it under the name that is returned."""
    path, kept = kit / LEDGER_FILE, None
    if path.exists():
        kept = f"ledger-until-{now().replace(':', '')}-{secrets.token_hex(2)}.jsonl"
        path.rename(path.with_name(kept))
        facts |= {"before": kept}
    begin_lines(path, kit / "local" / _ANCHOR_FILE, {"at": now(), "what": "begun", **facts})
    return kept
