"""What the page shows: where the run stands, looked up often, and what draws tell, as often as that costs little."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fahmc.draws import Draws
from fahmc.errors import CheckpointError
from fahmc.live.trail import MOST_DRAWS, Trail
from fahmc.owner import is_gone, is_here
from fahmc.report.convergence import ess, r_hat
from fahmc.report.parameters import Parameters
from fahmc.report.verdict import ESS_LIMIT, R_HAT_LIMIT
from fahmc.runs.journal import FORMAT, MOST_NAMES, read_journal

SHARE = 0.01
"""Of one core's time, what looking at draws may take."""
_MOST_TRACES, _MOST_POINTS = 12, 200
# Draws a chain from which on R-hat means something, and points of a curve of it.
_FEW, _STEPS = 20, 10


class Place(NamedTuple):
    """Where a run is kept."""

    checkpoint: Path
    results: Path | None = None
    """The folder of `fahmc sample`; None for that of a Python call."""

    def has(self, name: str, since: float) -> bool:
        """Whether a result has been written since."""
        file = None if self.results is None else self.results / name
        return file is not None and file.exists() and file.stat().st_mtime >= since

    @property
    def going_on(self) -> str:
        """What to do to have the run go on."""
        return "The same call goes on" if self.results is None else f"`fahmc resume {self.results}` goes on"


