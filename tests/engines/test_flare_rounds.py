"""A round is what sound replies from all sites come to, or it is not: against sites played by a function."""

import itertools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fahmc import FAHMC, DebiasedFAHMC, Exchange, Field, Phase, Sampler, SplitHMC
from fahmc.engines.flare import rounds
from fahmc.engines.flare.masked_replies import MaskedReplies
from fahmc.engines.flare.masks import Shares
from fahmc.engines.flare.rounds import Rounds, SiteLost, ask_all
from fahmc.engines.flare.survey import survey
from fahmc.engines.flare.versions import check_versions, own_versions
from fahmc.engines.flare.wire import Layout
from fahmc.engines.order import Order
from fahmc.engines.record import record
from fahmc.errors import DataError, FahmcError, FederationError, SettingsError
from own_samplers import ServerLangevin

SITES = ("north", "south", "east")
WEIGHTS = {"north": 0.3, "south": 0.45, "east": 0.25}
CHAINS, DIMENSION, ROUND = 2, 40, 4
PLAIN, DEBIASED = FAHMC(0.1), DebiasedFAHMC(0.1, sync_unit="leapfrog")


class Played:
    """Three sites that answer a round at once, and whose answers a test may change."""

    def __init__(self, sampler: Sampler, dtype: str = "float64", arrive: tuple[str, ...] = SITES, **order: Any):
        self.calls: list[tuple[list[str], str, float, dict[str, Any]]] = []
        self.arrive = arrive
        self.silent: dict[str, int] = dict.fromkeys(SITES, 0)
        self.change: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.failures: dict[str, str] = {}
        settings: dict[str, Any] = {"model": {}, "sampler": {}, "leader": {}, "phase": "sampling", "stream": ""}
        settings |= {"seed": 1}
        settings |= {"num_chains": CHAINS, "dtype": dtype, "template": "position", "num_rows": 10}
        settings |= {"leaf_shapes": {"position": [DIMENSION]}, "weights": WEIGHTS}
        self.order = Order(**settings | order)
        exchange = self.order.exchange(sampler)
        self.replies = Layout(exchange.reply, CHAINS, np.dtype(dtype))
        rng = np.random.default_rng(1)

        def made_up(fields: dict[str, Field]) -> dict[str, np.ndarray]:
            return {
                name: np.asarray(9 * rng.normal(size=field.full_shape(CHAINS))).astype(
                    field.numpy_dtype(np.dtype(dtype))
                )
                for name, field in fields.items()
            }

        self.sent, self.state = {site: made_up(exchange.reply) for site in SITES}, made_up(exchange.state)
        self.rounds = Rounds(self.call, self.order, sampler, seconds=1.5)

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
            answer = {"site": site, "round": arguments["round_index"]} | self.reply(site, arguments)
            replies[site] = self.change.get(site, lambda answer: answer)(answer)
        return replies, wrong

    def reply(self, site: str, arguments: Any) -> dict[str, Any]:
        return {"reply": self.replies.pack(self.sent[site])}

    def advance(self):
        return self.rounds.advance(self.state, ROUND)

    def mean(self, name: str) -> np.ndarray:
        return sum((WEIGHTS[site] * self.sent[site][name] for site in SITES), start=np.zeros(()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_has_the_same_bits_in_whatever_order_replies_arrive(dtype):
    played = Played(PLAIN, dtype)
    first = played.advance().state
    assert list(first) == ["position"] and first["position"].dtype == np.dtype(dtype)
    rtol = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(first["position"], played.mean("position"), rtol=rtol, atol=rtol)
    for arrive in itertools.permutations(SITES):
        np.testing.assert_array_equal(Played(PLAIN, dtype, arrive).advance().state["position"], first["position"])
    ((sites, method, seconds, arguments),) = played.calls
    assert (sites, method, seconds) == (list(SITES), "local_round", 1.5)
    state = played.rounds.broadcast.pack(played.state)
    assert arguments == {"run": played.order.identity, "round_index": ROUND, "state": state}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_order_of_the_sum_shows_in_its_bits(dtype):
    """If it did not, the test above could not fail."""
    weights = {site: WEIGHTS[site] for site in reversed(SITES)}
    other = Played(PLAIN, dtype, weights=weights).advance().state["position"]
    assert (other != Played(PLAIN, dtype).advance().state["position"]).any()


def test_drift_and_statistics_are_those_of_the_round():
    played = Played(PLAIN)
    result, mean = played.advance(), played.mean("position")
    gaps = np.stack([played.sent[site]["position"] - mean for site in SITES], axis=1)
    np.testing.assert_allclose(result.drift_squares, (gaps**2).sum(-1), rtol=1e-12)
    assert set(result.stats) == {"client_drift", "step_size", "n_steps", "diverging"}
    drift = np.sqrt((gaps**2).sum(-1) @ list(WEIGHTS.values()))
    np.testing.assert_allclose(result.stats["client_drift"], drift, rtol=1e-12)
    assert result.is_finite.all() and result.is_finite.shape == (2, 4), "of the sites, and what they come to"


def test_a_debiased_round_hands_on_its_start_and_the_mean_gradient():
    played = Played(DEBIASED)
    state = played.advance().state
    np.testing.assert_array_equal(state["anchor"], played.state["position"])
    for name, sent in {"anchor_gradient": "gradient", "position": "position", "momentum": "momentum"}.items():
        np.testing.assert_allclose(state[name], played.mean(sent), rtol=1e-13, atol=1e-13)


def test_replies_are_averaged_summed_or_kept_each_and_merged():
    """Here as everywhere: one sum of integers that no chain owns, a potential of each client, statistics of its own."""
    played = Played(ServerLangevin(0.02))
    result, sent = played.advance(), played.sent
    again = Played(ServerLangevin(0.02)).advance()
    np.testing.assert_array_equal(again.state["position"], result.state["position"])
    moved = result.state["position"] - played.state["position"] + 0.02 * played.mean("gradient")
    assert 0.1 < np.std(moved) < 0.3, "noise of the server's own, of variance 2 h = 0.2²"
    assert (result.state["rounds"], result.state["rounds"].dtype) == (played.state["rounds"] + 1, np.int32)
    assert result.state["totals"].dtype == np.float32 and result.state["totals"].shape == (2, 2, 2)
    assert set(played.calls[0][3]["state"]) == {"position", "rounds"}, "what the server keeps is not sent"
    rows = sum(int(sent[site]["num_rows"]) for site in SITES)
    np.testing.assert_array_equal(result.stats["num_rows"], [rows, rows])
    potentials = np.stack([sent[site]["potentials"] for site in SITES])
    np.testing.assert_array_equal(result.stats["spread"], np.ptp(potentials, axis=0))
    assert result.drift_squares is None and result.is_finite.all()
    block = record(Phase("sampling", ServerLangevin(0.02), 9, 0), played.state, ROUND, [result])
    assert {name: values.shape for name, values in block.stats.items()} == dict.fromkeys(result.stats, (2, 1))


def test_a_site_that_is_silent_once_is_asked_again_and_nobody_else():
    played, undisturbed = Played(PLAIN), Played(PLAIN).advance()
    played.silent["south"] = 1
    np.testing.assert_array_equal(played.advance().state["position"], undisturbed.state["position"])
    assert [sites for sites, *_ in played.calls] == [list(SITES), ["south"]]
    assert played.calls[0][1:] == played.calls[1][1:], "it is asked the same again"


def test_who_takes_far_longer_than_ever_is_asked_again_soon(monkeypatch):
    played, clock = Played(PLAIN), itertools.count(0.0, 2.0)
    played.rounds._seconds = 60.0
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    played.advance()
    assert played.calls[-1][2] == 60.0, "nobody knows yet how long a round takes"
    played.silent["south"] = 1
    played.advance()
    assert [(sites, seconds) for sites, _, seconds, _ in played.calls[1:]] == [(list(SITES), 20.0), (["south"], 60.0)]


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
    np.testing.assert_array_equal(played.advance().state["position"], Played(PLAIN).advance().state["position"])


def test_what_nobody_asked_for_is_not_taken():
    def call(sites, method, seconds, arguments, /):
        return {site: {"from": site} for site in (*sites, "west")}, {}

    assert ask_all(call, ["south"], "echo", 1.0, {}, "to echo") == {"south": {"from": "south"}}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("sampler", "field"), [(PLAIN, "position"), *((DEBIASED, name) for name in ("position", "momentum", "gradient"))]
)
def test_a_reply_that_is_not_finite_names_chain_and_client(sampler, field, value):
    played, phase = Played(sampler), Phase("sampling", sampler, 9, 0)
    played.sent["east"][field][1, 2] = value
    block = record(phase, played.state, ROUND, [played.advance()])
    assert block.divergence == (1, ROUND, 2)
    assert (block.num_rounds, block.positions.shape, block.state) == (0, (2, 0, DIMENSION), played.state)
    played.sent["south"][field][:, 0] = value  # of several, the first chain's first client
    assert record(phase, played.state, ROUND, [played.advance()]).divergence == (0, ROUND, 1)


def test_a_number_of_no_chain_that_is_not_finite_is_every_chain_s():
    class Common(Sampler):
        def exchange(self, dimension):
            fields = {"position": Field((dimension,)), "level": Field((), per_chain=False)}
            return Exchange(fields, fields, lambda carried: carried, lambda keys, index, state, mean: mean)

    played = Played(Common())  # type: ignore
    assert played.advance().is_finite.all()
    played.sent["south"]["level"] = np.asarray(np.nan)
    np.testing.assert_array_equal(played.advance().is_finite, [[True, False, True, False]] * 2)


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
    ("answer", "expected", "words"),
    [
        (
            {"refused": "FIT", "words": []},
            DataError,
            r"^Site 'south' refuses in round 4: its rows do not fit the mod",
        ),
        (
            {"refused": "NOT_READY"},
            FederationError,
            "refuses in round 4: this site was not told to make ready for",
        ),
        ({"refused": "SETTINGS", "words": None}, SettingsError, "the model or the sampler cannot be made here"),
        # What is not on the list is not passed on, and words only if they were the server's own.
        (
            {"refused": "row 7 has 31.5", "words": []},
            FederationError,
            r"refuses in round 4, in a way that is not know",
        ),
        ({"refused": ["FIT"]}, FederationError, "in a way that is not known here"),
        ({"refused": "__init__"}, FederationError, "in a way that is not known here"),
        ({"refused": None, "kind": "DataError"}, FederationError, "in a way that is not known here"),
        ({"refused": "GAPS", "words": ["age of row 7"]}, DataError, "lacks values in columns that were asked for"),
        ({"refused": "GAPS", "words": [31.5, {}]}, DataError, "lacks values in columns that were asked for"),
    ],
)
def test_a_refusal_is_one_of_the_list_with_the_site_s_name(answer, expected, words):
    played = Played(PLAIN)
    played.change["south"] = lambda reply: answer
    with pytest.raises(FahmcError, match=words) as refusal:
        played.advance()
    assert type(refusal.value) is expected and not re.search("7|31", str(refusal.value))


