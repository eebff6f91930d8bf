"""What the server's own file says, `server.toml` in its kit. It has no rows: there is little to decide."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pydantic
from pydantic import ConfigDict, Field

from fahmc.engines.flare.rules import sentences
from fahmc.errors import FederationError

SERVER_FILE = "server.toml"


class ServerRules(pydantic.BaseModel):
    """The server's own settings, in its kit's server.toml."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    own_samplers: list[str] = []
    """What else than fahmc's own samplers it may import: it needs their classes to combine replies; it has no rows."""
    maximum_megabytes: int = Field(default=4096, ge=1)
    """What one round's messages may take, of all sites together."""


def read_server_rules(local: Path) -> ServerRules:
    """Read the server's own file, which need not be there."""
    path = local.parent / SERVER_FILE
    try:
        return ServerRules.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        return ServerRules()
    except pydantic.ValidationError as error:
        raise FederationError(
            f"the server's own file is refused. {sentences(SERVER_FILE, error, ServerRules)}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise FederationError(f"the server's {SERVER_FILE} cannot be read: {error}.") from error
