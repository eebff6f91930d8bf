"""A round is the weighted mean of sound replies from all sites, or it is not: against sites played by a function."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fahmc import FAHMC, DebiasedFAHMC
from fahmc.dynamics.debiased import DebiasedReply, DebiasedState
from fahmc.dynamics.fa_hmc import FAHMCState
from fahmc.engines.flare.rounds import NotFinite, Rounds, SiteLost, ask_all, survey
from fahmc.engines.flare.wire import merge_fn, reply_layout, state_layout
from fahmc.errors import CheckpointError, DataError, FahmcError, FederationError, ModelError

SITES = ("north", "south", "east")
WEIGHTS = {"north": 0.3, "south": 0.45, "east": 0.25}
SHAPE, ROUND = (2, 3), 4
PLAIN, DEBIASED = FAHMC(0.1), DebiasedFAHMC(0.1, sync_unit="leapfrog")


class Played:
    """Three sites that answer a round at once, and whose answers a test may change."""

    def __init__(self, sampler: FAHMC, dtype: str = "float64", arrive: tuple[str, ...] = SITES):
        self.calls: list[tuple[list[str], str, float, dict[str, Any]]] = []
        self.arrive = arrive
        self.silent: dict[str, int] = dict.fromkeys(SITES, 0)
        self.change: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.failures: dict[str, str] = {}
        self.states = state_layout(sampler, SHAPE, np.dtype(dtype))
        self.replies = reply_layout(sampler, SHAPE, np.dtype(dtype))
        rng = np.random.default_rng(1)
        numbers = {site: {name: rng.normal(size=SHAPE).astype(dtype) for name in self.replies.fields} for site in SITES}
        kind = self.replies.kind
        self.sent = {site: kind(*(numbers[site].get(name) for name in kind._fields)) for site in SITES}
        before = {name: rng.normal(size=SHAPE).astype(dtype) for name in self.states.fields}
        self.state = self.states.kind(*(before.get(name) for name in self.states.kind._fields))
        self.rounds = Rounds(
            self.call,
            run="a run",
            weights=WEIGHTS,
            states=self.states,
            replies=self.replies,
            merge=merge_fn(sampler),
            seconds=1.5,
        )

    def call(self, sites, method, seconds, arguments, /):
        self.calls.append((list(sites), method, seconds, dict(arguments)))
        replies, wrong = {}, {}
        for site in self.arrive:
            if site not in sites:
                continue
            if self.silent[site]:
                self.silent[site] -= 1
                wrong |= {site: self.failures[site]} if site in self.failures else {}
                continue
            answer = {"site": site, "round": arguments["round_index"], "reply": self.replies.pack(self.sent[site])}
            replies[site] = self.change.get(site, lambda answer: answer)(answer)
        return replies, wrong

    def advance(self):
        return self.rounds.advance(self.state, ROUND)


def weighted_sum(played: Played, name: str) -> np.ndarray:
    """Σ_c w_c of one field, from left to right in the sites' order."""
    values = [getattr(played.sent[site], name) for site in SITES]
    north, south, east = (value.dtype.type(WEIGHTS[site]) * value for site, value in zip(SITES, values, strict=True))
    return (north + south) + east


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("arrive", [SITES, ("east", "south", "north"), ("north", "east", "south")])
def test_the_mean_has_the_bits_of_a_sum_in_the_sites_order(arrive, dtype):
    played = Played(PLAIN, dtype, arrive)
    outcome = played.advance()
    assert type(outcome.state) is FAHMCState and outcome.state.momentum is None
    assert outcome.state.position.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(outcome.state.position, weighted_sum(played, "position"))
    ((sites, method, seconds, arguments),) = played.calls
    assert (sites, method, seconds) == (list(SITES), "local_round", 1.5)
    assert arguments == {"run": "a run", "round_index": ROUND, "state": played.states.pack(played.state)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_order_of_the_sum_shows_in_its_bits(dtype):
    """If it did not, the test above could not fail."""
    sent = Played(PLAIN, dtype).sent
    north, south, east = (np.dtype(dtype).type(WEIGHTS[site]) * sent[site].position for site in SITES)
    assert ((north + south) + east != (east + south) + north).any()
    assert ((north + south) + east != (north + east) + south).any()


def test_drift_and_displacement_are_distances_from_the_mean_and_from_the_start():
    played = Played(PLAIN)
    outcome = played.advance()
    mean = weighted_sum(played, "position")
    assert outcome.drift_squares.shape == (2, 3) and outcome.displacement.shape == (2,)
    for chain in range(2):
        for client, site in enumerate(SITES):
            gap = played.sent[site].position[chain] - mean[chain]
            np.testing.assert_allclose(outcome.drift_squares[chain, client], gap @ gap, rtol=1e-14)
        travelled = mean[chain] - played.state.position[chain]
        np.testing.assert_allclose(outcome.displacement[chain], np.sqrt(travelled @ travelled), rtol=1e-14)


def test_a_debiased_round_hands_on_its_start_and_the_mean_gradient():
    played = Played(DEBIASED)
    assert type(played.sent["north"]) is DebiasedReply
    state = played.advance().state
    assert type(state) is DebiasedState
    np.testing.assert_array_equal(state.anchor, played.state.position)
    np.testing.assert_array_equal(state.anchor_gradient, weighted_sum(played, "gradient"))
    np.testing.assert_array_equal(state.position, weighted_sum(played, "position"))
    np.testing.assert_array_equal(state.momentum, weighted_sum(played, "momentum"))


def test_a_site_that_is_silent_once_is_asked_again_and_nobody_else():
    played, undisturbed = Played(PLAIN), Played(PLAIN).advance()
    played.silent["south"] = 1
    np.testing.assert_array_equal(played.advance().state.position, undisturbed.state.position)
    assert [sites for sites, *_ in played.calls] == [list(SITES), ["south"]]
    assert played.calls[0][1:] == played.calls[1][1:], "it is asked the same again"


def test_a_site_that_is_silent_twice_is_lost():
    played = Played(PLAIN)
    played.silent["south"] = 2
    with pytest.raises(SiteLost, match=r"^Site 'south' did not answer in round 4: no reply within 1\.5 s\.$") as lost:
        played.advance()
    assert lost.value.site == "south" and len(played.calls) == 2
    played.silent["east"], played.failures["east"] = 2, "it left"
    with pytest.raises(SiteLost, match=r"^Site 'east' did not answer in round 4: it left\.$"):
        played.advance()
    # Nothing of those rounds is left: the next one is as if they had not been.
    np.testing.assert_array_equal(played.advance().state.position, weighted_sum(played, "position"))


def test_what_nobody_asked_for_is_not_taken():
    def call(sites, method, seconds, arguments, /):
        return {site: {"from": site} for site in (*sites, "west")}, {}

    assert ask_all(call, ["south"], "echo", 1.0, {}, "to echo") == {"south": {"from": "south"}}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("sampler", "field"), [(PLAIN, "position"), *((DEBIASED, name) for name in ("position", "momentum", "gradient"))]
)
def test_a_reply_that_is_not_finite_names_chain_and_client(sampler, field, value):
    played = Played(sampler)
    getattr(played.sent["east"], field)[1, 2] = value
    with pytest.raises(NotFinite) as stop:
        played.advance()
    assert (stop.value.chain, stop.value.client) == (1, 2)
    getattr(played.sent["south"], field)[:, 0] = value  # of several, the first chain's first client
    with pytest.raises(NotFinite) as stop:
        played.advance()
    assert (stop.value.chain, stop.value.client) == (0, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: answer | {"site": "west"}, "Site 'south' replied as 'west' for round 4, but round 4 was asked"),
        (lambda answer: answer | {"site": "north"}, "Site 'south' replied as 'north' for round 4"),
        (lambda answer: answer | {"round": 3}, "Site 'south' replied as 'south' for round 3, but round 4 was asked"),
        (lambda answer: {"reply": answer["reply"]}, "Site 'south' replied as None for round None"),
        (lambda answer: answer | {"reply": {}}, r"Site 'south', in round 4, sent \[\]; \['position'\] were expected"),
        (lambda answer: answer | {"reply": None}, "Site 'south', in round 4, sent NoneType"),
        (lambda answer: answer | {"reply": {"position": bytes(40)}}, "'south', in round 4, sent 40 bytes for position"),
        (lambda answer: [answer], "Site 'south' answered in round 4 with a list, not with a table"),
        (lambda answer: None, "Site 'south' answered in round 4 with a NoneType"),
    ],
)
def test_replies_that_are_not_for_this_round_are_refused(change, words):
    played = Played(PLAIN)
    played.change["south"] = change
    with pytest.raises(FederationError, match=words) as refusal:
        played.advance()
    assert not isinstance(refusal.value, SiteLost), "to wait for it would not help"
    assert len(played.calls) == 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("DataError", DataError),
        ("ModelError", ModelError),
        ("CheckpointError", CheckpointError),
        ("FederationError", FederationError),
        # Names that are not errors of fahmc must not be looked up further.
        ("ValueError", FederationError),
        ("Any", FederationError),
        ("annotations", FederationError),
        (None, FederationError),
    ],
)
def test_a_refusal_is_raised_as_what_it_is_with_the_site_s_name(kind, expected):
    played = Played(PLAIN)
    played.change["south"] = lambda answer: {"refused": "too few rows.", "kind": kind}
    with pytest.raises(FahmcError, match=r"^Site 'south' refuses in round 4: too few rows\.$") as refusal:
        played.advance()
    assert type(refusal.value) is expected


