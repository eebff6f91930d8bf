import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import h5netcdf
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import fahmc
from fahmc import _arviz, draws_file, tree
from fahmc._arviz import arviz
from fahmc.errors import CheckpointError, DataError, ModelError, SettingsError

NAMES = ["age", "bmi", "dose"]
MODEL = fahmc.models.logistic_regression(feature_names=NAMES)


@pytest.fixture(scope="module")
def draws(logistic_study):
    return fahmc.sample(MODEL, logistic_study, fahmc.FAHMC(0.05, 5), 200, num_warmup_rounds=50, progress=False, seed=1)


def test_positions_are_the_users_pytree(draws):
    assert set(draws.positions) == {"coefficients", "intercept"}
    assert draws.positions["coefficients"].shape == (4, 200, 3)
    assert draws.positions["intercept"].shape == (4, 200)
    assert (draws.num_chains, draws.num_draws) == (4, 200)


def test_summary_is_arvizs_with_plain_intervals(draws):
    table = draws.summary()
    assert list(table.index) == [f"coefficients[{name}]" for name in NAMES] + ["intercept"]
    values = draws.positions["coefficients"][:, :, 1]
    assert table.loc["coefficients[bmi]", "mean"] == pytest.approx(values.mean())
    assert table.loc["coefficients[bmi]", "sd"] == pytest.approx(values.std(ddof=1))
    np.testing.assert_allclose(
        table.loc["coefficients[bmi]", ["2.5%", "97.5%"]].astype(float), np.quantile(values, [0.025, 0.975])
    )
    assert {"ess_bulk", "ess_tail", "mcse_mean", "r_hat"} <= set(table.columns)
    assert {"5%", "95%"} <= set(draws.summary(interval=0.9).columns)


def test_a_summary_does_not_warn(tmp_path):
    code = (
        "from fahmc import Draws; from numpy import eye; Draws(eye(9), {'n': eye(9)}, 'a', eye(9, 1), {}, {}).summary()"
    )
    # ArviZ's announcement comes once a day, as a file in the user's cache remembers; here there is none.
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True)


@pytest.mark.parametrize(("num_chains", "num_rounds"), [(1, 1), (1, 30), (3, 2), (8, 4)])
def test_short_runs_have_a_summary_too(num_chains, num_rounds):
    federation = fahmc.Federation.from_clients([np.arange(5.0)])
    model = fahmc.Model(lambda position, batch: -((batch - position) ** 2), init=jnp.zeros(()))
    options = {"num_chains": num_chains, "progress": False}
    table = fahmc.sample(model, federation, fahmc.HMC(0.1, 3), num_rounds, **options).summary()
    assert np.isfinite(table.loc["position", "mean"])
    assert np.isnan(table.loc["position", "r_hat"]) == (num_chains == 1 or num_rounds < 4)


def test_arviz_groups(draws, logistic_study):
    data = draws.to_arviz(logistic_study)
    assert data.posterior.sizes == {"chain": 4, "draw": 200, "feature": 3}
    assert list(data.posterior.feature.values) == NAMES
    assert {"step_size", "n_steps", "client_drift", "diverging"} <= set(data.sample_stats.data_vars)
    assert data.sample_stats.n_steps.values.max() == 5
    assert list(data.sample_stats.client.values) == ["north", "south", "east"]
    assert data.posterior.attrs["inference_library"] == "fahmc"
    rows = logistic_study.pooled().rows[0]
    logits = rows["x"] @ draws.positions["coefficients"][2, 7] + draws.positions["intercept"][2, 7]
    np.testing.assert_allclose(data.log_likelihood["y"].values[2, 7], rows["y"] * logits - np.logaddexp(0, logits))
    np.testing.assert_array_equal(data.observed_data["y"].values, rows["y"])
    assert data.constant_data["x"].dims == ("row", "feature") and list(data.constant_data.feature.values) == NAMES
    owners = np.repeat(logistic_study.names, logistic_study.sizes)
    assert list(data.observed_data.client.values) == list(data.log_likelihood.client.values) == list(owners)
    assert np.isfinite(arviz.loo(data).p if _arviz.HAS_TREES else arviz.loo(data).p_loo)


