"""The multi-site trial that ships with fahmc.

Does treating gum disease in pregnancy prevent preterm birth? The Obstetrics and Periodontal Therapy trial randomised
823 women at four clinics. Here each clinic is a client, the outcome is preterm birth (before 37 weeks), and the
question is the coefficient of ``treatment``.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from fahmc.data.columns import Columns
from fahmc.data.study import Study, build_study
from fahmc.data.tables import Table, read_sites

# Readable name of each feature, and its column in the file.
_FEATURES = {
    "treatment": "Group",
    "age": "Age",
    "black": "Black",
    "native_american": "Nat.Am",
    "education": "Education",
    "public_assistance": "Public.Asstce",
    "hypertension": "Hypertension",
    "diabetes": "Diabetes",
    "previous_pregnancy": "Prev.preg",
    "pocket_depth": "BL.PD.avg",
    "bleeding_on_probing": "BL..BOP",
}
_OUTCOME = "Preg.ended...37.wk"
_CODES = {
    **{"Yes": 1.0, "No": 0.0, "Y": 1.0, "N": 0.0, "T": 1.0, "C": 0.0},
    # The first in alphabetical order is the reference: it is also the largest group.
    **{"LT 8 yrs": "under 8 years", "8-12 yrs": "8-12 years", "MT 12 yrs": "over 12 years"},
}


def opt_csv_path() -> Path:
    """Return where the trial's table lies, to copy it or to sample it through a configuration file."""
    # An installed package is a folder of files, so the path outlives the context manager.
    with as_file(files("fahmc.data").joinpath("opt", "opt.csv")) as path:
        return path


def clinic_tables() -> dict[str, Table]:
    """Return each clinic's own table, as it would hold it."""
    return {clinic: _rename(table) for clinic, table in read_sites(opt_csv_path(), "Clinic").items()}


def load_opt_trial() -> Study:
    """Return the trial with one client per clinic; the 9 women whose outcome is unknown are dropped.

    Race enters as two indicators against white and other women; a woman may have both. Age, pocket depth and bleeding
    are standardised over all clinics, and every other feature is 0 or 1.

    Examples
    --------
    >>> study = load_opt_trial()
    >>> {clinic: len(rows["y"]) for clinic, rows in study.clients.items()}
    {'KY': 208, 'MN': 247, 'MS': 192, 'NY': 167}
    >>> study.outcome_levels
    ('term', 'preterm')
    """
    return build_study(clinic_tables(), Columns("outcome", outcome_positive="preterm", missing="drop"))


def _rename(table: Table) -> Table:
    """Give columns and levels the names that a reader of the posterior should see."""
    columns = {
        name: np.array([_CODES.get(cell, cell) for cell in table.columns[source]], dtype=object)
        for name, source in _FEATURES.items()
    }
    births = {"Yes": "preterm", "No": "term", None: None}
    columns["outcome"] = np.array([births[cell] for cell in table.columns[_OUTCOME]], dtype=object)
    return table._replace(columns=columns)