ARRAYS = {"x": {"dtype": "float64", "shape": [2]}, "y": {"dtype": "int32", "shape": []}}


def report(num_rows: Any = 10, arrays: Any = ARRAYS, **more: Any) -> dict[str, Any]:
    return {"num_rows": num_rows, "mark": "m", "arrays": arrays} | more


def take_arrays(**answers: dict[str, Any]):
    def call(sites, method, seconds, arguments, /):
        if method == "hello":
            return {site: {"versions": own_versions()} for site in sites}, {}
        if method == "greet":
            return {site: {"hello": {"statement": "", "signature": "", "certificate": ""}} for site in sites}, {}
        if method == "agree":
            return {site: {"secure_sum": "off"} for site in sites}, {}
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
        (report(arrays={"x": {"dtype": "bool", "shape": [10**4, 10**4]}}), FederationError, "Site 'south' described"),
        (report(arrays={"x": {"dtype": "O", "shape": []}}), FederationError, "Site 'south' described"),
        (report(arrays={"x": {"dtype": "float64", "shape": [-1]}}), FederationError, "Site 'south' described"),
        (report(num_rows=2**60), FederationError, "Site 'south' described"),
        ({"refused": "ARRAYS"}, DataError, r"^Site 'south' refuses to give its arrays: this site's arrays cannot"),
    ],
)  # fmt: skip
def test_a_survey_refuses_sites_that_do_not_fit(answer, error, words):
    with pytest.raises(error, match=words):
        survey(take_arrays(south=answer), SITES, None, None, 1.0)


