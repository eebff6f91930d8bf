"""Predictive checks summed over sites are those of all rows in one place; a model that does not fit is told so."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc.checks import Fit, PosteriorPredictive
from fahmc.checks import pointwise as pointwise_file
from fahmc.checks.check import answer_here
from fahmc.checks.predictive import may_tell
from fahmc.checks.predictive_result import FALSE_ALARM
from fahmc.checks.replicates import ranks_among, replicated_outcomes, replicates_key
from fahmc.errors import DataError, FahmcError, ModelError, SettingsError

SIZES = {"north": 40, "south": 25, "east": 35}
NUM_ROWS = sum(SIZES.values())


def split(rows: dict[str, Any], sizes=SIZES) -> fahmc.Federation:
    ends = np.cumsum(list(sizes.values()))[:-1]
    parts = {name: np.split(values, ends) for name, values in rows.items()}
    return fahmc.Federation.from_clients(
        {name: {key: values[place] for key, values in parts.items()} for place, name in enumerate(sizes)}
    )


def made(positions, model) -> fahmc.Draws:
    stats = {"diverging": np.zeros(next(iter(positions.values())).shape[:2], bool)}
    return fahmc.Draws(positions, stats, ("a",), None, {}, {}, model=model)


def loglikelihood(position, batch):  # of counts; no check here looks at it
    return batch["y"] * position["log_rate"] - jnp.exp(position["log_rate"])


def poisson(key, position, batch):
    """Draw counts by the inverse of their distribution function: compiled in a tenth of `jax.random.poisson`'s time."""
    logs = position["log_rate"] * POSSIBLE - LOG_FACTORIALS - jnp.exp(position["log_rate"])
    return jnp.searchsorted(jnp.cumsum(jnp.exp(logs)), jax.random.uniform(key, batch["y"].shape))


POSSIBLE = np.arange(40.0)
LOG_FACTORIALS = np.cumsum(np.log(np.maximum(POSSIBLE, 1.0)))
# The same rate for all rows: with a Gamma(1/2, 0) prior its posterior is Gamma(1/2 + Σ y, n), so no sampler is needed.
COUNTS = fahmc.Model(loglikelihood, sample_fn=poisson)


def count_draws(y: np.ndarray, seed: int = 0) -> fahmc.Draws:
    rates = np.random.default_rng(seed).gamma(0.5 + y.sum(), 1 / len(y), size=(2, 250))
    return made({"log_rate": np.log(rates)}, COUNTS)


def pure(key, position, batch):  # without chance
    return position["slope"] * batch["x"] + position["shift"]


PURE = fahmc.Model(lambda position, batch: batch["y"], sample_fn=pure)


@pytest.fixture(scope="module")
def line():
    rng = np.random.default_rng(3)
    x = rng.normal(size=NUM_ROWS)
    rows = {"x": x, "y": 1.2 * x + rng.normal(size=NUM_ROWS)}
    return rows, made({"slope": 1 + 0.3 * rng.normal(size=(2, 60)), "shift": 0.5 * rng.normal(size=(2, 60))}, PURE)


