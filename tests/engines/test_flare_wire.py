"""Messages of a round keep every bit on their way, and what is not one is refused in the sender's name."""

import numpy as np
import pytest

from fahmc import FAHMC, DebiasedFAHMC
from fahmc.dynamics.debiased import DebiasedReply, DebiasedState
from fahmc.dynamics.fa_hmc import FAHMCState
from fahmc.engines.flare.wire import from_text, reply_layout, state_layout, to_text
from fahmc.errors import FederationError

SHAPE = (2, 3)
# What each sampler broadcasts and gets back: the momentum travels only where T counts leapfrog steps.
MESSAGES = [
    (FAHMC(0.1), state_layout, FAHMCState, ["position"]),
    (FAHMC(0.1), reply_layout, FAHMCState, ["position"]),
    (FAHMC(0.1, sync_unit="leapfrog"), state_layout, FAHMCState, ["position", "momentum"]),
    (FAHMC(0.1, sync_unit="leapfrog"), reply_layout, FAHMCState, ["position", "momentum"]),
    (DebiasedFAHMC(0.1), state_layout, DebiasedState, ["position", "anchor", "anchor_gradient"]),
    (DebiasedFAHMC(0.1), reply_layout, DebiasedReply, ["position", "gradient"]),
    (
        DebiasedFAHMC(0.1, sync_unit="leapfrog"),
        state_layout,
        DebiasedState,
        ["position", "momentum", "anchor", "anchor_gradient"],
    ),
    (DebiasedFAHMC(0.1, sync_unit="leapfrog"), reply_layout, DebiasedReply, ["position", "momentum", "gradient"]),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("sampler", "layout_of", "kind", "fields"), MESSAGES)
def test_every_bit_arrives(sampler, layout_of, kind, fields, dtype):
    layout = layout_of(sampler, SHAPE, np.dtype(dtype))
    rng = np.random.default_rng(3)
    arrays = {name: rng.normal(size=SHAPE).astype(dtype) for name in fields}
    # Values that a detour over text or another precision would change.
    arrays[fields[-1]][0] = [-0.0, np.nextafter(np.dtype(dtype).type(1), np.dtype(dtype).type(2)), np.nan]
    message = kind(**{name: arrays.get(name) for name in kind._fields})
    packed = layout.pack(message)
    assert list(packed) == fields
    assert all(
        content == arrays[name].astype(f"<f{arrays[name].itemsize}").tobytes() for name, content in packed.items()
    )
    assert {len(content) for content in packed.values()} == {layout.num_bytes} == {6 * np.dtype(dtype).itemsize}
    arrived = layout.unpack(packed, "the server")
    assert type(arrived) is kind
    for name in kind._fields:
        values = getattr(arrived, name)
        if name not in fields:
            assert values is None
            continue
        assert values.dtype == np.dtype(dtype) and values.shape == SHAPE
        assert values.tobytes() == arrays[name].tobytes()


def test_what_is_not_a_message_is_refused_in_its_sender_s_name():
    layout = reply_layout(DebiasedFAHMC(0.1), SHAPE, np.dtype("float32"))
    good = {"position": bytes(24), "gradient": bytes(24)}
    layout.unpack(good, "Site 'south'")
    expected = r"\['position', 'gradient'\] were expected\."
    numbers = r"24 bytes were expected: 2 chains of 3 float32 numbers\."
    for fields, words in [
        ({"position": bytes(24)}, rf"sent \['position'\]; {expected}"),
        (good | {"momentum": bytes(24)}, rf"sent \['gradient', 'momentum', 'position'\]; {expected}"),
        ({}, rf"sent \[\]; {expected}"),
        (None, rf"sent NoneType; {expected}"),
        ([bytes(24)], rf"sent list; {expected}"),
        (good | {"gradient": np.zeros(SHAPE, "float32")}, rf"sent ndarray for gradient; {numbers}"),
        (good | {"gradient": "0" * 24}, rf"sent str for gradient; {numbers}"),
        (good | {"position": bytes(23)}, rf"sent 23 bytes for position; {numbers}"),
        (good | {"position": bytes(48)}, rf"sent 48 bytes for position; {numbers}"),
        (good | {"position": b""}, rf"sent 0 bytes for position; {numbers}"),
    ]:
        with pytest.raises(FederationError, match=f"^Site 'south' {words}$"):
            layout.unpack(fields, "Site 'south'")


def test_bytes_survive_a_json_message():
    content = bytes(range(256))
    assert to_text(content).isascii() and from_text(to_text(content)) == content
    with pytest.raises(ValueError):
        from_text("not base 64!")
