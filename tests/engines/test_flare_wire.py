"""Messages keep every bit on their way, whatever their shapes and dtypes, and what is not one is refused."""

import json

import numpy as np
import pytest

from fahmc import FAHMC, DebiasedFAHMC, Field
from fahmc.engines.flare import messages
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
    messages.Begin(4, 10, None, 2, messages.arrays_to_text({"position": np.ones(3)})),
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
        messages.read_request(values)


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


def test_arrays_that_would_need_code_are_not_taken():
    with pytest.raises(ValueError):
        messages.text_to_arrays("not base 64!")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        messages.text_to_arrays(messages.arrays_to_text({"position": np.array([print])}))
