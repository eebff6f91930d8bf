"""Messages keep every bit on their way, whatever their shapes and dtypes, and what is not one is refused."""

import json
from typing import Any

import numpy as np
import pytest

from fahmc import FAHMC, DebiasedFAHMC, Field
from fahmc.engines.flare import messages
from fahmc.engines.flare.arrays import arrays_to_text, text_to_arrays
from fahmc.engines.flare.versions import own_versions
from fahmc.engines.flare.wire import Layout
from fahmc.engines.run import Block
from fahmc.errors import FederationError

CHAINS = 2
MANY_KINDS = {
    "position": Field((3,)),
    "level": Field(()),
    "matrix": Field((2, 2)),
    "counts": Field((3,), "int32"),
    "flag": Field((), "bool"),
    "coarse": Field((3,), "float32"),
    "common": Field((2, 1), per_chain=False),
    "clock": Field((), "int64", per_chain=False),
}
SHAPES = {"position": (2, 3), "level": (2,), "matrix": (2, 2, 2), "counts": (2, 3), "flag": (2,), "coarse": (2, 3)}
SHAPES |= {"common": (2, 1), "clock": ()}


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_bit_arrives(precision):
    layout, rng = Layout(MANY_KINDS, CHAINS, np.dtype(precision)), np.random.default_rng(3)
    sent = {
        name: (50 * rng.normal(size=SHAPES[name])).astype(precision if field.dtype == "float" else field.dtype)
        for name, field in MANY_KINDS.items()
    }
    # Values that a detour over text or another precision would change.
    one = np.dtype(precision).type(1)
    sent["position"][0] = [-0.0, np.nextafter(one, one + 1), np.nan]
    packed = layout.pack(sent)
    assert sum(map(len, packed.values())) == layout.num_bytes
    arrived = layout.unpack(packed, "the server")
    assert list(arrived) == list(MANY_KINDS)
    for name, values in arrived.items():
        assert (values.dtype, values.shape) == (sent[name].dtype, SHAPES[name])
        assert values.tobytes() == np.asarray(sent[name]).tobytes()
    # The same bytes on machines of either kind.
    assert packed["counts"] == sent["counts"].astype("<i4").tobytes()
    assert layout.pack({name: value.astype(value.dtype.newbyteorder(">")) for name, value in sent.items()}) == packed


@pytest.mark.parametrize(
    ("sampler", "state", "reply"),
    [
        (FAHMC(0.1), "position", "position"),
        # The momentum travels only where T counts leapfrog steps.
        (FAHMC(0.1, sync_unit="leapfrog"), "position momentum", "position momentum"),
        (DebiasedFAHMC(0.1), "position anchor anchor_gradient", "position gradient"),
    ],
)
def test_what_samplers_send(sampler, state, reply):
    exchange = sampler.exchange(3)
    assert (list(exchange.state), list(exchange.reply)) == (state.split(), reply.split())
    assert {field for message in exchange[:2] for field in message.values()} == {Field((3,))}


GOOD = {"position": bytes(24), "level": bytes(8)}
POSITION = r"24 bytes were expected: float32 numbers of shape \[2, 3\]\."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"position": bytes(24)}, r"sent \['position'\]; \['position', 'level'\] were expected\."),
        (GOOD | {"momentum": bytes(24)}, r"sent \['level', 'momentum', 'position'\]; \['position', 'level'\] were"),
        (None, r"sent NoneType; \['position', 'level'\] were expected\."),
        ([bytes(24)], r"sent list; \['position', 'level'\] were expected\."),
        (GOOD | {"position": np.zeros((2, 3), "float32")}, f"sent ndarray for position; {POSITION}"),
        (GOOD | {"position": "0" * 24}, f"sent str for position; {POSITION}"),
        (GOOD | {"position": bytes(23)}, f"sent 23 bytes for position; {POSITION}"),
        (GOOD | {"position": bytes(48)}, f"sent 48 bytes for position; {POSITION}"),
        (GOOD | {"level": b""}, r"sent 0 bytes for level; 8 bytes were expected: float32 numbers of shape \[2\]\."),
    ],
)
def test_what_is_not_a_message_is_refused_in_its_sender_s_name(content, words):
    layout = Layout({"position": Field((3,)), "level": Field(())}, CHAINS, np.dtype("float32"))
    layout.unpack(GOOD, "Site 'south'")
    with pytest.raises(FederationError, match=f"^Site 'south' {words}"):
        layout.unpack(content, "Site 'south'")