def test_warmup_is_a_group_of_its_own_if_asked_for(draws):
    data = draws.to_arviz(warmup=50)
    assert data.warmup_posterior.sizes["draw"] == data.warmup_sample_stats.sizes["draw"] == 50
    assert list(data.posterior.draw.values) == list(range(50, 200))
    np.testing.assert_array_equal(data.posterior["intercept"].values, draws.positions["intercept"][:, 50:])
    with pytest.raises(SettingsError, match="warmup is 200, but a chain has 200 draws"):
        draws.to_arviz(warmup=200)


def test_a_run_that_keeps_its_warmup_goes_on_as_one_that_does_not(logistic_study):
    sampler, options = fahmc.FAHMC(0.05, 3), {"num_chains": 2, "progress": False}
    kept = fahmc.sample(MODEL, logistic_study, sampler, 30, **options).to_arviz(warmup=10)
    dropped = fahmc.sample(MODEL, logistic_study, sampler, 20, num_warmup_rounds=10, **options)
    np.testing.assert_array_equal(kept.posterior["intercept"].values, dropped.positions["intercept"])


def test_rows_that_are_elsewhere_have_no_groups(draws):
    with pytest.raises(DataError, match=r"draws\.loo\(rows, engine=\.\.\.\) asks the sites"):
        draws.to_arviz(fahmc.Sites(outcome="y"))


def test_rows_that_are_no_dict_have_groups_too():
    federation = fahmc.Federation.from_clients([np.arange(5.0), np.arange(3.0)])
    model = fahmc.Model(lambda position, batch: -((batch - position) ** 2), init=jnp.zeros(()))
    draws = fahmc.sample(model, federation, fahmc.HMC(0.1, 3), 5, num_chains=2, progress=False)
    data = draws.to_arviz(federation)
    assert data.constant_data["rows"].values.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert data.log_likelihood["y"].shape == (2, 5, 8)
    assert "observed_data" not in data.children if _arviz.HAS_TREES else not hasattr(data, "observed_data")


def test_saved_and_loaded_draws_are_the_same(draws, tmp_path):
    draws.save(tmp_path / "run.nc")
    loaded = fahmc.Draws.load(tmp_path / "run.nc")
    for name, values in draws.named().items():
        np.testing.assert_array_equal(loaded.named()[name], values)
    for name, values in draws.stats.items():
        np.testing.assert_array_equal(loaded.stats[name], values)
    np.testing.assert_array_equal(loaded.client_drift, draws.client_drift)
    assert loaded.client_names == draws.client_names
    assert loaded.settings == json.loads(json.dumps(draws.settings)) and loaded.cost == draws.cost
    assert list(loaded.summary().index) == list(draws.summary().index)
    with xarray.open_dataset(tmp_path / "run.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior.sizes["draw"] == 200, "other programs can read the file"
    with pytest.raises(ModelError, match=r"give model="):
        loaded.predict({"x": np.zeros((1, 3))})
    np.testing.assert_allclose(
        loaded.predict({"x": np.ones((2, 3))}, model=MODEL), draws.predict({"x": np.ones((2, 3))})
    )


def test_weights_bound_what_the_summary_claims_and_survive_a_file(draws, tmp_path):
    plain = draws.summary()
    ess, errors = [50.0, 1e9, 60.0, 1e9], [1.0, 0.0, 2.0, 0.0]
    weights = {"k_hat": 0.3, "num_points": 9, "ess": ess, "mcse": errors, "mcse_sd": errors}
    account = {"choices": ["..."], "doubts": [], "weights": weights}
    dataclasses.replace(draws, account=account).save(tmp_path / "run.nc")
    loaded = fahmc.Draws.load(tmp_path / "run.nc")
    assert loaded.account == account
    table = loaded.summary()
    assert list(table["ess_bulk"]) == [50.0, plain["ess_bulk"].iloc[1], 60.0, plain["ess_bulk"].iloc[3]]
    assert list(table["mcse_mean"]) == [1.0, plain["mcse_mean"].iloc[1], 2.0, plain["mcse_mean"].iloc[3]]


@pytest.mark.parametrize("content", [b"", b"not netcdf", None])
def test_unreadable_file_gets_a_sentence(tmp_path, content):
    if content is not None:
        (tmp_path / "run.nc").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"Draws\.save"):
        fahmc.Draws.load(tmp_path / "run.nc")