def test_a_survey_refuses_weights_that_do_not_fit():
    with pytest.raises(DataError, match="Weights and clients do not match: east, west"):
        survey(take_arrays(), SITES, None, {"north": 0.2, "south": 0.3, "west": 0.5}, 1.0)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (
            {"jax": "0.9.1"},
            r"^Site 'south' runs fahmc [^ ]*, jax 0\.9\.1 and nvflare .*, the server fahmc .*, jax {jax}",
        ),
        ({"jax": "0.9.1"}, r"the same jax up to the second number, to compute the same: install jax {short}\.\* there"),
        ({"fahmc": "0.0.9"}, r"runs fahmc 0\.0\.9, jax .* They need the same fahmc up to the second number"),
        ({"nvflare": "2.10.0"}, r"and nvflare 2\.10\.0, the server .* They need the same nvflare up to"),
        (
            {"nvflare": None},
            r"^Site 'south' does not tell its versions; the server runs fahmc .*, jax {jax}",
        ),
    ],
)
def test_sites_of_other_versions_are_refused_by_name_before_anything_else(theirs, words):
    own, asked = own_versions(), []

    def call(sites, method, seconds, arguments, /):
        asked.append(method)
        versions = {site: own | (theirs if site == "south" else {}) for site in sites}
        return {site: {"versions": versions[site]} for site in sites}, {}

    short = re.escape(".".join(own["jax"].split(".")[:2]))
    with pytest.raises(FederationError, match=words.format(jax=re.escape(own["jax"]), short=short)):
        survey(call, SITES, None, None, 1.0)
    assert asked == ["hello"]


