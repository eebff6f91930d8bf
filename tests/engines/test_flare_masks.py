"""What the server receives in a masked run: uniform bytes that tell the sum of all sites, and nothing else.

Keys are new in every run of these tests, so statistics are not repeatable: each check fails by chance with probability
at most `FALSE_ALARM`, and the same check has to fail where there are no masks.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from test_flare_work import ASKED, caller, workers

from assertions import FALSE_ALARM, threshold
from clinics import write_tables
from fahmc import FAHMC
from fahmc.dynamics.momentum import draw_momentum
from fahmc.engines.fixed_point import WORD
from fahmc.engines.flare.agreement import Party
from fahmc.engines.flare.masks import Shares, open_sum
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.rounds import Rounds
from fahmc.engines.flare.survey import survey
from fahmc.engines.flare.work import Work
from fahmc.engines.order import Order
from fahmc.errors import FederationError
from kit_forge import Authority
from own_samplers import ServerLangevin

SITES: tuple[str, ...] = ("north", "south", "east")
KNOWN = Authority().identities(SITES)
PLAIN: dict[str, Shares] = {name: Shares(len(SITES), ()) for name in SITES}
SHAPE = (2, 20)


def masked(context: str = "an order") -> dict[str, Shares]:
    told = {name: Party(identity, "required") for name, identity in KNOWN.items()}
    hellos = json.dumps({name: party.hello for name, party in told.items()})
    return {name: party.agree(hellos).shares(context) for name, party in told.items()}


def hide(
    shares: Mapping[str, Shares], values: Mapping[str, np.ndarray], label: str = "round 1", broadcast: bytes = bytes(32)
) -> dict[str, bytes]:
    return {name: shares[name].hide(label, broadcast, {"move": values[name]}, {"move"}) for name in SITES}


def opened(contents: Mapping[str, bytes]) -> np.ndarray:
    return open_sum(contents, {"move": SHAPE}, during="in round 1", narrow={"move"})["move"]


def moves(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: 0.01 * rng.normal(size=SHAPE) for name in SITES}


def is_uniform(content: bytes, tries: int = 1) -> bool:
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    return bool(stats.chisquare(counts).pvalue > FALSE_ALARM / tries)


@pytest.mark.parametrize("is_masked", [True, False])
def test_what_a_site_sends_is_uniform(is_masked):
    rng, shares = np.random.default_rng(1), masked() if is_masked else PLAIN
    sent = [hide(shares, moves(rng), f"round {number}") for number in range(300)]
    for name in SITES:
        assert is_uniform(b"".join(contents[name] for contents in sent), len(SITES)) == is_masked


@pytest.mark.parametrize("is_masked", [True, False])
def test_data_with_equal_sums_cannot_be_told_apart(is_masked):
    """A classifier sees all that the server does, of two kinds of data, and has to say which is which."""
    rng, shares = np.random.default_rng(2), masked() if is_masked else PLAIN
    shift, labels, seen, sums = np.full(SHAPE, 0.02), rng.integers(0, 2, 1200), [], []
    for number, label in enumerate(labels):
        values = moves(rng)
        values |= {"north": values["north"] + label * shift, "south": values["south"] - label * shift}
        contents = hide(shares, values, f"round {number}")
        sums.append(opened(contents))
        seen.append(np.frombuffer(b"".join(contents.values()), "<i8").astype(float))
    features = np.array(seen)
    features /= features.std(axis=0)
    half = len(labels) // 2
    model = LogisticRegression(max_iter=200).fit(features[:half], labels[:half])
    right = int((model.predict(features[half:]) == labels[half:]).sum())
    cannot_tell = stats.binomtest(right, len(labels) - half).pvalue > FALSE_ALARM
    assert cannot_tell == is_masked
    assert np.abs(np.corrcoef(np.mean(sums, axis=(1, 2)), labels)[0, 1]) < threshold(1) / len(labels) ** 0.5


def test_the_sum_has_the_bits_of_fixed_point_without_masks_in_whatever_order():
    values = moves(np.random.default_rng(3))
    hidden, plain = hide(masked(), values), hide(PLAIN, values)
    assert all(hidden[name] != plain[name] for name in SITES)
    np.testing.assert_array_equal(opened(hidden), opened(plain))
    np.testing.assert_array_equal(opened(dict(reversed(hidden.items()))), opened(plain))
    np.testing.assert_allclose(opened(hidden), sum(values.values()), rtol=0, atol=len(SITES) * 2**-45)


def test_the_same_message_has_the_same_bytes_and_any_other_has_masks_of_its_own():
    """What a server would learn by asking twice: the difference of two messages, were their masks the same."""
    shares, values = masked(), dict.fromkeys(SITES, np.zeros((2, 5000)))
    first = hide(shares, values)
    assert hide(shares, values) == first
    others = {
        "broadcast": hide(shares, values, broadcast=b"\1" * 32),
        "label": hide(shares, values, label="round 2"),
        "context": hide(masked("another order"), values),
        "job": hide(masked(), values),
    }
    for what, other in others.items():
        for name in SITES:
            gap = np.frombuffer(first[name], WORD) - np.frombuffer(other[name], WORD)
            assert is_uniform(gap.tobytes(), len(others) * len(SITES)), f"another {what} has masks that are related"


def test_masks_of_one_message_are_unrelated_to_each_other():
    """North's are the sum of two masks; south has one of them, and with it no more than bytes."""
    contents = {name: np.frombuffer(content, WORD) for name, content in hide(masked(), BIG).items()}
    for one, other in (("north", "south"), ("south", "east"), ("north", "east")):
        for gap in (contents[one] - contents[other], contents[one] + contents[other]):
            assert is_uniform(gap.tobytes(), 6)