class Watcher:
    """Looks at a run again and again.

    Parameters
    ----------
    place
        Of a run that has told something.
    """

    def __init__(self, place: Place):
        self.place, self._trail = place, Trail(place.checkpoint)
        told = read_journal(place.checkpoint)
        if told is None or told.get("format") != FORMAT:
            raise CheckpointError(
                f"{place.checkpoint} tells nothing that could be watched: an older fahmc made it, or nothing was begun "
                "there. `fahmc resume` makes it tell."
            )
        self._told: Mapping[str, Any] = told
        self._growth: list[dict[str, Any]] = []
        self._shown: dict[str, Any] = {"version": 0, "parameters": [], "traces": {}, "growth": []}
        self._rest_until = 0.0
        self.is_over = False
        self.state, self.draws = b"{}", json.dumps(self._shown).encode()
        _diagnose(np.zeros((2, _FEW, 1)))  # what has to be imported once is no part of watching
        self.look()

    def look(self) -> None:
        """See where the run stands."""
        self._told = told = read_journal(self.place.checkpoint) or self._told
        is_gone_now = is_gone(told["process"])  # before its last word is taken for all
        if is_gone_now:
            self._told = told = read_journal(self.place.checkpoint) or told
        is_over = _is_over(told, is_gone_now, self.place)
        if is_over or time.monotonic() >= self._rest_until:
            began = time.thread_time()
            self._look_at_draws(is_over)
            self._rest_until = time.monotonic() + (time.thread_time() - began) / SHARE
        self.state = json.dumps(self._state(told, is_gone_now, is_over)).encode()
        self.is_over = is_over

    def _state(self, told: Mapping[str, Any], is_gone_now: bool, is_over: bool) -> dict[str, Any]:
        phases, is_planned = told.get("phases", []), told.get("is_planned", False)
        phase = phases[-1] if phases else None
        kind, words = _in_words(told, is_gone_now, is_over, self.place)
        is_sampling = not is_gone_now and told["ended"] is None
        rate = self._trail.rate(len(phases) - 1) if is_sampling and phases and not told["reason"] else None
        left = (phase["num_rounds"] - phase["rounds"]) / rate if rate and phase and is_planned else None
        return {
            "name": (self.place.results or self.place.checkpoint).resolve().name,
            "kind": kind,
            "words": words,
            "is_sampling": is_sampling,
            "is_over": is_over,
            "elapsed": (told["at"] if is_over else time.time()) - told["began"],
            "sampler": told.get("sampler", ""),
            "phase": phase,
            "phases": [
                f"{one['name']}: {one['rounds']:,} round{'' if one['rounds'] == 1 else 's'}"
                for one in phases
                if one["rounds"]
            ],
            "is_planned": is_planned,
            "rounds": sum(one["rounds"] for one in phases),
            "rate": rate,
            "left": left,
            "draws": self._trail.num_draws,
            "course": told.get("course", {}),
            "sites": told.get("sites", {}),
            "version": self._shown["version"],
        }

    def _look_at_draws(self, is_over: bool) -> None:
        """Read what is new, and say how well the chains agree by now."""
        phases = [phase["name"] for phase in self._told.get("phases", [])]
        is_new, names = self._trail.follow(phases), self._told.get("names", [])
        values, every, total, most = self._trail.positions, self._trail.every, self._trail.num_draws, np.inf
        if is_over and self.place.has("draws.nc", self._told["began"]) and self.place.results is not None:
            draws = Draws.load(self.place.results / "draws.nc")
            names, values, every, most = _final(draws)
            total = draws.num_draws
        elif not (is_new or is_over):
            return
        if values.shape[1] < _FEW:
            return
        r_hats, sizes = _diagnose(values)
        sizes = np.minimum(sizes, most)
        now = _worst(total, r_hats, sizes)
        if is_over:  # nobody is disturbed any more: how it came to this, also for those who did not see it
            lengths = np.linspace(_FEW, values.shape[1], _STEPS)[:-1].astype(int) if np.isinf(most).all() else []
            self._growth = [_worst(length * every, *_diagnose(values[:, :length])) for length in lengths]
        elif self._growth and now["draws"] < self._growth[-1]["draws"]:
            self._growth = []  # of another phase
        self._growth = [*self._growth, now]
        points = values[:, :: max(1, values.shape[1] // _MOST_POINTS), :_MOST_TRACES]
        self._shown = {
            "version": self._shown["version"] + 1,
            "every": every,
            "parameters": [
                {"name": name, "r_hat": _number(one), "ess": _number(size)}
                for name, one, size in zip(names, r_hats, sizes, strict=False)
            ],
            "dimension": self._told.get("dimension", len(names)),
            "traces": {
                name: [[_number(value) for value in chain] for chain in points[..., index]]
                for index, name in enumerate(names[:_MOST_TRACES])
            },
            "num_draws": total,
            "growth": self._growth,
            "limits": {"r_hat": R_HAT_LIMIT, "ess": ESS_LIMIT},
        }
        self.draws = json.dumps(self._shown, allow_nan=False).encode()


def _is_over(told: Mapping[str, Any], is_gone_now: bool, place: Place) -> bool:
    """Whether nothing more is to be seen: after its last round, a run of `fahmc sample` still makes a report."""
    if is_gone_now or told["ended"] not in (None, "complete", "stop_when"):
        return True
    return told["ended"] is not None and (place.results is None or place.has("report.html", told["began"]))


def _in_words(told: Mapping[str, Any], is_gone_now: bool, is_over: bool, place: Place) -> tuple[str, str]:
    """Say how the run is: a kind, for its colour, and a sentence."""
    ended, reason = told["ended"], told["reason"].rstrip(".")
    if ended == "interrupted":
        return "bad", f"Interrupted. {place.going_on} from the last block."
    if ended == "failed":
        return "bad", f"Stopped: {reason}."
    if ended is not None:
        what = "Sampling is complete" if ended == "complete" else "The stopping rule holds, and sampling is over"
        if place.results is None:
            return "good", f"{what}."
        report = place.results / "report.html"
        return "good", f"{what}. The report {'is in' if is_over else 'is being made:'} {report}."
    if is_gone_now:
        return "bad", f"Killed: the run's process ended without a word. {place.going_on} from the last block."
    if reason:
        return "unknown", f"Waiting: {reason}."
    if "phases" not in told:
        return "unknown", "Starting: the data are read, and what is sampled is looked at."
    if not any(phase["rounds"] for phase in told["phases"]):
        return "unknown", "The first rounds are being compiled."
    elsewhere = "" if is_here(told["process"]) else " On another machine: whether it still runs cannot be seen here."
    return "running", f"The run goes on.{elsewhere}"


def _final(draws: Draws) -> tuple[list[str], np.ndarray, int, Any]:
    """Return names and draws as they came out in the end, thinned, how many stand for one, and the most that they tell.

    Draws that were resampled from weighted ones tell no more than these.
    """
    parameters = Parameters.from_draws(draws)
    every, weights = max(1, draws.num_draws // (2 * MOST_DRAWS)), draws.account.get("weights")
    most = np.inf if weights is None else np.asarray(weights["ess"], np.float64)[:MOST_NAMES]
    return list(parameters.names[:MOST_NAMES]), parameters.values[:, ::every, :MOST_NAMES], every, most


def _diagnose(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return R-hat of every parameter, and its effective size: of bulk or tail, whichever is smaller."""
    sizes = [ess({"all": values}, method=method)["all"] for method in ("bulk", "tail")]
    return r_hat({"all": values})["all"], np.minimum(*sizes)


def _worst(num_draws: Any, r_hats: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    return {"draws": int(num_draws), "r_hat": _number(np.max(r_hats)), "ess": _number(np.min(sizes))}


def _number(value: Any) -> float | None:
    """Write a number for JSON, in as many digits as a picture shows."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