def test_versions_that_differ_in_the_last_number_agree():
    own = own_versions()
    check_versions("Site 'south'", own)
    check_versions("Site 'south'", {name: f"{version.rpartition('.')[0]}.99" for name, version in own.items()})


# Rounds whose replies are known in sums alone


class Masked(Played):
    """The same three sites, each behind fixed point; `test_flare_masks` has the masks, which change no bit of a sum."""

    def __init__(self, sampler: Sampler, dtype: str = "float64", **order: Any):
        super().__init__(sampler, dtype, **order)
        self.rounds = Rounds(self.call, self.order, sampler, seconds=1.5, is_masked=True)
        exchange, shares = self.order.exchange(sampler), Shares(len(SITES), ())
        self.hidden = {site: MaskedReplies(self.order, exchange, shares, site) for site in SITES}

    def reply(self, site: str, arguments: Any) -> dict[str, Any]:
        index, is_wide, packed = (arguments[name] for name in ("round_index", "is_wide", "state"))
        return self.hidden[site].hide(index, is_wide, packed, self.state, self.sent[site])


@pytest.mark.parametrize(
    ("sampler", "dtype"), [(DEBIASED, "float32"), (DEBIASED, "float64"), (SplitHMC(num_steps=3), "float64")]
)
def test_a_sum_gives_the_round_of_single_replies(sampler, dtype):
    masked, plain = Masked(sampler, dtype), Played(sampler, dtype)
    found, expected = masked.advance(), plain.advance()
    rtol = 1e-5 if dtype == "float32" else 1e-12
    for name, value in expected.state.items():
        np.testing.assert_allclose(found.state[name], value, rtol=rtol, atol=10 * rtol)
        assert found.state[name].dtype == value.dtype
    assert found.stats.keys() == expected.stats.keys() and found.draw.keys() == expected.draw.keys()
    for name, value in expected.stats.items():
        np.testing.assert_allclose(found.stats[name], value, rtol=max(rtol, 1e-7))
    np.testing.assert_array_equal(found.is_finite, expected.is_finite)
    assert found.drift_squares is None, "nobody knows how far each site strays"
    [(_, _, _, arguments)] = masked.calls
    assert not arguments["is_wide"]


