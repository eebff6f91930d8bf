"""A secure sum: each site hides its numbers under masks that cancel when all sites' messages are added up.

    site c sends      y_c = x_c + Σ_{d after c} m_cd − Σ_{d before c} m_dc     mod 2⁶⁴,  x_c in fixed point
    the server adds   Σ_c y_c = Σ_c x_c                                        exactly

m_cd is the stream of ChaCha20 under a key that only c and d can make (`agreement`) and that is made anew for every
message, from its label and the SHA-256 of what was broadcast. So the same call again gives the same bytes, which tells
nothing new; any other has a mask of its own, and a server that asks twice cannot take differences. To the server each
y_c alone is a string of uniform random bytes, and any N − 1 of them are independent.

One word more is a check: t_c = 1 + Σ_i r_i x_ci mod 2⁶⁴ with odd r_i, masked like the others. The server finds
Σ_c t_c = N + Σ_i r_i Σ_c x_ci, unless a byte was changed on the way, or masks were made of other keys, labels or
broadcasts and do not cancel. As a function of the sum it tells nothing beyond it.

At a site, after keys were agreed upon in this job:

    shares = agreement.shares(order.text)                            # what all else that the values follow from says
    content = shares.hide("round 7", digest, {"position": array, ...}, narrow={"position"})

At the server, with the shapes of the arrays, which are public:

    totals = open_sum(contents, {"position": (4, 20), ...}, during="in round 7", narrow={"position"})

Nothing in it knows rounds. What is hidden must follow from the context of the shares, the label and the broadcast
alone: two different values under one label would give away their difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fahmc.engines.fixed_point import WORD, from_words, num_words, to_words
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
        words = to_words(values, self.num_sites, narrow)
        hidden = np.append(words, np.uint64(1) + _checksum(words))
        for pair in self.pairs:
            mask = _mask(pair.key, label, broadcast, len(hidden))
            if pair.is_adding:
                hidden += mask
            else:
                hidden -= mask
        return hidden.astype(WORD, copy=False).tobytes()


def open_sum(
    contents: Sequence[bytes], shapes: Mapping[str, tuple[int, ...]], *, during: str, narrow: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Add up what all sites sent; ``during`` says when, to stand in a sentence."""
    total = np.zeros(num_words(shapes, narrow) + 1, WORD)
    for content in contents:
        total += np.frombuffer(content, WORD)
    words = total[:-1]
    if total[-1] != np.uint64(len(contents)) + _checksum(words):
        raise FederationError(
            f"The sites' masked replies {during} do not add up: a byte was changed on the way, or a site masked with "
            "other keys or for another broadcast. Nothing of them was used. Try again; if it happens again, have the "
            "sites and the server compare their logs."
        )
    return from_words(words, shapes, narrow)


def content_bytes(shapes: Mapping[str, tuple[int, ...]], narrow: Collection[str] = ()) -> int:
    """Return the bytes that `Shares.hide` makes of arrays of these shapes."""
    return (num_words(shapes, narrow) + 1) * WORD.itemsize


def _checksum(words: NDArray[np.uint64]) -> np.uint64:
    """Return Σ_i r_i x_i with r_i = 1, 3, 5, …: odd, so that no change of a single word goes unnoticed."""
    odd = np.arange(1, 2 * len(words), 2, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return np.uint64(np.dot(odd, words))


def _mask(key: bytes, label: str, broadcast: bytes, length: int) -> NDArray[np.uint64]:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    name = label.encode()
    info = b"fahmc mask" + len(name).to_bytes(4, "big") + name + broadcast
    once = HKDFExpand(SHA256(), 32, info).derive(key)
    stream = Cipher(ChaCha20(once, _NONCE), mode=None).encryptor().update(bytes(length * WORD.itemsize))
    return np.frombuffer(stream, WORD)
