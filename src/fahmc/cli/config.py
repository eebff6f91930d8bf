"""The configuration file of ``fahmc sample``: TOML in, objects of the library out.

[model] and [sampler] are not described here a second time. Their settings are read off the signature of the function or
class that they name, so the file takes exactly what the library takes. Every refusal names the file and the line.
"""

from __future__ import annotations

import dataclasses
import re
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic

import fahmc
from fahmc import registry
from fahmc.adaptive.prognosis import draws_of_a_chain
from fahmc.cli.own_code import import_model, import_object, references
from fahmc.cli.sections import Config, DataSection, sentence
from fahmc.cli.toml_lines import KeyPath, Source, locate_keys, parse_toml
from fahmc.data import partition
from fahmc.data.study import Study, build_study
from fahmc.data.tables import read_arrays, read_clients, read_sites
from fahmc.engines.flare.kits import Kit
from fahmc.errors import DataError, ModelError, SettingsError
from fahmc.models.recipes import following_formula
from fahmc.privacy import Budget
from fahmc.report.quantities import in_bytes

MAX_BYTES = 16_000_000
"""Of a configuration file: enough for a dense mass matrix of a thousand parameters."""

# Of what is wrong with a file, at a time.
_MAX_SENTENCES = 5
# Of which it is told what a private chain could afford.
_SOME_ROWS = 10_000


class Job(NamedTuple):
    """What a configuration asks for, ready for ``fahmc.sample(model, federation, sampler, **run_kwargs)``."""

    model: fahmc.Model
    federation: Any
    """A `Federation`, or `Sites` where the rows lie elsewhere."""
    sampler: Any
    run_kwargs: dict[str, Any]
    output: Path
    study: Study | None
    """What was made of the rows; None for arrays that go as they are, and where the rows lie elsewhere."""


def load_config(file: str | Path) -> Config:
    """Read and check a configuration file."""
    path = Path(file)
    return parse_config(read_text(path), path)


def read_text(path: Path) -> str:
    """Read the text of a configuration file."""
    try:
        # A pipe that nobody writes to would be waited for without end.
        if path.exists() and not path.is_file():
            raise SettingsError(f"{path} is not a file; give the configuration as a TOML file.")
        if path.stat().st_size > MAX_BYTES:
            raise SettingsError(
                f"{path} has {in_bytes(path.stat().st_size)}; settings take {in_bytes(MAX_BYTES)} at most."
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path.name} is not UTF-8 text ({error.reason}). Save it as UTF-8.") from error


def parse_config(text: str, path: Path) -> Config:
    """Check the text of a configuration; relative paths in it start at the folder of ``path``."""
    table = parse_toml(text, path.name)
    source = Source(path, locate_keys(text))
    try:
        config = Config.model_validate(table)
    except pydantic.ValidationError as error:
        sentences = [sentence(source, entry) for entry in error.errors()[:_MAX_SENTENCES]]
        raise SettingsError("\n".join(sentences)) from error
    config._source = source
    # What needs no data is tried now, so that a long read does not end at a misspelled setting.
    _check_formula(config)
    build_model(config)
    build_sampler(config)
    _build_stop_rule(config)
    return config


def _check_formula(config: Config) -> None:
    """Read the formula while its line is known."""
    if config.data.formula is not None:
        try:
            _ = config.data.columns
        except DataError as error:
            raise config._source.refusal(("data", "formula"), str(error)) from error


def build(config: Config, kit: Path | None = None) -> Job:
    """Make everything that ``fahmc.sample`` takes: read the data, or name what the sites of a federation shall take."""
    if (kit is None) != (config.federation is None):
        raise config._source.refusal(
            ("federation",),
            "the rows lie with the sites of [federation]; reach them with --federation and the analyst's kit."
            if kit is None
            else f"--federation is {kit}, but a section [federation] is missing; add the server and the sites.",
        )
    if kit is not None:
        _check_kit(config, kit)
    federation, study = (build_sites(config), None) if kit is not None else build_federation(config)
    model = build_model(config, study)
    if study is not None:
        _check_outcome(config, model, study)
    run_kwargs = config.run.model_dump(exclude={"output", "stop_when"}) | {"stop_when": _build_stop_rule(config)}
    if config.privacy is not None:
        run_kwargs["dtype"] = "float64"
    if kit is not None and config.federation is not None:
        timeouts = config.federation.model_dump(include={"round_timeout", "patience", "setup_timeout"})
        run_kwargs["engine"] = fahmc.engines.Flare(kit, **timeouts)
    output = config._source.path.parent / config.run.output
    return Job(model, federation, build_sampler(config), run_kwargs, output, study)