REQUESTS = [
    messages.Status(),
    messages.Survey(["north"], {"outcome": "ill"}, {"north": 1.0}, 3.0),
    messages.Survey(["north"], None, None, 3.0),
    messages.Prepare("{}", 3.0, 1.0),
    messages.Begin(4, 10, None, 2, arrays_to_text({"position": np.ones(3)})),
    messages.Fetch("begun", 4, 2),
    messages.Stop(),
    messages.Close(),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_come_back(request_):
    assert messages.read_request(json.loads(json.dumps(messages.write_request(request_)))) == request_


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"request": "Popen"},
        {"request": ["Stop"]},
        {"request": "Fetch", "begun": "it", "first_round": 4},
        {"request": "Fetch", "begun": "it", "first_round": "four", "num_rounds": 2},
    ],
)
def test_what_is_not_a_request_is_refused(values):
    with pytest.raises(FederationError, match="cannot read the request; is its fahmc as new as the analyst's"):
        messages.read_request({"versions": own_versions(), **values})


@pytest.mark.parametrize("theirs", [None, "0.1", {}, {"jax": "0.9.1"}, own_versions() | {"jax": "0.9.1"}])
def test_an_analyst_of_other_versions_is_refused_whatever_he_asks(theirs):
    with pytest.raises(
        FederationError, match=r"^The analyst (runs .* jax 0\.9\.1|does not tell).* the server (runs )?fahmc"
    ):
        messages.read_request(messages.write_request(messages.Status()) | {"versions": theirs})


@pytest.mark.parametrize(("squares", "gradients"), [(np.ones((2, 3)), None), (None, np.ones((2, 4, 3)))])
def test_blocks_come_back(squares, gradients):
    state = {"position": np.arange(6.0).reshape(2, 3), "clock": np.int32(7)}
    stats = {"client_drift": np.ones((2, 4)), "n_steps": np.ones((2, 4), "int32"), "diverging": np.zeros((2, 4), bool)}
    sent = Block(5, 9, np.full((2, 4, 3), np.nextafter(1, 2)), stats, squares, state, gradients=gradients)
    block = messages.text_to_block(json.loads(json.dumps(messages.block_to_text(sent))))
    assert (block.first_round, block.num_rounds, block.divergence) == (5, 9, None)
    assert (block.drift_squares is None) == (squares is None)
    assert (block.gradients is None) == (gradients is None)
    np.testing.assert_array_equal(block.positions, sent.positions)
    for found, expected in ((block.stats, stats), (block.state, state)):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)
            assert found[name].dtype == values.dtype


def written(**changes: Any) -> str:
    whole = json.loads(arrays_to_text({"x": np.arange(6.0).reshape(2, 3)}))
    dtype, shape, content = whole["x"]
    return json.dumps({"x": list(({"dtype": dtype, "shape": shape, "content": content} | changes).values())})


def test_arrays_take_no_more_than_their_text():
    np.testing.assert_array_equal(text_to_arrays(written())["x"], np.arange(6.0).reshape(2, 3))
    for text in (
        "not JSON!",
        "[]",
        "[" * 10_000,
        written(dtype="object"),
        written(dtype="S1000000"),
        written(shape=[2, 2]),
        written(shape=[2**40, 2**40]),
        written(shape=[-2, -3]),
        written(content="not base 64!"),
        written(content=""),
    ):
        with pytest.raises(FederationError, match="cannot be read"):
            text_to_arrays(text)
    with pytest.raises(FederationError, match="position holds object; only numbers are sent"):
        arrays_to_text({"position": np.array([print])})
    with pytest.raises(FederationError, match="handed over rounds in a form that cannot be read"):
        messages.text_to_block(written())


def test_a_state_is_checked_against_what_the_order_declares():
    layout = Layout(
        {"position": Field((3,)), "clock": Field((), "int32", per_chain=False)}, CHAINS, np.dtype("float32")
    )
    state = {"position": np.zeros((2, 3), "float32"), "clock": np.asarray(1, "int32")}
    layout.check(state, "The analyst")
    for change, words in (
        (
            {"position": np.zeros((2, 4), "float32")},
            r"sent float32 numbers of shape \[2, 4\] for position; expected is",
        ),
        ({"position": np.zeros((2, 3))}, "sent float64 numbers"),
        ({"more": np.zeros(1)}, r"sent float64 numbers of shape \[1\] for more; expected is nothing\."),
    ):
        with pytest.raises(FederationError, match=f"^The analyst {words}"):
            layout.check(state | change, "The analyst")
    with pytest.raises(FederationError, match="sent nothing for clock; expected is int32 numbers of shape"):
        layout.check({"position": state["position"]}, "The analyst")