class Pair(NamedTuple):
    first: Any
    second: list


def test_every_kind_of_pytree_survives_a_file(tmp_path):
    rows = {"y": np.arange(5.0)}
    federation = fahmc.Federation.from_clients([rows, rows])

    def loglikelihood_fn(position, batch):
        pair = position["b"]
        return -((batch["y"] - pair.first - pair.second[0].sum() - position["a"][1]) ** 2)

    start = {"b": Pair(jnp.zeros(()), [jnp.zeros((2, 2))]), "a": (jnp.zeros(3), jnp.zeros(()))}
    model = fahmc.Model(loglikelihood_fn, lambda p: -jnp.sum(p["a"][0] ** 2), init=start)
    draws = fahmc.sample(model, federation, fahmc.FAHMC(0.01, 2), 6, num_chains=2, progress=False)
    assert isinstance(draws.positions["b"], Pair) and draws.positions["b"].second[0].shape == (2, 6, 2, 2)
    draws.save(tmp_path / "run.nc")
    loaded = fahmc.Draws.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(loaded.positions["b"].second[0], draws.positions["b"].second[0])
    np.testing.assert_array_equal(loaded.flat(), draws.flat())
    np.testing.assert_array_equal(loaded.positions["a"][1], draws.positions["a"][1])
    assert isinstance(loaded.positions["a"], tuple)


def test_bare_array_and_scalar_positions(tmp_path):
    federation = fahmc.Federation.from_clients([np.arange(5.0)])
    model = fahmc.Model(lambda position, batch: -((batch - position) ** 2), init=lambda key: jnp.zeros(()))
    draws = fahmc.sample(model, federation, fahmc.HMC(0.1, 3), 10, num_chains=2, progress=False)
    assert draws.positions.shape == (2, 10) and list(draws.summary().index) == ["position"]
    draws.save(tmp_path / "run.nc")
    np.testing.assert_array_equal(fahmc.Draws.load(tmp_path / "run.nc").positions, draws.positions)


def test_predictions_average_over_draws(draws):
    batch = {"x": np.random.default_rng(0).normal(size=(6, 3))}
    each = draws.predict(batch, average=False)
    assert each.shape == (4, 200, 6)
    np.testing.assert_allclose(draws.predict(batch), each.mean((0, 1)))
    logits = batch["x"] @ draws.positions["coefficients"][1, 3] + draws.positions["intercept"][1, 3]
    np.testing.assert_allclose(each[1, 3], 1 / (1 + np.exp(-logits)))


def test_order_of_parameters_survives_a_file(tmp_path):
    start = OrderedDict([("b", jnp.array(5.0)), ("a", jnp.array(-5.0))])
    model = fahmc.Model(lambda p, batch: -((batch - p["a"]) ** 2), lambda p: -((p["b"] - 5) ** 2), init=start)
    draws = fahmc.sample(model, fahmc.Federation.from_clients([np.full(9, -5.0)]), fahmc.HMC(0.1), 9, progress=False)
    draws.save(tmp_path / "run.nc")
    loaded = fahmc.Draws.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(loaded.positions["b"], draws.positions["b"])
    np.testing.assert_array_equal(loaded.flat(), draws.flat())


def test_predictions_of_any_kind_and_number_are_averaged_exactly(draws):
    batch = {"x": np.ones((2, 3)), "y": np.zeros(2)}
    always = fahmc.Model(MODEL.loglikelihood_fn, predict_fn=lambda position, rows: rows["x"][:, 0] > 0)
    np.testing.assert_array_equal(draws.predict(batch, model=always), [1.0, 1.0])
    # 800 float32 numbers of 2^24 + 2: a running sum in single precision would drift.
    large = fahmc.Model(MODEL.loglikelihood_fn, predict_fn=lambda p, rows: jnp.full(2, 2.0**24 + 2, jnp.float32))
    np.testing.assert_array_equal(draws.predict(batch, model=large), [2.0**24 + 2] * 2)
    with pytest.raises(ModelError, match="predict_fn failed: KeyError: 'x'"):
        draws.predict({"X": batch["x"]})