def _check_kit(config: Config, kit: Path) -> None:
    """Refuse a kit that was made for another study than the file describes, before anybody is waited for."""
    source, named, own = config._source, config.federation, Kit.load(kit)
    assert named is not None
    own.require_analyst()
    who = named.model_dump(include={"server", "sites", "analyst"}) | {"study": named.study or source.path.stem}
    if unlike := own.disagreements(**who):
        lines = (f"{source.place(('federation', key))}: {words}" for key, words in unlike.items())
        raise SettingsError("\n".join(lines))


def build_sampler(config: Config) -> Any:
    """Build the sampler of [sampler], or that of [privacy]."""
    if config.privacy is not None:
        return _private_sampler(config)
    return _make("sampler", config._source, config.sampler)


def _private_sampler(config: Config) -> fahmc.PrivateLaplace:
    """Build what draws under [privacy]; refuse a chain, with what it could afford."""
    said, source = config.privacy, config._source
    assert said is not None
    settings = said.model_dump(exclude={"bounds", "levels"})
    if "sampler" in config.model_fields_set:
        num_columns = len(said.bounds) + sum(len(levels) - 1 for levels in (said.levels or {}).values())
        budget = Budget(said.epsilon, said.delta)
        allowed = draws_of_a_chain(budget, num_columns, said.radius, _SOME_ROWS)
        raise source.refusal(
            ("sampler",),
            f"a private chain would pay for every effective draw: with {budget} it could make about {allowed:.2g} of "
            f"them from {_SOME_ROWS:,} rows of these features, all chains together. Leave [sampler] out: [privacy] "
            "draws as many as are wanted from noisy answers.",
        )
    if config.run.dtype == "float32":
        raise source.refusal(("run", "dtype"), 'with [privacy] sums are exact, which takes dtype = "float64".')
    try:
        return fahmc.PrivateLaplace(**settings)
    except SettingsError as error:
        raise source.refusal(("privacy",), str(error)) from error


def _make(kind: Literal["sampler", "model"], source: Source, table: dict[str, Any]) -> Any:
    """Make what a section names; code of the user's own that it names is imported from beside the file."""
    own = dict(references(table, (kind,)))
    for where, reference in own.items():
        import_object(source, where, reference)
    try:
        return registry.decode(kind, table, (kind,), list(own.values()))
    except SettingsError as error:
        raise source.refusal(error.where, str(error)) from error


def build_federation(config: Config) -> tuple[fahmc.Federation, Study | None]:
    """Read the rows of [data]: encoded as a `Study` if an outcome is named, else npz arrays as they are."""
    data, source = config.data, config._source
    study = None
    try:
        if data.outcome is None and data.formula is None:
            clients = _read_untouched(data, source.path.parent)
        else:
            study = _read_study(data, source.path.parent)
            clients = study.clients
        federation = fahmc.Federation.from_clients(clients)
    except DataError as error:
        raise DataError(f"{source.place(_key_of(error, data))}: {error}") from error
    if data.weights is not None:
        try:  # apart from the rows, so that whatever is refused here is the weights
            federation = fahmc.Federation.from_clients(clients, weights=data.weights)
        except DataError as error:
            raise source.refusal(("data", "weights"), str(error)) from error
    if study is not None and study.bounds is not None:
        federation = dataclasses.replace(federation, about=study.about)
    return federation, study


