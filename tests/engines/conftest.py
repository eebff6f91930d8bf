"""Kits for all tests of this folder: making certificates takes a second or two."""

import pytest

from fahmc.engines.flare.kits import Kit, make_kits


@pytest.fixture(scope="session")
def made_kits(tmp_path_factory) -> dict[str, Kit]:
    """Return kits that nobody changes; `kit_forge.copy_kit` makes one's own."""
    names = {"study": "study", "server": "localhost:8002", "sites": ["north", "south"], "analyst": "ann@example.org"}
    return make_kits(tmp_path_factory.mktemp("made") / "kits", **names)