BIG: dict[str, np.ndarray] = {name: np.zeros((2, 5000)) for name in SITES}


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("place", [0, 7, 100, -1])
def test_a_flipped_byte_is_noticed(place):
    contents = hide(masked(), moves(np.random.default_rng(5)))
    opened(contents)
    contents["south"] = flipped(contents["south"], place)
    with pytest.raises(FederationError, match="masked replies in round 1 do not add up: a byte was changed on the way"):
        opened(contents)


def test_masks_that_do_not_cancel_are_noticed():
    values, shares = moves(np.random.default_rng(6)), masked()
    contents = hide(shares, values)
    for other in (
        hide(shares, values, broadcast=b"\1" * 32),
        hide(shares, values, label="round 2"),
        hide(masked(), values),
        hide(PLAIN, values),
    ):
        with pytest.raises(FederationError, match="do not add up"):
            opened(contents | {"south": other["south"]})
    with pytest.raises(FederationError, match=r"Site 'south' sent 8 bytes in round 1; 328 bytes were expected as its"):
        opened(contents | {"south": bytes(8)})
    with pytest.raises(FederationError, match=r"Site 'south' sent NoneType in round 1"):
        opened(contents | {"south": None})  # type: ignore


# Three sites with rows


SAMPLER = FAHMC(0.05, num_leapfrog_steps=1)
ETA = 0.05
CLIENT: Any = None
"""Of no use for a momentum that all have in common."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"))


def made_ready(tables, **rules: Any) -> tuple[dict[str, Work], Order]:
    work = workers(tables, **rules)
    told = survey(caller(work), list(work), ASKED, None, 1.0)
    sampler = {"name": "FAHMC", "step_size": ETA, "num_leapfrog_steps": 1}
    order = Order(
        model={"name": "logistic_regression", "prior_scale": 2.0, "feature_names": ["age", "group[B]", "group[C]"]},
        sampler=sampler,
        leader=sampler,
        phase="sampling",
        stream="",
        seed=1,
        num_chains=2,
        dtype="float64",
        template={"dict": [["coefficients", "coefficients"], ["intercept", "intercept"]]},
        leaf_shapes={"coefficients": [3], "intercept": []},
        weights=dict(zip(SITES, told["weights"], strict=True)),
        num_rows=sum(told["sizes"].values()),
    )
    return work, order


@pytest.fixture(scope="module")
def at_work(tables):
    work, order = made_ready(tables)
    for site in work.values():
        site.prepare(order.text)
    return work, order


def states(number: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [{"position": rng.normal(size=(2, 4))} for _ in range(number)]


def gradient_here(work: Work, order: Order, position: np.ndarray) -> np.ndarray:
    """Return the gradient of the site's rows, by hand: [chain, dim]."""
    rows: Any = work._rows
    x = np.column_stack([rows["x"], np.ones(len(rows["x"]))])
    chances = 1 / (1 + np.exp(-position @ x.T))
    return (order.num_rows / len(x)) * (chances - rows["y"]) @ x


