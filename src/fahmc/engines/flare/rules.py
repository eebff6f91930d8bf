"""What a site lets others compute: its own file, which nobody else can change.

file = "north.csv"                 the rows; relative to this file
columns = ["preterm", "age"]       what may be used; "all" for every column of the file
secure_sum = "required"            answer only in masks that cancel in the sum over sites; or "allowed", or "off"
minimum_sites = 3                  refuse a run over fewer sites
maximum_weight = 0.8               refuse a run whose averages are this site's to a larger share
missing_values = ["?"]             what others may take for a missing value in this file; nothing by default
minimum_rows = 10                  refuse to take part with fewer complete rows
minimum_rows_per_level = 5         refuse columns of which some value has fewer rows here: text, codes, yes or no
maximum_levels = 40                refuse columns of text with more different values here
rows_per_parameter = 10            refuse models with more parameters than this many rows each allow
maximum_rounds = 20000             of one run
maximum_runs = 10                  different runs, and choices of columns, of one content of the file
maximum_questions = 100            different questions about draws, of one content of the file
models = ["logistic_regression"]   ready-made models that may run here; all by default
samplers = ["FAHMC"]               samplers of fahmc's that may run here; all by default
own_models = ["study:model"]       models of the site's own Python, imported here; none by default
own_samplers = ["study:Sampler"]   samplers, gradients and schedules of the site's own Python; none by default
checks = true                      answer questions about draws, in sums: whether the model fits
own_checks = ["study:Check"]       such questions of the site's own Python; none by default
site_effects = "private"           refuse models that tell this site's own effect; or "shared": each may be told
maximum_megabytes = 4096           refuse what takes more memory in a round, before it is taken
maximum_minutes = 60               end the worker if a single call takes longer
private_seed = 7                   for tests: draw the private randomness from this, not from the site's secret

[privacy]                          give differentially private answers alone (`fahmc.engines.flare.privacy`)
epsilon = 3.0                      what may be spent of each row's privacy, in all
delta = 1e-6
shared_noise = false               whether answers may be private in the masked sum over sites alone
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from fahmc.dynamics.sampler import Sampler
from fahmc.engines.client import Limits
from fahmc.engines.flare.privacy import PrivacyRules
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.order import Order
from fahmc.errors import FederationError, SettingsError
from fahmc.registry import choices, references

if TYPE_CHECKING:
    from fahmc.data.summaries import TableSummary

RULES_FILE = "site.toml"
_SETTLED_FILE = "fahmc-site.json"
_SECRET_FILE = "fahmc-secret"
_SECRET_BYTES = 32


class Rules(pydantic.BaseModel):
    """A site's own settings."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    file: str
    columns: list[str] | Literal["all"]
    secure_sum: Literal["required", "allowed", "off"] = "required"
    minimum_sites: int = Field(default=3, ge=1)
    maximum_weight: float = Field(default=0.8, gt=0, le=1)
    minimum_rows: int = Field(default=10, ge=1)
    minimum_rows_per_level: int = Field(default=5, ge=1)
    maximum_levels: int = Field(default=40, ge=2)
    rows_per_parameter: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    maximum_rounds: int = Field(default=20_000, ge=1)
    maximum_runs: int = Field(default=10, ge=1)
    maximum_questions: int = Field(default=100, ge=0)
    models: list[str] = Field(default_factory=lambda: list(choices("model")))
    samplers: list[str] = Field(default_factory=lambda: list(ready_made_samplers()))
    own_models: list[str] = []
    own_samplers: list[str] = []
    checks: bool = True
    own_checks: list[str] = []
    site_effects: Literal["shared", "private"] = "private"
    """A posterior of one site's own effect is about this site alone, so it is told only where the site says so."""
    missing_values: list[str | int | float] = []
    """Whoever may call any value missing could have rows left out as he likes, and take sums over the rest."""
    maximum_megabytes: int = Field(default=4096, ge=1)
    maximum_minutes: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    private_seed: int | None = Field(default=None, ge=0, lt=2**64)
    privacy: PrivacyRules | None = None
    """With a budget, private answers alone are given, and no more than it pays for."""

    @property
    def keeps_effects(self) -> bool:
        """Whether nobody else may draw this site's own effect."""
        return self.site_effects == "private"

    @property
    def limits(self) -> Limits:
        """What others' orders may take here."""
        return Limits(self.maximum_megabytes * 2**20, self.maximum_minutes * 60)

    def allows(self, column: str) -> bool:
        """Whether others may use a column; ``x`` allows all columns ``x[0]``, ``x[1]``, … of an array."""
        return self.columns == "all" or column in self.columns or re.sub(r"\[\d+\]$", "", column) in self.columns

    def check_missing_values(self, asked: Iterable[str | float]) -> None:
        """Refuse to take for a missing value what the site does not."""
        allowed = set(map(str, self.missing_values))
        if unlisted := [str(value) for value in asked if str(value) not in allowed]:
            raise Refused(Refusal.MISSING_VALUES, *unlisted)

    def check_rows(self, num_rows: float) -> None:
        """Refuse to take part with too few rows, without telling how few."""
        if num_rows < self.minimum_rows:
            raise Refused(Refusal.FEW_ROWS)

    def check_levels(self, summary: TableSummary) -> None:
        """Refuse columns of text with more different values than the site tells of."""
        columns = {**summary.features, "": summary.outcome}
        if many := [name for name, column in columns.items() if column.num_levels > self.maximum_levels]:
            raise Refused(Refusal.MANY_LEVELS, *filter(None, many))

    def check_order(self, order: Order, site: str, num_rows: int) -> None:
        """Refuse what an order alone shows to be more than this site lets others compute."""
        self.check_model(order.model)
        self.check_sampler(order)
        weights = [weight for weight in order.weights.values() if weight > 0]
        if len(weights) < self.minimum_sites:
            raise Refused(Refusal.FEW_SITES)
        if order.weights.get(site, 0.0) > self.maximum_weight * sum(weights):
            raise Refused(Refusal.WEIGHT)
        if order.dimension * self.rows_per_parameter > num_rows:
            raise Refused(Refusal.PARAMETERS)

    def check_sampler(self, order: Order) -> None:
        """Refuse samplers that the site does not run, and phases that are not theirs."""
        _check_listed(Refusal.OWN_SAMPLER, [order.leader, order.sampler], self.own_samplers)
        leader, is_own = order.leader.get("name"), "object" in order.leader
        if not is_own and leader not in self.samplers:
            raise Refused(Refusal.SAMPLER, *([leader] if isinstance(leader, str) else []))
        if "object" in order.sampler:
            return
        led = ready_made_samplers()
        names = self.samplers if is_own else [str(leader)]
        parts = [part for name in names for part in (name, *led[name].PARTS)]  # a name may be anything, also a list
        if (sampler := order.sampler.get("name")) not in parts:
            raise Refused(Refusal.SAMPLER, *([sampler] if isinstance(sampler, str) else []))

    def check_model(self, recipe: Mapping[str, Any]) -> None:
        """Refuse a model that the site does not run."""
        name = recipe.get("name")
        if "object" not in recipe and name not in self.models:
            raise Refused(Refusal.MODEL, *([name] if isinstance(name, str) else []))
        _check_listed(Refusal.OWN_MODEL, recipe, self.own_models)

    def check_question(self, check: Mapping[str, Any], models: Iterable[Mapping[str, Any]]) -> None:
        """Refuse questions about draws that the site does not answer."""
        if not self.checks:
            raise Refused(Refusal.CHECKS)
        for recipe in models:
            self.check_model(recipe)
        _check_listed(Refusal.OWN_CHECK, check, self.own_checks)


