"""Replies to a broadcast whose sum over sites is all that leaves them (`masks`).

A site whose numbers are not finite, or too large even for wide ones, says of which chains, in the clear, and nothing
else: the server can name it, as it does without masks. Where narrow numbers are too small for some site's, all sites
are asked once more for wide ones, under other masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fahmc.dynamics.sampler import Exchange
from fahmc.engines.fixed_point import Unfit
from fahmc.engines.flare.agreement import Agreement, SecureSum
from fahmc.engines.flare.masks import Shares, open_sum
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.order import Order
from fahmc.engines.summands import Summands, told_apart
from fahmc.errors import FederationError
from fahmc.types import Message

# Weights are shares of rows, in double precision.
_ROUNDING = 1e-6


def shares_for(order: Order, exchange: Exchange, agreement: Agreement | None, secure_sum: SecureSum) -> Shares | None:
    """Return a site's side of the secure sums of an order, None where replies go as they are, or refuse."""
    if agreement is None and secure_sum != "off":
        raise Refused(Refusal.NOT_AGREED)
    if agreement is None or agreement.secure_sum == "off":
        return None
    if set(order.weights) != set(agreement.sites):
        raise Refused(Refusal.ROSTER, *sorted(set(order.weights) ^ set(agreement.sites)))
    if told_apart(exchange):
        if agreement.secure_sum == "required":
            raise Refused(Refusal.NOT_SUMMABLE)
        return None
    # Else one site could have nearly all of the weight that there is.
    if abs(sum(order.weights.values()) - 1) > _ROUNDING:
        raise Refused(Refusal.WEIGHTS)
    return agreement.shares(order.text)


class MaskedReplies:
    """The replies of one order: at the server, or, with its shares, at a site."""

    def __init__(self, order: Order, exchange: Exchange, shares: Shares | None = None, site: str = ""):
        self._shares, self._weight = shares, order.weights.get(site, 0.0)
        self.num_chains = order.num_chains if exchange.has_chains else 1
        self._summands = Summands(exchange, order.num_chains, order.precision)

    def num_bytes(self, is_wide: bool = True) -> int:
        """Return the bytes of one site's."""
        return self._summands.num_bytes(is_wide)

    def hide(self, round_index: int, is_wide: bool, broadcast: bytes, state: Message, reply: Message) -> dict[str, Any]:
        """Return what a site answers to a broadcast of this digest: its share of the sum, or chains that have none."""
        assert self._shares is not None, "the server has none"
        label = f"{'wide' if is_wide else 'narrow'} reply in round {round_index}"
        values = self._summands.of(state, reply, self._weight, is_wide)
        narrow = self._summands.narrow(is_wide)
        try:
            return {"reply": self._shares.hide(label, broadcast, values, narrow)}
        except Unfit as unfit:
            return {"unfit": self._summands.chains(unfit.where)}

    def unfit(self, answer: Mapping[str, Any], sender: str) -> list[int]:
        """Return the chains that a site's answer has no numbers for, none if it has its share of the sum."""
        content, chains = answer.get("reply"), answer.get("unfit", [])
        if isinstance(chains, list) and chains and content is None:
            if all(type(chain) is int and 0 <= chain < self.num_chains for chain in chains):
                return chains
        elif chains == [] and isinstance(content, bytes):
            return []
        raise FederationError(f"{sender} sent neither its share of the sum nor the chains that it has none for.")

    def open(
        self, contents: Mapping[str, Any], is_wide: bool, state: Message, during: str
    ) -> tuple[Message, np.ndarray | None]:
        """Return combined replies, and the clients' mean squared distance from their mean."""
        narrow = self._summands.narrow(is_wide)
        totals = open_sum(contents, self._summands.shapes, during=during, narrow=narrow)
        return self._summands.combined(state, totals, is_wide)


def broadcast_digest(packed: Mapping[str, bytes]) -> bytes:
    """Return the SHA-256 of a broadcast, whose fields have sizes that the order says."""
    digest = hashlib.sha256()
    for name in sorted(packed):
        digest.update(packed[name])
    return digest.digest()


def where_finite(unfit: Sequence[Sequence[int]], num_chains: int) -> np.ndarray:
    """Return which replies were finite, as [chain, client + 1], from the chains of each client whose were not."""
    is_finite = np.ones((num_chains, len(unfit) + 1), bool)
    for client, chains in enumerate(unfit):
        is_finite[list(chains), client] = False
    return is_finite