def _key_of(error: DataError, data: DataSection) -> KeyPath:
    """Return the key of [data] that an error of the rows is about: a file, a setting, or what names the column."""
    if error.client:
        return ("data", "clients", error.client)
    if error.setting in data.model_fields_set:
        return ("data", error.setting)
    if error.columns:
        named = {key: getattr(data, key) for key in data.model_fields_set}
        is_listed = (key for key, value in named.items() if isinstance(value, list) and error.columns[0] in value)
        is_named = (key for key, value in named.items() if value == error.columns[0])
        others = (key for key in ("formula", "features") if named.get(key) is not None)
        return ("data", *[next(chain(is_listed, is_named, others), "file")])
    return ("data", "file")


def build_sites(config: Config) -> fahmc.Sites:
    """Say what the sites of a real federation shall take from their tables."""
    data = config.data
    try:
        return fahmc.Sites(**vars(data.columns), weights=data.weights)
    except DataError as error:
        raise DataError(f"{config._source.place(('data',))}: {error}") from error


def build_model(config: Config, study: Study | None = None) -> fahmc.Model:
    """Build the model of [model]; a ready-made one takes its features' names from the study and follows the formula."""
    model = _build_model(config, study)
    if config.data.formula is None:
        return model
    try:
        return following_formula(model, config.data.columns.model_settings)
    except ModelError as error:
        raise config._source.refusal(("data", "formula"), str(error)) from error


def _build_model(config: Config, study: Study | None) -> fahmc.Model:
    source, settings = config._source, dict(config.model)
    where, reference = ("model", "object"), settings.get("object")
    if reference is not None:
        others = ", ".join(name for name in settings if name != "object")
        found = None if "name" in settings else import_object(source, where, reference)
        is_family = found is not None and found is registry.find("model", reference)
        if others and not is_family:
            message = f"model.object stands alone, but {others} came with it. Set those in the code."
            raise source.refusal(where, message)
        if not is_family:
            return dataclasses.replace(import_model(source, where, reference), recipe={"object": reference})
    build = registry.find("model", reference or settings.get("name"))
    if study is not None and build is not None and "feature_names" in registry.parameters_of(build):
        settings.setdefault("feature_names", list(study.feature_names))
    return _make("model", source, settings)


def _build_stop_rule(config: Config) -> Any:
    rule = config.run.stop_when
    if rule is None:
        return None
    try:
        by_r_hat = fahmc.RHatBelow(threshold=rule.r_hat, every=rule.every, method=rule.method)
        return by_r_hat if rule.ess is None else fahmc.EssAbove(rule.ess, r_hat=rule.r_hat, every=rule.every)
    except SettingsError as error:
        raise config._source.refusal(("run", "stop_when"), str(error).replace("threshold", "r_hat", 1)) from error


def _read_study(data: DataSection, folder: Path) -> Study:
    if data.clients is not None:
        tables = read_clients({name: folder / file for name, file in data.clients.items()})
    else:
        assert data.file is not None and data.site_column is not None  # checked by DataSection
        tables = read_sites(folder / data.file, data.site_column, data.missing_values)
    return build_study(tables, data.columns)


def _read_untouched(data: DataSection, folder: Path) -> dict[str, Any]:
    files = {"": data.file} if data.clients is None else data.clients
    for file in files.values():
        if Path(file or "").suffix.lower() != ".npz":
            raise DataError(
                f"data.outcome is missing, and {file} is not an .npz file, whose arrays can go as they are."
            )
    arrays = {name: read_arrays(folder / str(file)) for name, file in files.items()}
    return arrays if data.clients is not None else partition.by_column(arrays[""], data.site_column or "")


def _check_outcome(config: Config, model: fahmc.Model, study: Study) -> None:
    """Let the model look at the outcome now, while the line that chose it is known."""
    source = config._source
    for client, rows in study.clients.items():
        complaint = model.validate_fn(rows) if model.validate_fn is not None else None
        if complaint:
            levels = f" Its levels are {', '.join(study.outcome_levels)}." if study.outcome_levels else ""
            chosen_by = "outcome" if config.data.formula is None else "formula"
            # A row that the model counts is not that of the file: some were dropped.
            complaint = re.sub(r"\brow \d+ has", "a row has", complaint)
            complaint = re.sub(r"^y\b", f"the outcome {config.data.columns.named_outcome!r}", complaint)
            raise source.refusal(("data", chosen_by), f"client {client!r}: {complaint}{levels}")