def test_saving_into_a_missing_folder_gets_a_sentence(draws, tmp_path):
    with pytest.raises(CheckpointError, match="cannot be saved"):
        draws.save(tmp_path / "none" / "run.nc")


def test_numpy_counts_reach_the_file(tmp_path):
    model = fahmc.Model(lambda p, batch: -((batch - p) ** 2), init=jnp.zeros(()))
    options: dict = {"num_rounds": np.int64(6), "thin": np.int64(2), "num_chains": np.int32(2), "seed": np.int64(3)}
    rows = fahmc.Federation.from_clients([np.arange(4.0)])
    draws = fahmc.sample(model, rows, fahmc.HMC(0.1), **options, checkpoint_dir=tmp_path / "run", progress=False)
    draws.save(tmp_path / "run.nc")
    assert fahmc.Draws.load(tmp_path / "run.nc").num_draws == 3


@pytest.mark.parametrize("there", [b"my thesis", b"\x89HDF\r\n\x1a\n" + bytes(600), "folder"])
def test_only_draws_are_replaced(draws, tmp_path, there):
    file = tmp_path / "run.nc"
    file.mkdir() if there == "folder" else file.write_bytes(there)
    with pytest.raises(CheckpointError, match=r"there already, and Draws\.save did not write it"):
        draws.save(file)
    assert file.is_dir() if there == "folder" else file.read_bytes() == there
    draws.save(tmp_path / "mine.nc")
    draws.save(tmp_path / "mine.nc")
    (tmp_path / "empty.nc").touch()
    draws.save(tmp_path / "empty.nc")
    assert fahmc.Draws.load(tmp_path / "empty.nc").num_draws == 200


def test_damaged_draws_are_refused_before_hdf5_sees_them(draws, tmp_path):
    file = tmp_path / "run.nc"
    draws.save(file)
    content = file.read_bytes()
    for place in range(0, len(content), len(content) // 60):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointError, match=r"(damaged|its end is missing)"):
            fahmc.Draws.load(file)
        file.write_bytes(content[:place])
        with pytest.raises(CheckpointError, match=r"Draws\.save"):
            fahmc.Draws.load(file)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(CheckpointError, match="is not a file"):
            fahmc.Draws.load(tmp_path / name)


def test_draws_that_cannot_be_are_refused_though_their_checksum_holds(draws, tmp_path):
    data = draws.groups()
    about = {"positions": tree.skeleton(draws.positions), "settings": {}, "cost": {}, "account": {}, "dims": {}}
    fewer = data | {"posterior": data["posterior"].isel(draw=slice(9))}
    no_client = data | {"sample_stats": data["sample_stats"].drop_vars("client")}
    for forged, words in [
        (data, about),
        (data, {}),
        (data, about | {"coords": {}, "positions": "none"}),
        (data, about | {"coords": {}, "settings": 5}),
        (fewer, about | {"coords": {}}),
        (no_client, about | {"coords": {}}),
    ]:
        (tmp_path / "run.nc").write_bytes(b"".join(draws_file.encode(forged, words)))
        with pytest.raises(CheckpointError, match=r"Draws\.save"):
            fahmc.Draws.load(tmp_path / "run.nc")


def test_a_file_that_claims_more_than_it_can_hold_is_refused(tmp_path):
    content = io.BytesIO()
    with h5netcdf.File(content, "w") as file:
        file.attrs["fahmc"] = "{}"
        file.dimensions = {"chain": 2, "draw": 10**12}
        file.create_variable("/posterior/x", ("chain", "draw"), float, chunks=(1, 10**6))
    netcdf = content.getvalue()
    (tmp_path / "run.nc").write_bytes(netcdf + draws_file._MARK + hashlib.sha256(netcdf).hexdigest().encode())
    with pytest.raises(CheckpointError, match="cannot be in"):
        fahmc.Draws.load(tmp_path / "run.nc")