@pytest.mark.parametrize("is_masked", [True, False])
def test_the_formula_for_a_site_s_gradient_finds_nothing_in_a_masked_reply(at_work, is_masked):
    """θ' = θ + η p − η²/2 ∇f(θ), solved for ∇f(θ) as in docs/security.md: with one leapfrog step a round."""
    (work, order), like = at_work, jnp.zeros(4)
    south, found, true = work["south"], [], []
    chains = jax.vmap(lambda keys: jax.vmap(lambda t: draw_momentum(keys, t, like, CLIENT, 1.0))(np.arange(60)))
    momenta = np.asarray(chains(order.chain_keys()))
    for index, state in enumerate(states(60)):
        if is_masked:
            content = answer(south, order, index, state)["reply"]
            words = np.frombuffer(content, "<i8")[: state["position"].size].reshape(state["position"].shape)
            move = words * 2.0**-44 / order.weights["south"]
        else:
            assert south._program is not None
            move = south._program.reply(index, state)["position"] - state["position"]
        found.append(2 * (ETA * momenta[:, index] - move) / ETA**2)
        true.append(gradient_here(south, order, state["position"]))
    correlation = np.corrcoef(np.ravel(found), np.ravel(true))[0, 1]
    if is_masked:
        assert abs(correlation) < threshold(1) / np.size(found) ** 0.5
    else:
        assert correlation > 0.99, "without masks it is the gradient, but for the prior's part"


def answer(site: Work, order: Order, index: int, state: Mapping[str, np.ndarray], is_wide: bool = False):
    packed = {name: value.tobytes() for name, value in state.items()}
    return site.local_round(order.identity, index, packed, is_wide)


def test_a_round_is_that_of_plain_replies_and_a_new_job_has_its_bits(at_work, tables):
    work, order = at_work
    [state] = states(1)
    result = Rounds(caller(work), order, SAMPLER, 1.0, is_masked=True).advance(state, 5)
    replies: Any = {name: site._program.reply(5, state)["position"] for name, site in work.items()}  # type: ignore
    mean = sum(order.weights[name] * reply for name, reply in replies.items())
    np.testing.assert_allclose(result.state["position"], mean, rtol=0, atol=1e-12)
    spread = sum(order.weights[name] * ((reply - mean) ** 2).sum(-1) for name, reply in replies.items())
    np.testing.assert_allclose(result.stats["client_drift"], np.sqrt(spread), rtol=1e-6)
    assert result.drift_squares is None and result.is_finite.all() and result.is_finite.shape == (2, 4)
    first = answer(work["south"], order, 5, state)
    assert set(first) == {"site", "round", "reply"} and answer(work["south"], order, 5, state) == first
    for other in (answer(work["south"], order, 6, state), answer(work["south"], order, 5, states(2)[1])):
        moves, others = (np.frombuffer(told["reply"], "<i8")[:8] for told in (first, other))
        assert (np.abs((moves - others).astype(float)) > 2.0**53).any(), (
            "what a server learns by asking twice is no difference of replies"
        )
    again, same = made_ready(tables)
    for site in again.values():
        site.prepare(same.text)
    assert same.text == order.text and answer(again["south"], order, 5, state)["reply"] != first["reply"]
    restarted = Rounds(caller(again), order, SAMPLER, 1.0, is_masked=True).advance(state, 5)
    np.testing.assert_array_equal(restarted.state["position"], result.state["position"])


def test_a_site_answers_in_masks_only_as_was_agreed(tables):
    work, order = made_ready(tables, minimum_sites=1, maximum_weight=1.0)
    south = work["south"]

    def refused(site: Work, order: Order) -> Refusal:
        with pytest.raises(Refused) as refusal:
            site.prepare(order.text)
        return refusal.value.refusal

    shares = {
        "a site too few": ({"north": 0.5, "south": 0.5}, Refusal.ROSTER),
        "nobody else": ({"south": 1.0}, Refusal.ROSTER),
        "hardly any of the others": ({"north": 1e-9, "south": 0.3, "east": 1e-9}, Refusal.WEIGHTS),
    }
    for weights, expected in shares.values():
        assert refused(south, replace(order, weights=weights)) == expected
    listed = workers(tables, own_samplers=["own_samplers:ServerLangevin"])
    survey(caller(listed), list(listed), ASKED, None, 1.0)
    told = replace(order, sampler={"object": "own_samplers:ServerLangevin", "step": 0.1})
    assert ServerLangevin(0.1).exchange(4).reply["potentials"].combine == "each"
    assert refused(listed["south"], told) == Refusal.NOT_SUMMABLE
    south._agreement = None
    assert refused(south, order) == Refusal.NOT_AGREED


def test_one_order_is_not_answered_of_two_contents(at_work, tables):
    """The same broadcast in the same round has the same masks, so it must have the same answer."""
    work, order = at_work
    south, before = work["south"], work["south"]._mark
    south._mark = "of other rows"
    with pytest.raises(Refused, match="this run was begun with other rows"):
        south.prepare(order.text)
    south._mark = before
    south.prepare(order.text)