def test_moves_too_large_for_narrow_numbers_are_asked_for_as_wide_ones():
    masked, plain = Masked(PLAIN), Played(PLAIN)
    for played in (masked, plain):
        played.sent["south"]["position"][1, 3] = 3e9
    found = masked.advance()
    assert [arguments["is_wide"] for *_, arguments in masked.calls] == [False, True]
    np.testing.assert_allclose(found.state["position"], plain.advance().state["position"], rtol=1e-12, atol=1e-11)
    assert found.is_finite.all()


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30])
def test_a_site_without_numbers_is_named_with_the_chain_and_tells_nothing_else(number):
    masked = Masked(DEBIASED)
    masked.sent["south"]["gradient"][1, 3] = number
    told = []
    masked.change["south"] = lambda answer: told.append(answer) or answer
    result = masked.advance()
    assert told == [{"site": "south", "round": ROUND, "unfit": [1]}] * 2
    np.testing.assert_array_equal(np.argwhere(~result.is_finite), [[1, SITES.index("south")]])
    assert result.is_finite.shape == (CHAINS, len(SITES) + 1)
    block = record(Phase("sampling", DEBIASED, 9, 0), masked.state, ROUND, [result])
    assert block.divergence == (1, ROUND, SITES.index("south")) and block.num_rounds == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reply": b""}, r"^Site 'south' sent 0 bytes in round 4; \d+ bytes were expected as its share of a sum\.$"),
        ({"reply": None}, "^Site 'south', in round 4, sent neither its share of the sum nor the chains that it"),
        ({"reply": {"position": b""}}, "sent neither its share"),
        ({"unfit": [0]}, "sent neither its share"),
        ({"reply": None, "unfit": []}, "sent neither its share"),
        ({"reply": None, "unfit": [CHAINS]}, "sent neither its share"),
        ({"reply": None, "unfit": [True]}, "sent neither its share"),
        ({"reply": None, "unfit": "all"}, "sent neither its share"),
        ({"round": 3}, "Site 'south' replied as 'south' for round 3, but round 4 was asked for"),
        ({"refused": "NOT_READY"}, "^Site 'south' refuses in round 4: this site was not told to make ready"),
    ],
)
def test_a_share_that_is_none_is_refused(change, words):
    masked = Masked(PLAIN)
    masked.change["south"] = lambda answer: answer | change
    with pytest.raises(FederationError, match=words):
        masked.advance()


def test_a_changed_share_is_refused():
    masked = Masked(PLAIN)
    masked.change["south"] = lambda answer: answer | {"reply": answer["reply"][:9] + b"\7" + answer["reply"][10:]}
    with pytest.raises(FederationError, match="masked replies in round 4 do not add up: a byte was changed on the way"):
        masked.advance()