ARRAYS = {"x": {"dtype": "float64", "shape": [2]}, "y": {"dtype": "int32", "shape": []}}


def report(num_rows: Any = 10, arrays: Any = ARRAYS, **more: Any) -> dict[str, Any]:
    return {"num_rows": num_rows, "mark": "m", "arrays": arrays} | more


def take_arrays(**answers: dict[str, Any]):
    def call(sites, method, seconds, arguments, /):
        assert method == "take_arrays"
        return {site: answers.get(site, report()) for site in sites}, {}

    return call


def test_a_survey_of_arrays():
    found = survey(take_arrays(south=report(30, mark="s")), SITES, None, None, 1.0)
    assert found["sizes"] == {"north": 10, "south": 30, "east": 10} and list(found["sizes"]) == list(SITES)
    assert found["weights"] == [0.2, 0.6, 0.2]
    assert found["marks"] == {"north": "m", "south": "s", "east": "m"}
    assert found["arrays"] == ARRAYS and found["about"] == {}
    shuffled = {"east": 0.5, "north": 0.25, "south": 0.25}
    assert survey(take_arrays(), SITES, None, shuffled, 1.0)["weights"] == [0.25, 0.25, 0.5]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (report(arrays=ARRAYS | {"x": {"dtype": "float64", "shape": [3]}}), DataError,
         r"array 'x' is float64 \[row, 2\] at 'north' but float64 \[row, 3\] at 'south'"),
        (report(arrays=ARRAYS | {"y": {"dtype": "int64", "shape": []}}), DataError,
         r"array 'y' is int32 \[row\] at 'north' but int64 \[row\] at 'south'"),
        (report(arrays={"x": ARRAYS["x"]}), DataError, r"array 'y' is int32 \[row\] at 'north' but absent at 'south'"),
        (report(arrays=ARRAYS | {"z": ARRAYS["y"]}), DataError, "array 'z' is absent at 'north' but int32"),
        (report(num_rows=0), FederationError, "Site 'south' described its rows in a way that cannot be read"),
        (report(num_rows="many"), FederationError, "Site 'south' described its rows"),
        ({"num_rows": 10}, FederationError, "Site 'south' described its rows"),
        ({"refused": "no.", "kind": "DataError"}, DataError, r"^Site 'south' refuses to give its arrays: no\.$"),
    ],
)  # fmt: skip
def test_a_survey_refuses_sites_that_do_not_fit(answer, error, words):
    with pytest.raises(error, match=words):
        survey(take_arrays(south=answer), SITES, None, None, 1.0)


def test_a_survey_refuses_weights_that_do_not_fit():
    with pytest.raises(DataError, match="Weights and clients do not match: east, west"):
        survey(take_arrays(), SITES, None, {"north": 0.2, "south": 0.3, "west": 0.5}, 1.0)
