"""What a participant says of itself is read whole or not at all, and told in words when it changes."""

import itertools
import json
import time

import pytest

from fahmc.cli.news import condition, news
from fahmc.engines.flare.state import State, read_state, remove_state, write_state

NOBODY = "nobody listens at localhost:8002 (connection refused). Is the server started?"


def test_a_state_comes_back_as_it_was(made_kits):
    kit = made_kits["south"]
    assert read_state(kit) is None
    state = State("listening", "", ("north", "south"), 7, 1.5, 2.5)
    write_state(kit, state)
    assert read_state(kit) == state
    remove_state(kit)
    remove_state(kit)
    assert read_state(kit) is None and list(kit.path.glob("fahmc-state*")) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"word": "starting"}']
    + [
        json.dumps(State("connected")._asdict() | wrong)
        for wrong in ({"word": "fine"}, {"sites": 3}, {"since": "now"}, {"reason": None}, {"more": 1}, {"at": None})
    ],
)
def test_a_damaged_state_is_none(made_kits, text):
    kit = made_kits["south"]
    (kit.path / "fahmc-state.json").write_text(text)
    assert read_state(kit) is None
    remove_state(kit)


def test_a_site_s_story_is_told_step_by_step(made_kits):
    kit = made_kits["north"]
    story = [
        State("starting"),
        State("unreached", NOBODY, process=7),
        State("unreached", NOBODY, process=7),
        State("starting", process=7),
        State("connected", process=7),
        State("unreached", NOBODY, process=7),
        State("connected", process=7),
        State("starting"),
        State("refused", "the server is of another study.", process=8),
    ]
    told, was_up = [], False
    for before, now in itertools.pairwise(story):
        told += news(kit, before, now, was_up)
        was_up = was_up or now.word == "connected"
    assert told == [
        f"Site north does not reach the server: {NOBODY} The site goes on trying.",
        "Site north is connected to the server localhost:8002.",
        f"Site north has lost its connection: {NOBODY} The site goes on trying.",
        "Site north is connected to the server localhost:8002 again.",
        "The process of site north ended and is started again.",
        "Site north is refused: the server is of another study. The site goes on trying.",
    ]


def test_a_server_s_story(made_kits):
    kit = made_kits["server"]
    up, both = State("listening", process=7), State("listening", sites=("north", "south"), process=7)
    assert news(kit, State("starting"), State("starting", process=7), False) == []
    (said,) = news(kit, State("starting", process=7), up, False)
    assert said.startswith("The server of study study is running and listens at localhost:8002; Ctrl-C, or ")
    assert news(kit, up, both, True) == ["Site north is connected.", "Site south is connected."]
    assert news(kit, both, both._replace(sites=("south",)), True) == ["Site north is not connected any more."]
    assert news(kit, both, State("starting"), True) == ["The process of the server ended and is started again."]
    assert news(kit, State("starting", process=8), up, True) == ["The server listens at localhost:8002 again."]


def test_how_it_is_now(made_kits):
    kit, now = made_kits["north"], time.time()
    assert condition(kit, None, None) == ["Site north does not run on this machine."]
    for state, words in (
        (None, "Site north runs (process 7) on this machine and is starting."),
        (State("connected", since=now - 12, at=now), "and is connected to the server localhost:8002, for 12.0 s."),
        (State("unreached", NOBODY, since=now - 12, at=now), f"but does not reach the server, for 12.0 s: {NOBODY}"),
        (State("refused", "no.", since=now - 90, at=now), "but is refused, for 1 min 30 s: no."),
        (State("connected", since=now - 90, at=now - 45), "but has not said how it fares for 45.0 s: it hangs"),
    ):
        (said,) = condition(kit, 7, state)
        assert words in said
