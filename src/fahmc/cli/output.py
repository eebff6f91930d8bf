"""What a command prints: tables for people or one JSON object for programs on standard output, the rest on stderr."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fahmc.errors import OutputError
from fahmc.report.quantities import in_bytes, in_time, in_words, rounded

if TYPE_CHECKING:
    import pandas as pd

    from fahmc.draws import Draws
    from fahmc.report.verdict import Verdict

# Rows of a printed table; summary.csv has them all.
_MAX_ROWS = 40
# Files and pipes have no width: what a wide terminal has.
_WIDTH_OF_A_FILE = 120


class Output(NamedTuple):
    """How much a command says, and in which form."""

    command: str
    as_json: bool
    is_quiet: bool

    @property
    def progress(self) -> bool | None:
        """The ``progress`` of `fahmc.sample`: off, or on where standard error is a terminal."""
        return False if self.is_quiet else None

    def log(self, message: str) -> None:
        """Say on standard error what is going on."""
        if not self.is_quiet:
            with suppress(OSError):  # a full standard error does not stop the work
                print(message, file=sys.stderr, flush=True)

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        """Say on standard error what takes a while, with a spinner if it is a terminal."""
        with Console(stderr=True, quiet=self.is_quiet).status(message):
            yield

    def show(self, *renderables: Any) -> None:
        """Print tables and sentences on standard output, unless it is for a program or for nobody."""
        if not (self.as_json or self.is_quiet):
            console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
            with _written():
                for renderable in renderables:
                    console.print(renderable)

    def end(self, exit_code: int) -> None:
        """Leave the command, whose work is done, with an exit code other than 0."""
        if exit_code:
            raise typer.Exit(exit_code)

    def result(self, status: str = "complete", exit_code: int = 0, **values: Any) -> None:
        """Print the JSON object, if asked for; numbers that JSON does not have become null."""
        if self.as_json:
            values = {"command": self.command, "status": status, "exit_code": exit_code} | values
            plain = to_jsonable_python(
                values,
                inf_nan_mode="null",
                fallback=lambda value: value.item() if hasattr(value, "item") else str(value),
            )
            with _written():
                print(json.dumps(plain, indent=1, allow_nan=False))


@contextmanager
def _written() -> Iterator[None]:
    """Have standard output written now, so that a full disk is blamed on it and not on a run's folder."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error) from error


def open_output(command: str, as_json: bool, is_quiet: bool) -> Output:
    """Begin a command: the library's warnings, too, go to standard error in the command line's own form."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fahmc: %(message)s"))
    logger = logging.getLogger("fahmc")
    logger.handlers = [handler]
    logger.setLevel(logging.ERROR if is_quiet else logging.WARNING)
    # Of every library: ArviZ's logger stands outside the hierarchy, so it cannot be had by its name.
    logging.disable(logging.WARNING if is_quiet else logging.NOTSET)
    return Output(command, as_json, is_quiet)


def parameter_rows(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return a table of parameters as JSON values."""
    return {str(name): dict(numbers) for name, numbers in table.to_dict("index").items()}


def summary_table(table: pd.DataFrame, title: str) -> Table:
    """Build the printed table of a run: one row per parameter, those with the worst R-hat if there are too many."""
    shown = table
    if len(table) > _MAX_ROWS:
        shown = table.sort_values("r_hat", ascending=False, na_position="first").head(_MAX_ROWS)
        title = f"{title} ({_MAX_ROWS} of {len(table):,} parameters, those with the worst R-hat; summary.csv has all)"
    printed = Table("parameter", title=title, title_justify="left")
    for heading in ("mean", "sd", "95 % interval", "R-hat", "ESS bulk", "ESS tail"):
        printed.add_column(heading, justify="right", no_wrap=True)
    for name, row in parameter_rows(shown).items():
        numbers = (rounded(row[key], row["sd"]) for key in ("mean", "sd"))
        sizes = (in_count(row[key]) for key in ("ess_bulk", "ess_tail"))
        printed.add_row(escape(name), *numbers, interval(row), in_r_hat(row["r_hat"]), *sizes)
    return printed


def interval(row: Mapping[str, float], prefix: str = "") -> str:
    """Write a row's 95 % interval."""
    spread = row[f"{prefix}sd"]
    # An escaped bracket: Rich would take "[...]" for markup.
    return rf"\[{rounded(row[f'{prefix}2.5%'], spread)}, {rounded(row[f'{prefix}97.5%'], spread)}]"


def in_r_hat(value: float) -> str:
    """Write an R-hat."""
    return "n/a" if math.isnan(value) else f"{value:.3f}"


def in_count(value: float) -> str:
    """Write an effective sample size."""
    return "n/a" if math.isnan(value) else f"{value:,.0f}"


def verdict_lines(verdict: Verdict) -> list[str]:
    """Write the verdict: the headline in colour, then what to do and what to know."""
    colour = {"good": "green", "unknown": "yellow", "bad": "red"}[verdict.status]
    return [f"[{colour}]{escape(verdict.headline)}[/]", *map(escape, (*verdict.words, *verdict.remarks))]


def cost_line(draws: Draws) -> str:
    """Say what a run cost."""
    cost = draws.cost
    line = f"{in_words(cost['rounds'])} rounds in {in_time(cost['seconds'])}"
    if "acceptance_rate" in draws.stats:
        line += f", acceptance rate {draws.stats['acceptance_rate'].mean():.3f}"
    to_clients, to_server = cost.get("bytes_to_clients", 0.0), cost.get("bytes_to_server", 0.0)
    if not to_clients + to_server:
        return f"{line}."
    would = "" if "sites" in draws.settings else "across a network these would be "
    return f"{line}; {would}{in_bytes(to_clients)} from the server to clients, {in_bytes(to_server)} back."
