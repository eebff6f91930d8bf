"""What the analyst and the server say to each other, typed: JSON on the line, checked on arrival."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import pydantic

from fahmc.engines.flare.arrays import arrays_to_text, text_to_arrays
from fahmc.engines.flare.versions import check_versions, own_versions
from fahmc.engines.run import Block
from fahmc.errors import FederationError

# Rounds are counted in 32 bits where they are run.
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**31)]
_Seconds = Annotated[float, pydantic.Field(ge=0, le=10**7)]


@dataclass(frozen=True)
class Request:
    """What the analyst may ask."""


@dataclass(frozen=True)
class Status(Request):
    """Tell how the job is."""


@dataclass(frozen=True)
class Survey(Request):
    """Find out what the sites hold."""

    sites: Annotated[list[str], pydantic.Field(min_length=1)]
    columns: dict[str, Any] | None
    weights: dict[str, float] | None
    seconds: _Seconds


@dataclass(frozen=True)
class Prepare(Request):
    """Have the sites make ready for a phase of a run; ``order`` is the text of an `Order`."""

    order: str
    seconds: _Seconds
    round_timeout: _Seconds


@dataclass(frozen=True)
class Begin(Request):
    """Run rounds, and keep them to be fetched."""

    first_round: _Count
    num_rounds: _Count
    """Of the whole phase: how far the server may run ahead."""
    num_warmup_rounds: _Count | None
    thin: pydantic.PositiveInt
    state: str


@dataclass(frozen=True)
class Fetch(Request):
    """Hand over finished rounds of what was begun under this identity."""

    begun: str
    first_round: _Count
    num_rounds: _Count


@dataclass(frozen=True)
class Ask(Request):
    """Have every site answer a question about draws; ``question`` is the text of a `Question`."""

    sites: Annotated[list[str], pydantic.Field(min_length=1)]
    question: str
    seconds: _Seconds


@dataclass(frozen=True)
class Stop(Request):
    """Do no more rounds."""


@dataclass(frozen=True)
class Close(Request):
    """End the job."""


REQUESTS: tuple[type[Request], ...] = (Status, Survey, Prepare, Begin, Fetch, Ask, Stop, Close)
_reader = functools.cache(pydantic.TypeAdapter)


def write_request(request: Request) -> dict[str, Any]:
    """Write a request as JSON values, with the versions that it comes from."""
    return {"request": type(request).__name__, "versions": own_versions(), **asdict(request)}


def read_request(values: Mapping[str, Any], kinds: Iterable[type[Request]] = REQUESTS) -> Request:
    """Read what `write_request` wrote, or refuse it: first of all if it comes from other versions."""
    fields, by_name = dict(values), {kind.__name__: kind for kind in kinds}
    check_versions("The analyst", fields.pop("versions", None))
    try:
        return _reader(by_name[str(fields.pop("request", None))]).validate_python(fields)
    except (KeyError, pydantic.ValidationError) as error:
        raise FederationError("The server cannot read the request; is its fahmc as new as the analyst's?") from error


def block_to_text(block: Block) -> str:
    """Write what an engine hands over; its divergence is told elsewhere."""
    parts = {"positions": block.positions, "place": np.array([block.first_round, block.num_rounds])}
    perhaps = {"drift_squares": block.drift_squares, "gradients": block.gradients}
    parts |= {name: value for name, value in perhaps.items() if value is not None}
    parts |= {f"stats/{name}": value for name, value in block.stats.items()}
    return arrays_to_text(parts | {f"state/{name}": value for name, value in block.state.items()})


def text_to_block(text: str) -> Block:
    """Read what `block_to_text` wrote."""
    parts = text_to_arrays(text)

    def under(folder: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(folder): value for name, value in parts.items() if name.startswith(folder)}

    place, positions = parts.get("place"), parts.get("positions")
    if place is None or place.shape != (2,) or place.dtype.kind != "i" or positions is None:
        raise FederationError("The server handed over rounds in a form that cannot be read; is its fahmc as new?")
    first_round, num_rounds = map(int, place)
    return Block(
        first_round=first_round,
        num_rounds=num_rounds,
        positions=positions,
        stats=under("stats/"),
        drift_squares=parts.get("drift_squares"),
        state=under("state/"),
        gradients=parts.get("gradients"),
    )
