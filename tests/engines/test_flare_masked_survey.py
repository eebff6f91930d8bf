"""A survey tells the server sums over all sites alone, and comes to the same encoding as one in the clear."""

import json
import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.tables import read_clients
from fahmc.engines.exact_sums import LARGEST, from_digits, to_digits
from fahmc.engines.flare import site
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.survey import survey
from fahmc.engines.flare.work import Work
from fahmc.errors import DataError, FederationError
from kit_forge import Authority

SIZES = {"north": 60, "south": 90, "east": 40}
PLAIN: dict[str, Any] = {"outcome": "y", "features": ["age", "smokes", "tiny", "far", "group"], "missing": "drop"}
FORMULA: dict[str, Any] = {"formula": "y ~ log(dose) + bs(age, df=4) + scale(far) + center(tiny):group"}
SECRET = ("mean", "squares", "count", "is_binary", "is_constant")


def write_tables(folder, **changes: Any) -> dict[str, Any]:
    """Write three tables; a change is a value, or a function of the site's frame and its number."""
    rng, files = np.random.default_rng(5), {}
    for number, (name, size) in enumerate(SIZES.items()):
        frame = pd.DataFrame({"age": rng.normal(50 + number, 12, size), "smokes": np.arange(size) % 2})
        frame["group"] = np.resize(["a", "b"] if number else ["a", "b", "c"], size)
        frame["tiny"], frame["far"] = 1e-13 * rng.normal(size=size), 1e9 + rng.normal(size=size)
        frame["dose"], frame["y"] = rng.lognormal(size=size), rng.normal(size=size)
        frame.loc[3, "age"] = np.nan
        for column, change in changes.items():
            frame[column] = change(frame, number) if callable(change) else change
        files[name] = folder / f"{name}.csv"
        frame.to_csv(files[name], index=False)
    return files


class Sites:
    """Three sites and a server that keeps what it hears."""

    def __init__(self, files, **rules: Any):
        known = Authority().identities(list(files))
        settings: dict[str, Any] = {"columns": "all"} | rules
        self.work = {
            name: Work(name, Rules(file=str(file), **settings), bytes(32), known[name]) for name, file in files.items()
        }
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def call(self, sites, method, seconds, arguments, /):
        answers = {name: site._answered(getattr(self.work[name], method))(**arguments) for name in sites}
        self.heard.append((method, answers))
        self.requests.append((method, dict(arguments)))
        return answers, {}

    def survey(self, columns: dict[str, Any]) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site, "collab", SimpleNamespace(caller="server"))
            return survey(self.call, list(self.work), columns, None, 1.0)

    def heard_of(self, method: str) -> list[dict[str, Any]]:
        return [answers for name, answers in self.heard if name == method]

    def rows(self, name: str, array: str) -> np.ndarray:
        return np.asarray(self.work[name]._rows[array])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.mark.parametrize("columns", [PLAIN, FORMULA | {"missing": "drop"}], ids=["features", "a formula"])
def test_masked_in_the_clear_and_in_one_process_rows_are_written_alike(files, columns):
    """To the bit: all three add up the same numbers exactly, and round once."""
    masked, clear, here = (
        Sites(files),
        Sites(files, secure_sum="off"),
        build_study(read_clients(files), Columns(**columns)),
    )
    answers = masked.survey(columns), clear.survey(columns)
    assert answers[0]["about"] == answers[1]["about"]
    assert answers[0]["about"]["standardization"] == {name: list(scale) for name, scale in here.standardization.items()}
    for name, rows in here.clients.items():
        np.testing.assert_array_equal(masked.rows(name, "x"), rows["x"])
        np.testing.assert_array_equal(clear.rows(name, "x"), rows["x"])
    assert len(masked.heard_of("add_up")) == 2 and not clear.heard_of("add_up")


def test_what_is_standardised_is_close_to_what_all_rows_give(files):
    scales = Sites(files).survey(PLAIN)["about"]["standardization"]
    rows = pd.concat([pd.read_csv(file).dropna() for file in files.values()])
    assert set(scales) == {"age", "tiny", "far"}, "what is 0 or 1 everywhere stays as it is"
    for name, (mean, sd) in scales.items():
        # A mean of 10⁹ is rounded at the seventh digit, and its sd with it.
        assert mean == pytest.approx(rows[name].mean(), rel=1e-12)
        assert sd == pytest.approx(rows[name].std(ddof=0), rel=1e-7)