def _check_listed(refusal: Refusal, recipe: Any, listed: list[str]) -> None:
    if unlisted := sorted(references(recipe).difference(listed)):
        raise Refused(refusal, *unlisted)


def read_rules(path: Path, data: Path | None = None) -> Rules:
    """Read a site's own file; ``data`` takes the place of its ``file``. The result's path is absolute."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        if data is not None or "file" in table:
            own = path.parent / os.path.expanduser(str(table.get("file")))
            table["file"] = str((data or own).resolve())
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}. A site needs a file with its rules.") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or a path that no file can have
        raise SettingsError(f"{path} is not TOML: {error}.") from error
    try:
        rules = Rules.model_validate(table)
    except pydantic.ValidationError as error:
        raise SettingsError(sentences(path, error, Rules)) from error
    if not Path(rules.file).is_file():
        named = "--data" if data is not None else f"file in {path}"
        raise SettingsError(f"{named} is {rules.file}, but there is no such file. Name the site's table of rows.")
    _check_ready_made(path, "models", rules.models, choices("model"))
    _check_ready_made(path, "samplers", rules.samplers, ready_made_samplers())
    return rules


def ready_made_samplers() -> dict[str, type[Sampler]]:
    """Return fahmc's samplers that run at sites, as orders name them."""
    return {
        name: sampler
        for name, sampler in choices("sampler").items()
        if isinstance(sampler, type) and not sampler.pools_rows
    }


