"""A site's budget of differential privacy: what private answers cost, held against what its own file allows.

A site with a budget gives private answers alone, and each before it is given is written into the ledger. The budget is
for all that the site ever answers, whatever its file held by then: a person whose rows are corrected is still the same
person.
"""

from __future__ import annotations

import pydantic
from pydantic import ConfigDict, Field

from fahmc.dynamics.sampler import Exchange, Release
from fahmc.engines.flare.ledger import Ledger, Spent
from fahmc.engines.flare.noise import release_of
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.order import Order
from fahmc.privacy import Budget, composed, delta_of, epsilon_of
from fahmc.types import Message

ALL_CONTENTS = "any"
"""What the ledger calls the content of the site's file where it does not matter."""
# Of μ²: what rounding of ε and μ may come to.
_ROUNDING = 1e-9


class PrivacyRules(pydantic.BaseModel):
    """[privacy] of a site's own file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    shared_noise: bool = False
    """Whether answers may have only this site's share of the noise: private in the sum over sites alone."""

    @property
    def budget(self) -> Budget:
        """ε and δ."""
        return Budget(self.epsilon, self.delta)


class Purse:
    """What a site has to spend on private answers, and what it spent."""

    def __init__(self, rules: PrivacyRules | None, ledger: Ledger):
        self._rules, self._ledger = rules, ledger

    def check(self, order: Order, exchange: Exchange, is_masked: bool) -> None:
        """Refuse a run that is not as private as the site wants it, or that it cannot pay to the end."""
        release, rules = exchange.release, self._rules
        if rules is None and release is None:
            return
        if rules is None:
            raise Refused(Refusal.NO_BUDGET)
        if release is None:
            raise Refused(Refusal.NOT_PRIVATE)
        if release.is_shared and not (rules.shared_noise and is_masked):
            raise Refused(Refusal.SHARED_NOISE)
        spent = self._ledger.accounts[ALL_CONTENTS].spent
        # An order that was begun is never refused here: what it costs is among what was spent.
        if not any(one.release.startswith(order.identity) for one in spent):
            self._check(spent, release.mu_left)

    def spend(self, order: Order, round_index: int, broadcast: Message, rows: str, release: Release) -> None:
        """Write what an answer costs, before it is computed; refuse it if that is more than is left."""
        assert self._rules is not None, "checked when the order came"
        name = f"{order.identity} {release_of(rows, order.text, round_index, broadcast).hex()}"
        # Below what μ comes to at ε = 0, so that ε tells μ.
        delta = min(self._rules.delta, delta_of(release.mu, 0.0) / 2)
        epsilon = epsilon_of(release.mu, delta)
        facts = {"model": str(order.model.get("name", "")), "mu": release.mu}
        self._ledger.spend(name, ALL_CONTENTS, epsilon, delta, lambda spent: self._check(spent), **facts)

    def _check(self, spent: list[Spent], further: float = 0.0) -> None:
        assert self._rules is not None
        mus = [mu_of(one) for one in spent]
        if composed([*mus, further]) ** 2 > self._rules.budget.mu**2 * (1 + _ROUNDING):
            raise Refused(Refusal.BUDGET)


def budget_left(rules: PrivacyRules, ledger: Ledger) -> str:
    """Say how much more may be spent, as ε at the site's own δ."""
    spent = composed(mu_of(one) for one in ledger.accounts[ALL_CONTENTS].spent)
    squared = rules.budget.mu**2 - spent**2
    epsilon = epsilon_of(squared**0.5, rules.delta) if squared > _ROUNDING * rules.budget.mu**2 else 0.0
    return f"epsilon = {epsilon:.2g} of {rules.epsilon:g}, at delta = {rules.delta:g}"


def mu_of(spent: Spent) -> float:
    """Return μ of what was spent."""
    return Budget(spent.epsilon, spent.delta).mu


def without_bounds(rules: PrivacyRules | None, bounds: object) -> None:
    """Refuse to sum up columns exactly where the site has a budget."""
    if rules is not None and bounds is None:
        raise Refused(Refusal.PUBLIC_BOUNDS)
