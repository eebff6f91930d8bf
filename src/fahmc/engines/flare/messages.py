"""What the analyst and the server say to each other, typed: JSON on the line, checked on arrival.

Arrays go as one text: an npz archive, which carries shapes and dtypes and cannot carry code.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pydantic

from fahmc.engines.run import Block
from fahmc.errors import FederationError


@dataclass(frozen=True)
class Request:
    """What the analyst may ask."""


@dataclass(frozen=True)
class Status(Request):
    """Tell how the job is."""


@dataclass(frozen=True)
class Survey(Request):
    """Find out what the sites hold."""

    sites: list[str]
    columns: dict[str, Any] | None
    weights: dict[str, float] | None
    seconds: float


@dataclass(frozen=True)
class Prepare(Request):
    """Have the sites make ready for a phase of a run; ``order`` is the text of an `Order`."""

    order: str
    seconds: float
    round_timeout: float


@dataclass(frozen=True)
class Begin(Request):
    """Run rounds, and keep them to be fetched."""

    first_round: int
    num_rounds: int
    """Of the whole phase: how far the server may run ahead."""
    num_warmup_rounds: int | None
    thin: int
    state: str


@dataclass(frozen=True)
class Fetch(Request):
    """Hand over finished rounds of what was begun under this identity."""

    begun: str
    first_round: int
    num_rounds: int


@dataclass(frozen=True)
class Stop(Request):
    """Do no more rounds."""


@dataclass(frozen=True)
class Close(Request):
    """End the job."""


REQUESTS: tuple[type[Request], ...] = (Status, Survey, Prepare, Begin, Fetch, Stop, Close)
_reader = functools.cache(pydantic.TypeAdapter)


def write_request(request: Request) -> dict[str, Any]:
    """Write a request as JSON values."""
    return {"request": type(request).__name__, **asdict(request)}


def read_request(values: Mapping[str, Any], kinds: Iterable[type[Request]] = REQUESTS) -> Request:
    """Read what `write_request` wrote, or refuse it."""
    fields, by_name = dict(values), {kind.__name__: kind for kind in kinds}
    try:
        return _reader(by_name[str(fields.pop("request", None))]).validate_python(fields)
    except (KeyError, pydantic.ValidationError) as error:
        raise FederationError("The server cannot read the request; is its fahmc as new as the analyst's?") from error


def arrays_to_text(arrays: Mapping[str, Any]) -> str:
    """Write arrays for a JSON message."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def text_to_arrays(text: str) -> dict[str, np.ndarray]:
    """Read arrays of a JSON message."""
    with np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


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

    first_round, num_rounds = map(int, parts["place"])
    return Block(
        first_round=first_round,
        num_rounds=num_rounds,
        positions=parts["positions"],
        stats=under("stats/"),
        drift_squares=parts.get("drift_squares"),
        state=under("state/"),
        gradients=parts.get("gradients"),
    )
