"""A secure sum: each site hides its numbers under masks that cancel when all sites' messages are added up.

    site c sends      y_c = x_c + Σ_{d after c} m_cd − Σ_{d before c} m_dc     mod 2⁶⁴,  x_c in fixed point
    the server adds   Σ_c y_c = Σ_c x_c                                        exactly

m_cd is the stream of ChaCha20 under a key that only c and d can make (`agreement`) and that is made anew for every
message, from its label and the SHA-256 of what was broadcast. So the same call again gives the same bytes, which tells
nothing new; any other has a mask of its own, and a server that asks twice cannot take differences. To the server each
y_c alone is a string of uniform random bytes, and any N − 1 of them are independent.

The words end with a check (`fahmc.engines.fixed_point`), masked like the others. It shows the server that a byte was
changed on the way, or that masks were made of other keys, labels or broadcasts and do not cancel.

At a site, after keys were agreed upon in this job:

    shares = agreement.shares(order.text)                            # what all else that the values follow from says
    content = shares.hide("round 7", digest, {"position": array, ...}, narrow={"position"})

At the server, with the shapes of the arrays, which are public:

    totals = open_sum({"north": content, ...}, {"position": (4, 20), ...}, during="in round 7", narrow={"position"})

Nothing in it knows rounds. What is hidden must follow from the context of the shares, the label and the broadcast
alone: two different values under one label would give away their difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from fahmc.engines.fixed_point import WORD, Mismatch, Words, from_words, num_words, to_words
from fahmc.errors import FederationError

# ChaCha20 has a nonce, which may be always the same as every key is used once.
_NONCE = bytes(16)


class Pair(NamedTuple):
    """What a site shares with one other."""

    is_adding: bool
    """Whether this site adds the masks; the other one subtracts them."""
    key: bytes


class Shares(NamedTuple):
    """One site's side of secure sums in one context; without pairs, fixed point without masks."""

    num_sites: int
    pairs: tuple[Pair, ...]

    def hide(
        self, label: str, broadcast: bytes, values: Mapping[str, np.ndarray], narrow: Collection[str] = ()
    ) -> bytes:
        """Return what leaves the site; raises `Unfit` where numbers are not finite or too large.

        Parameters
        ----------
        label
            What this message is, and no other of this context.
        broadcast
            A digest of what the values answer.
        values
            Arrays, in an order that the server knows.
        narrow
            The names of those that are narrow numbers (`fahmc.engines.fixed_point`).
        """
        hidden = to_words(values, self.num_sites, narrow)
        for pair in self.pairs:
            mask = _mask(pair.key, label, broadcast, len(hidden))
            if pair.is_adding:
                hidden += mask
            else:
                hidden -= mask
        return hidden.tobytes()


def open_sum(
    contents: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, during: str, narrow: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Add up what all sites sent, by site; ``during`` says when, to stand in a sentence."""
    total = np.zeros(num_words(shapes, narrow), WORD)
    for site, content in contents.items():
        if not isinstance(content, bytes) or len(content) != total.nbytes:
            came = f"{len(content)} bytes" if isinstance(content, bytes) else type(content).__name__
            raise FederationError(
                f"Site {site!r} sent {came} {during}; {total.nbytes} bytes were expected as its share of a sum."
            )
        total += np.frombuffer(content, WORD)
    try:
        return from_words(total, len(contents), shapes, narrow)
    except Mismatch as error:
        raise FederationError(
            f"The sites' masked replies {during} do not add up: a byte was changed on the way, or a site masked with "
            "other keys or for another broadcast. Nothing of them was used. Try again; if it happens again, have the "
            "sites and the server compare their logs."
        ) from error


def _mask(key: bytes, label: str, broadcast: bytes, length: int) -> Words:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    name = label.encode()
    info = b"fahmc mask" + len(name).to_bytes(4, "big") + name + broadcast
    once = HKDFExpand(SHA256(), 32, info).derive(key)
    stream = Cipher(ChaCha20(once, _NONCE), mode=None).encryptor().update(bytes(length * WORD.itemsize))
    return np.frombuffer(stream, WORD)
