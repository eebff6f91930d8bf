"""Names of scalar parameters, which of them are shown, and the table about them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fahmc.errors import DataError, SettingsError
from fahmc.report import mcse, parameter_table
from fahmc.report.parameters import MAX_SHOWN, Parameters


@pytest.fixture(scope="module")
def many(make_draws_of):
    """Thirty parameters; the chains are apart in numbers 7 and 21, and number 3 never moves."""
    values = np.random.default_rng(0).normal(size=(4, 200, 30))
    values[0, :, [7, 21]] += 3.0
    values[..., 3] = 1.5
    return make_draws_of(values)


def test_names_come_from_the_coordinates(federated):
    parameters = Parameters.from_draws(federated)
    assert set(parameters.names) >= {"intercept", "coefficients[treatment]", "coefficients[previous pregnancy]"}
    assert len(parameters.names) == 12
    np.testing.assert_array_equal(parameters["intercept"], federated.positions["intercept"])
    np.testing.assert_array_equal(parameters["coefficients[age]"], federated.positions["coefficients"][..., 1])


def test_matrices_and_repeated_labels_have_unique_names(make_draws_of):
    values = np.random.default_rng(1).normal(size=(2, 10, 2, 3))
    coords = {"row": ["a", "a"], "column": ["x", "y", "z"]}
    draws = make_draws_of(values, dims={"w": ("row", "column")}, coords=coords)
    parameters = Parameters.from_draws(draws)
    assert parameters.names == ("w[0, x]", "w[0, y]", "w[0, z]", "w[1, x]", "w[1, y]", "w[1, z]")
    np.testing.assert_array_equal(parameters["w[1, y]"], values[:, :, 1, 1])


def test_a_variable_stands_for_its_entries_and_a_typo_gets_a_suggestion(federated):
    parameters = Parameters.from_draws(federated)
    assert len(parameters.find("coefficients")) == 11
    assert parameters.find(["intercept", "coefficients[age]", "intercept"]) == ["intercept", "coefficients[age]"]
    with pytest.raises(SettingsError, match=r"did you mean 'coefficients\[age\]'"):
        parameters.find("coefficients[agee]")


def test_of_many_the_worst_are_shown_and_the_remark_says_so(many):
    parameters = Parameters.from_draws(many)
    chosen, remark = parameters.choose(None)
    assert len(chosen) == MAX_SHOWN
    assert {"w[3]", "w[7]", "w[21]"} <= set(chosen)
    assert remark == f" ({MAX_SHOWN} of 30 parameters, those with the worst R-hat)"
    chosen, _ = parameters.choose(None, first=["w[0]"])
    assert chosen[0] == "w[0]"
    assert len(chosen) == len(set(chosen)) == MAX_SHOWN
    assert parameters.choose(["w[1]"]) == (["w[1]"], "")


def test_the_table_knows_a_constant_has_no_r_hat(many):
    table = parameter_table(many)
    assert np.isnan(table.loc["w[3]", "r_hat"])
    assert table.loc["w[3]", "sd"] == 0
    assert sorted(table.nlargest(2, "r_hat").index) == ["w[21]", "w[7]"]


def test_the_table_compares_by_name_not_by_place(federated, pooled):
    """The reference lists its covariates backwards: the differences must not notice."""
    backwards = dataclasses.replace(
        pooled,
        positions={**pooled.positions, "coefficients": pooled.positions["coefficients"][..., ::-1]},
        coords={"covariate": tuple(reversed(pooled.coords["covariate"]))},
    )
    table, same = parameter_table(federated, reference=backwards), parameter_table(federated, reference=pooled)
    np.testing.assert_allclose(table["difference_mcse"], same["difference_mcse"])
    np.testing.assert_allclose(table["reference_mean"], same["reference_mean"])
    a, b = (x.positions["coefficients"][..., 7].astype(float) for x in (federated, pooled))
    error = np.hypot(mcse(a)["position"], mcse(b)["position"])
    row = table.loc["coefficients[diabetes]"]
    assert row["difference_mcse"] == pytest.approx((a.mean() - b.mean()) / error, rel=1e-6)
    assert row["difference_sd"] == pytest.approx((a.mean() - b.mean()) / b.std(ddof=1), rel=1e-4)


def test_runs_of_other_models_are_refused(federated, many):
    with pytest.raises(DataError, match="Only one of the two runs"):
        parameter_table(federated, reference=many)


def test_no_parameters_is_an_error(make_draws_of):
    with pytest.raises(DataError, match="no parameters"):
        Parameters.from_draws(make_draws_of(np.zeros((2, 5, 0))))