def told(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [*columns["features"].values(), *columns["functions"].values(), columns["outcome"]]


def test_no_site_s_own_mean_or_squares_are_among_what_the_server_hears(files):
    def moments(sites: Sites) -> set[Any]:
        answers = sites.heard_of("summarize")[0].values()
        return {column[part] for answer in answers for column in told(answer) for part in SECRET}

    masked, clear = Sites(files), Sites(files, secure_sum="off")
    for sites in (masked, clear):
        sites.survey(PLAIN)
    assert moments(masked) == {0}
    assert len(moments(clear)) > 6, "without masks, they are"


def test_two_data_sets_with_equal_totals_look_alike_to_the_server(tmp_path):
    """Ages go from one site to another: all in the clear is equal, and the shares have nothing in common."""
    order = np.random.default_rng(1).permutation(60)
    lists = [np.sort(np.random.default_rng(2).normal(50, 12, 60))[::1], None]
    heard = []
    for folder, moved in ((tmp_path / "one", False), (tmp_path / "other", True)):
        folder.mkdir()

        def age(frame, number, moved=moved):
            return np.resize(lists[0][order], len(frame)) + (0 if not moved else (6.0, -4.0, 0.0)[number])

        sites = Sites(write_tables(folder, age=age))
        about = sites.survey({"outcome": "y", "features": ["age", "group"]})["about"]
        heard.append((sites.heard_of("summarize")[0], sites.heard_of("add_up")[0], about["standardization"]["age"][0]))
    (summaries, shares, mean), (others, other_shares, other_mean) = heard
    # 60 · 6 = 90 · 4: the sum over all sites is the same.
    assert summaries == others and mean == pytest.approx(other_mean, rel=1e-14)
    for name in SIZES:
        words, other_words = (np.frombuffer(told[name]["share"], np.uint8) for told in (shares, other_shares))
        assert (words == other_words).mean() < 0.05


def test_a_server_that_asks_sites_for_unlike_sums_gets_none(files):
    sites = Sites(files)
    sites.survey(PLAIN)
    request = json.loads(next(asked for method, asked in sites.requests if method == "add_up")["request"])
    of_age, of_far = (json.dumps(request | {"variables": [name]}) for name in ("age", "far"))
    honest = sites.call

    def call(names, method, seconds, arguments, /):
        if method != "add_up":
            return honest(names, method, seconds, arguments)
        return {name: sites.work[name].add_up(of_age if name == "south" else of_far) for name in names}, {}

    sites.call = call
    with pytest.raises(FederationError, match="masked replies of the survey do not add up"):
        sites.survey(PLAIN | {"features": ["far"]})
    assert sites.work["south"].add_up(of_age) == sites.work["south"].add_up(of_age), "asked again it says nothing new"


@pytest.mark.parametrize(
    "change",
    [
        {"variables": ["group"]}, {"variables": ["y"]}, {"variables": ["absent"]}, {"means": [1.0]},
        {"means": [1e31]}, {"means": [float("nan")]}, {"means": ["1"]},
    ],
)  # fmt: skip
def test_sums_that_a_site_does_not_tell(files, change):
    sites = Sites(files)
    sites.survey(PLAIN)
    request = {"columns": PLAIN, "features": PLAIN["features"], "variables": ["age", "far"]} | change
    with pytest.raises(Refused) as refusal:
        sites.work["north"].add_up(json.dumps(request))
    assert refusal.value.refusal == Refusal.REQUEST


def test_without_an_agreement_nothing_is_summed_up(files):
    request = json.dumps({"columns": PLAIN, "features": PLAIN["features"]})
    for rule, refused in (("required", True), ("allowed", True), ("off", False)):
        work = Sites(files, secure_sum=rule).work["north"]
        if refused:
            with pytest.raises(Refused, match="were not asked to agree on a secure sum"):
                work.summarize(request)
        else:
            assert work.summarize(request)["features"]["age"]["count"] == 59
            with pytest.raises(Refused, match="were not asked to agree"):
                work.add_up(json.dumps({"columns": PLAIN, "features": PLAIN["features"], "variables": ["age"]}))


def test_a_feature_that_is_the_same_everywhere_is_refused_and_one_that_is_not_is_not(tmp_path):
    (tmp_path / "same").mkdir()
    with pytest.raises(DataError, match=r"feature 'age' is 0\.1 in every complete row of every client"):
        Sites(write_tables(tmp_path / "same", age=0.1)).survey({"outcome": "y", "features": ["age"]})
    sites = Sites(write_tables(tmp_path, age=lambda frame, number: 0.1 + number))
    assert sites.survey({"outcome": "y", "features": ["age"]})["about"]["standardization"]["age"][1] > 0.5


def test_sums_of_digits_are_exact():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=40) * 10.0 ** rng.integers(-90, 90, 40)
    exact = float(sum(map(Fraction, numbers.tolist())))
    assert from_digits(np.sum([to_digits(number) for number in numbers], axis=0)) == exact == math.fsum(numbers)
    for number in (0.0, -1.0, 1e-140, LARGEST / 3, -LARGEST / 3, 5e-324):
        assert from_digits(to_digits(number)) == (number if abs(number) > 1e-300 else 0.0)