def test_statistics_over_sites_are_those_of_all_rows(line):
    rows, draws = line
    check = draws.predictive_check(split(rows))
    slope, shift = (draws.positions[name].reshape(-1, 1) for name in ("slope", "shift"))
    replicated = slope * rows["x"] + shift  # [draw, row]
    for name, statistic in {"mean": np.mean, "sd": np.std}.items():
        seen, predicted = statistic(rows["y"]), statistic(replicated, axis=1)
        expected = [seen, *np.quantile(predicted, [0.5, 0.05, 0.95]), ((predicted > seen).sum() + 0.5) / 121]
        np.testing.assert_allclose(check.statistics[name], expected, rtol=1e-10, err_msg=name)
    assert "zeros" not in check.statistics and not check.is_binary
    both = np.vstack([rows["y"], replicated])
    squares = (((both - both.mean(axis=0)) / both.std(axis=0)) ** 2).mean(axis=1)
    np.testing.assert_allclose(check.statistics["residuals"].observed, squares[0], rtol=1e-10)
    np.testing.assert_allclose(check.statistics["residuals"].predicted, np.median(squares[1:]), rtol=1e-10)
    # Without ties a rank is a count of smaller ones.
    ranks = (replicated < rows["y"]).sum(axis=0)
    counts = np.bincount(ranks * 16 // 121, minlength=16)
    np.testing.assert_array_equal(check.binned["observed"], counts)
    inside = ((ranks * 16 // 121 >= 4) & (ranks * 16 // 121 < 12)).mean()
    assert check.statistics["inside_50"].observed == pytest.approx(inside)
    shares = np.bincount(np.arange(121) * 16 // 121) / 121
    unevenness = ((counts - NUM_ROWS * shares) ** 2 / (NUM_ROWS * shares)).sum()
    assert check.statistics["ranks"].observed == pytest.approx(unevenness)
    assert check.sites["south"].num_rows == 25
    np.testing.assert_allclose(check.sites["south"].statistics["sd"].observed, rows["y"][40:65].std())
    assert list(check.table.columns) == ["observed", "predicted", "5%", "95%", "p_value"]
    assert check.site_table.loc[("east", "mean"), "observed"] == pytest.approx(rows["y"][65:].mean())


def test_the_split_and_blocks_of_rows_change_nothing(line, monkeypatch):
    rows, draws = line

    def numbers(check):
        return [*check.table.to_numpy().ravel(), *check.binned.to_numpy().ravel()]

    expected = numbers(draws.predictive_check(split(rows)))
    for sizes in ({"one": 100}, {"a": 1, "b": 50, "c": 49}):
        np.testing.assert_allclose(numbers(draws.predictive_check(split(rows, sizes))), expected, rtol=1e-10)
    monkeypatch.setattr(pointwise_file, "_MOST_NUMBERS", 120 * 7)
    np.testing.assert_allclose(numbers(draws.predictive_check(split(rows))), expected, rtol=1e-10)


def test_ranks_with_ties_are_evenly_spread():
    rng = np.random.default_rng(5)
    key = replicates_key(Fit(COUNTS, {}, {}, "north"), 0)
    y = rng.poisson(0.5, size=(4000, 16)).astype(float)
    ranks = ranks_among(y[:, 0], y[:, 1:], key, np.arange(4000))
    np.testing.assert_array_equal(np.sort(ranks, axis=1), np.tile(np.arange(16), (4000, 1)))
    assert (np.take_along_axis(y, np.argsort(ranks, axis=1), axis=1)[:, 1:] >= np.sort(y, axis=1)[:, :-1]).all()
    # Chi-square with 15 degrees of freedom: above 63 with a chance of 1e-7.
    assert ((np.bincount(ranks[:, 0], minlength=16) - 250) ** 2 / 250).sum() < 63


def test_a_model_that_does_not_fit_fails_and_a_right_one_does_not():
    rng = np.random.default_rng(1)
    # Mean 2 and variance 10, where the model makes variance 2.
    overdispersed = rng.negative_binomial(0.5, 0.2, NUM_ROWS).astype(float)
    check = count_draws(overdispersed).predictive_check(split({"y": overdispersed}))
    assert {name for name in check.statistics if check.statistics[name].chance(name) < FALSE_ALARM} == {
        "sd",
        "zeros",
        "residuals",
        "ranks",
        "inside_50",
    }
    assert check.statistics["sd"].p_value < 0.005 and 0.1 < check.statistics["mean"].p_value < 0.9
    assert not check.fits and "The standard deviation of the outcomes is" in str(check) and "does not fit" in str(check)
    # Each of 6 statistics is wrongly said to fail at most about once in 100: over 3 right models, 4 or more with
    # a chance of about 3e-5.
    false_alarms = 0
    for seed in range(3):
        y = np.random.default_rng(seed).poisson(2.0, NUM_ROWS).astype(float)
        right = count_draws(y, seed).predictive_check(split({"y": y}, {"one": 100}))
        false_alarms += sum(statistic.chance(name) < FALSE_ALARM for name, statistic in right.statistics.items())
        assert right.fits == ("makes outcomes like those there are" in str(right))
    assert false_alarms < 4


def test_a_site_that_differs_is_named():
    rng = np.random.default_rng(2)
    y = np.concatenate([rng.poisson(2.0, 40), rng.poisson(2.0, 25), rng.poisson(4.0, 35)]).astype(float)
    check = count_draws(y).predictive_check(split({"y": y}))
    # The rate is that of all rows: the mean of all fits, that of a site does not.
    assert 0.1 < check.statistics["mean"].p_value < 0.9
    assert any("mean of the outcomes at east" in remark for remark in check.remarks)


def fit_of(y: Any, num_draws: int = 40, **settings: Any) -> Fit:
    return Fit(
        COUNTS, {"log_rate": np.linspace(-0.2, 0.2, num_draws)}, {"y": np.asarray(y, float)}, "north", **settings
    )


def test_few_outcomes_are_not_told():
    check = PosteriorPredictive()
    few_ones = np.repeat([0.0, 1.0], [55, 5])
    silent = answer_here(check, [fit_of(few_ones)], 10)
    assert silent.pop("num_rows") == 60
    assert not any(array.any() for array in silent.values())
    told = answer_here(check, [fit_of(np.repeat([0.0, 1.0], [45, 15]))], 10)
    assert told["sum"] == 15 and told["zeros"] == 45
    assert not told["residuals"].any(), "a row whose predicted sd is made small would stand out of the sum"
    assert told["bins"].sum() == 60 and told["bins"][told["bins"] > 0].min() >= 10
    # Bins that are put together are so for outcomes that the model makes, too.
    is_start = np.concatenate([[1], told["edges"]]) > 0
    assert not told["made_bins"][:, ~is_start].any() and (~is_start).sum() > 5
    # Enough rows differ, but of too few is it told that they are 0.
    counts = np.concatenate([np.zeros(5), np.arange(1, 56)])
    partly = answer_here(check, [fit_of(counts)], 10)
    assert partly["is_told"] and not partly["tells_zeros"] and not partly["zeros"] and not partly["made_zeros"].any()
    result = check.conclude({"north": partly, "south": told, "east": silent | {"num_rows": np.array(60)}})
    assert (result.silent, result.without_zeros, result.num_rows) == (["east"], ["north"], 120)
    assert result.statistics["zeros"].observed == 45 / 60
    assert "Left out, since too few" in str(result) and "without north" in str(result)
    with pytest.raises(DataError, match="None of the sites"):
        check.conclude({"east": silent | {"num_rows": np.array(60)}})


def test_censored_times_have_ranks_alone():
    check, y = PosteriorPredictive(), np.arange(60.0)
    fit = fit_of(y)
    censored = fit._replace(rows={**fit.rows, "event": np.repeat([0.0, 1.0], 30)})
    plain, answer = (answer_here(check, [one], 1) for one in (fit, censored))
    assert plain["sum"] and not answer["sum"] and not answer["made_sum"].any() and not answer["made_zeros"].any()
    np.testing.assert_array_equal(answer["bins"], plain["bins"])
    result = check.conclude({"north": answer})
    assert result.is_censored and set(result.statistics) == {"ranks", "inside_50"} and "ranks do" in str(result)


def test_which_outcomes_may_be_told():
    assert not may_tell(np.zeros(60), 10) and not may_tell(np.repeat([0.0, 1.0], [9, 51]), 10)
    assert may_tell(np.repeat([0.0, 1.0], [10, 50]), 10) and may_tell(np.repeat([0.0, 1.0], [1, 59]), 1)
    # Three values follow from n, the sum and the sum of squares.
    assert not may_tell(np.repeat([0.0, 1.0, 2.0], [40, 40, 1]), 10)
    assert may_tell(np.arange(20.0), 10) and not may_tell(np.concatenate([np.zeros(50), np.arange(9.0)]), 10)


def test_a_secret_decides_what_is_drawn_and_not_what_is_seen():
    check = PosteriorPredictive(seed=3)
    y = np.repeat([0.0, 1.0, 3.0], 20)
    open_answer, *secret = (answer_here(check, [fit_of(y, private_seed=own)], 10) for own in (None, 8, 8, 9))
    for name in ("sum", "squares", "zeros"):
        assert open_answer[name] == secret[0][name] == secret[2][name]
    np.testing.assert_array_equal(secret[0]["made_sum"], secret[1]["made_sum"])
    for other in (open_answer, secret[2]):
        assert (other["made_sum"] != secret[0]["made_sum"]).any()


def test_outcomes_of_rows_sites_draws_and_seeds_are_unlike(monkeypatch):
    monkeypatch.setattr(pointwise_file, "_MOST_NUMBERS", 40 * 20)
    fit = fit_of(np.zeros(60))._replace(positions={"log_rate": np.full(40, 3.0)})
    keys = replicates_key(fit, 0), replicates_key(fit, 1), replicates_key(fit._replace(site="south"), 0)
    several = np.vstack([np.vstack([made for _, made in replicated_outcomes(fit, key)]) for key in keys])
    assert len(np.unique(several, axis=0)) == 180 and len(np.unique(several, axis=1).T) == 40


def test_refusals_are_sentences(line):
    rows, draws = line
    federation = split(rows)

    def check(**changes: Any):
        return draws.predictive_check(federation, model=dataclasses.replace(PURE, **changes))

    with pytest.raises(ModelError, match=r"has no sample_fn, so it cannot say .* give Model\(sample_fn"):
        check(sample_fn=None)
    with pytest.raises(ModelError, match="sample_fn failed"):
        check(sample_fn=lambda key, position, batch: batch["z"])
    with pytest.raises(ModelError, match=r"sample_fn returned shape"):
        check(sample_fn=lambda key, position, batch: jnp.stack([batch["x"]] * 2, axis=1))
    with pytest.raises(ModelError, match="not finite"):
        check(sample_fn=lambda key, position, batch: batch["x"] / 0)
    with pytest.raises(SettingsError, match="seed"):
        draws.predictive_check(federation, seed=-1)
    with pytest.raises(FahmcError, match="about one model"):
        answer_here(PosteriorPredictive(), [fit_of([1.0]), fit_of([1.0])], 1)