def _check_ready_made(path: Path, key: str, names: list[str], ready_made: Collection[str]) -> None:
    if unknown := [name for name in names if name not in ready_made]:
        raise SettingsError(f"{path}: {key} names {unknown[0]!r}; ready-made are {', '.join(ready_made)}.")


def write_settled_rules(local: Path, rules: Rules) -> None:
    """Leave the rules where the site's worker processes find them."""
    (local / _SETTLED_FILE).write_text(rules.model_dump_json())


def read_settled_rules(local: Path) -> Rules:
    """Read the rules that the site was started with."""
    try:
        return Rules.model_validate(json.loads((local / _SETTLED_FILE).read_text()))
    except (OSError, ValueError) as error:
        raise FederationError("this site was not started with `fahmc federation start`, so it has no rules.") from error


def site_secret(local: Path) -> bytes:
    """Return the site's secret, made when it is first needed; it never leaves the site.

    It outlives restarts: a round that is run again must draw the same private momentum.
    """
    path = local / _SECRET_FILE
    if not path.exists():
        draft = local / f"{_SECRET_FILE}.{secrets.token_hex(8)}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        with contextlib.suppress(FileExistsError):  # another process was quicker: its secret counts
            os.link(draft, path)
        draft.unlink()
    secret = path.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise FederationError(f"this site's secret is damaged; remove {_SECRET_FILE} in its kit to have a new one.")
    return secret


def private_seed(secret: bytes, order: str) -> int:
    """Derive the seed of a site's private randomness in one run: unlike orders have unlike randomness.

    The same order has the same, however often it is run: a run that goes on after a fault must.
    """
    return int.from_bytes(hmac.digest(secret, order.encode(), hashlib.sha256)[:8], "little")


def row_mark(secret: bytes, digest: str) -> str:
    """Turn a checksum of rows into one that shows a change, but not which rows could have given it."""
    return hmac.new(secret, digest.encode(), hashlib.sha256).hexdigest()[:16]


def sentences(file: Path | str, error: pydantic.ValidationError, rules: type[pydantic.BaseModel]) -> str:
    """Say what is wrong with a file of rules."""
    return "\n".join(_sentence(file, entry, rules) for entry in error.errors())


def _sentence(file: Path | str, entry: Any, rules: type[pydantic.BaseModel]) -> str:
    name = ".".join(str(part) for part in entry["loc"])
    if entry["type"] == "extra_forbidden":
        return f"{file}: {name} is not known. Known here: {', '.join(rules.model_fields)}."
    if name.startswith("columns."):
        name = "columns"
    if entry["type"] == "missing":
        meaning = {
            "file": "where is this site's table? Or say it with --data.",
            "columns": "what may others use of it?",
        }
        return f"{file}: {name} is missing. Add it: {meaning.get(name, 'it has no default.')}"
    return f"{file}: {name} = {entry['input']!r}: {entry['msg'][0].lower()}{entry['msg'][1:]}."
