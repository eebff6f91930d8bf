"""The sections of a configuration file: which settings there are, and what each may be."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Annotated, Any, Literal, Self, TypeAlias

import pydantic
from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr

from fahmc.cli.toml_lines import KeyPath, Source
from fahmc.data.columns import Columns
from fahmc.errors import shown
from fahmc.hints import Chains, Count, Rounds, Seed, WarmupRounds
from fahmc.registry import unknown_key
from fahmc.report.about import Scale


def _as_path(text: str) -> str:
    """Refuse what no file is called, and have ~ stand for the home folder: one of that name is never meant."""
    if "\0" in text:
        raise ValueError("no file can have NUL in its name")
    return os.path.expanduser(text)


FilePath: TypeAlias = Annotated[str, AfterValidator(_as_path)]


class _Section(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataSection(_Section, Columns):  # pyright: ignore[reportGeneralTypeIssues]  # frozen, by its model_config
    """[data]: where the rows lie, and, as `Columns`, what is made of them; paths start at the configuration file."""

    file: FilePath | None = None
    site_column: str | None = None
    clients: dict[str, FilePath] | None = None
    weights: dict[str, float] | None = None

    @property
    def names_rows(self) -> bool:
        """Whether it says where rows lie."""
        return self.file is not None or self.clients is not None

    @property
    def columns(self) -> Columns:
        """What is made of the rows; the column that tells whose a row is may stand for site in a formula."""
        given = {column.name: getattr(self, column.name) for column in dataclasses.fields(Columns)}
        if self.formula is not None:
            from fahmc.data.formula_text import name_group

            given["formula"] = name_group(self.formula, self.site_column)
        return Columns(**given)

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> Self:
        has_both = self.file is not None and self.clients is not None
        if has_both or (self.file is None) != (self.site_column is None):
            raise ValueError("give either file and site_column, or a table [data.clients] with name = path; not both")
        encoding = self.model_fields_set & {column.name for column in dataclasses.fields(Columns)}
        if self.outcome is None and self.formula is None and encoding:
            raise ValueError(f"{', '.join(sorted(encoding))} without outcome: name the outcome column as well")
        return self


class FederationSection(_Section):
    """[federation]: who takes part in a real federation, and how long they are waited for."""

    server: str
    sites: list[str]
    study: str | None = None
    analyst: str = "analyst@fahmc.local"
    round_timeout: float = Field(60.0, gt=0)
    patience: float = Field(600.0, gt=0)
    setup_timeout: float = Field(300.0, gt=0)


class StopSection(_Section):
    """stop_when: sample until every R-hat is below a threshold, and every ESS above one if it is given."""

    r_hat: float = 1.01
    ess: float | None = None
    every: int = 100
    method: Literal["rank", "split", "folded", "z_scale", "identity"] = "rank"


class RunSection(_Section):
    """[run]: how long, how many chains, and where the results go."""

    num_rounds: Rounds | None = None
    num_warmup_rounds: WarmupRounds = 0
    num_chains: Chains = 4
    seed: Seed = 0
    private_seed: Seed | None = None
    thin: Rounds | None = None
    dtype: Literal["float32", "float64"] | None = None
    row_space: bool | None = None
    stop_when: StopSection | None = None
    output: FilePath = "fahmc-run"


class PrivacySection(_Section):
    """[privacy]: draw under differential privacy (`fahmc.private_laplace`); bounds and levels as in `Columns`."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    bounds: dict[str, list[float]]
    levels: dict[str, list[str]] | None = None
    radius: float | None = Field(None, gt=0)
    noise: Literal["own", "shared"] = "own"
    max_widening: float = Field(1.5, gt=1)
    num_draws: Count = 1000


class ReportSection(_Section):
    """[report]: what the report is about, beside the numbers."""

    title: str | None = None
    question: str | None = None
    outcome: str | None = None
    effect: str | list[str] | None = None
    scale: Scale | None = None


class Config(_Section):
    """A configuration file whose every setting was checked, apart from what only the data can tell."""

    model: dict[str, Any]
    data: DataSection
    sampler: dict[str, Any] = Field(default_factory=lambda: {"name": "Auto"})
    run: RunSection = Field(default_factory=lambda: RunSection.model_validate({}))
    federation: FederationSection | None = None
    report: ReportSection = Field(default_factory=lambda: ReportSection.model_validate({}))
    privacy: PrivacySection | None = None
    _source: Source = PrivateAttr()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _bounds_of_columns(cls, table: Any) -> Any:
        """Hand the bounds of [privacy] on to [data], whose columns they are about."""
        data, privacy = table.get("data"), table.get("privacy")
        if not isinstance(data, dict):
            return table
        if {"bounds", "levels"} & set(data):
            raise ValueError("bounds and levels of columns belong to [privacy]")
        if not isinstance(privacy, dict):
            return table
        public = {name: privacy[name] for name in ("bounds", "levels") if name in privacy}
        return table | {"data": data | public}

    @pydantic.model_validator(mode="after")
    def _rows_somewhere(self) -> Self:
        if self.federation is None and not self.data.names_rows:
            raise ValueError(
                "nothing says where the rows lie: give [data] file and site_column, or a table [data.clients] with "
                "name = path; or, if they lie with the sites of a real federation, a section [federation]"
            )
        if self.federation is not None and self.data.names_rows:
            raise ValueError(
                "the rows lie with the sites of [federation], so [data] cannot name files; each site names its own"
            )
        return self


_SECTIONS = {
    "data": DataSection,
    "run": RunSection,
    "stop_when": StopSection,
    "federation": FederationSection,
    "report": ReportSection,
    "privacy": PrivacySection,
}


def sentence(source: Source, entry: Any) -> str:
    """Put one of Pydantic's complaints into words, with its line."""
    where: KeyPath = tuple(str(part) for part in entry["loc"])
    name, message = ".".join(part[:40] for part in where), entry["msg"].removeprefix("Value error, ")
    message = re.sub("a valid dictionary.*", "a table", message)
    message = re.sub("'str' instances.*|.* instance of Sequence", "Input should be a list", message)
    section: Any = Config
    for part in where[:-1]:
        section = _SECTIONS.get(part, section)
    known = list(section.model_fields)
    if entry["type"] == "extra_forbidden":
        return f"{source.place(where)}: {unknown_key(name, where[-1], known)}"
    if entry["type"] == "missing":
        name = f"[{name}]" if len(where) == 1 else name
        return f"{source.place(where)}: {name} is missing; it has no default. Add it."
    if not where:
        return f"{source.path.name}: {message}."
    if isinstance(entry["input"], dict):
        return f"{source.place(where)}: [{name}]: {message}."
    return f"{source.place(where)}: {name} = {shown(entry['input'])}: {message[0].lower()}{message[1:]}."
