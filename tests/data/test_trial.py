"""The trial that ships with the package: counts that its source states, and a design that can be sampled."""

import numpy as np
import pandas as pd

from fahmc.data.trial import load_opt_trial, opt_csv_path


def test_the_file_is_the_whole_trial():
    frame = pd.read_csv(opt_csv_path())
    assert frame["Clinic"].value_counts().to_dict() == {"MN": 247, "KY": 211, "MS": 192, "NY": 173}
    assert frame["Preg.ended...37.wk"].value_counts(dropna=False).to_list() == [711, 103, 9]
    assert frame["Group"].value_counts().to_dict() == {"T": 413, "C": 410}


def test_each_clinic_is_a_client_and_unknown_outcomes_are_counted():
    study = load_opt_trial()
    assert {clinic: len(rows["y"]) for clinic, rows in study.clients.items()} == {
        "KY": 208,
        "MN": 247,
        "MS": 192,
        "NY": 167,
    }
    assert study.dropped == {"KY": 3, "MN": 0, "MS": 0, "NY": 6}
    assert {clinic: int(rows["y"].sum()) for clinic, rows in study.clients.items()} == {
        "KY": 21,
        "MN": 25,
        "MS": 33,
        "NY": 24,
    }


def test_the_design_is_well_posed_and_readable():
    study = load_opt_trial()
    x = np.concatenate([rows["x"] for rows in study.clients.values()])
    assert x.shape == (814, len(study.feature_names)) and np.isfinite(x).all()
    assert study.feature_names[:4] == ("treatment", "age", "black", "native_american")
    assert set(study.standardization) == {"age", "pocket_depth", "bleeding_on_probing"}
    is_scaled = np.isin(study.feature_names, list(study.standardization))
    np.testing.assert_allclose(x[:, is_scaled].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x[:, is_scaled].std(axis=0), 1, rtol=1e-12)
    assert set(np.unique(x[:, ~is_scaled])) == {0.0, 1.0}
    assert np.linalg.cond(np.column_stack([np.ones(814), x])) < 20


def test_first_woman_of_new_york_is_encoded_as_the_file_says():
    # NY,C,25,Yes,No,No,8-12 yrs,No,N,No,No,2.696,48.214,No
    study = load_opt_trial()
    row = dict(zip(study.feature_names, study.clients["NY"]["x"][0], strict=True))
    raw = {name: row[name] * scale.sd + scale.mean for name, scale in study.standardization.items()}
    np.testing.assert_allclose([raw["age"], raw["pocket_depth"], raw["bleeding_on_probing"]], [25, 2.696, 48.214])
    assert {name for name, value in row.items() if name not in raw and value == 1} == {"black"}
    assert study.clients["NY"]["y"][0] == 0
