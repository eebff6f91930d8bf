"""Settings that are numbers are data: changing them between two blocks compiles nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import contract_cases as cases
import fahmc
from fahmc.engines.client import ClientProgram
from fahmc.engines.order import Order
from fahmc.engines.run import begin
from fahmc.errors import SettingsError
from fahmc.runs.plan import make_run

pytestmark = pytest.mark.xdist_group("contract float64")
OTHERS = (
    {"step_size": 0.05},
    {"num_leapfrog_steps": 4},
    {"num_local_steps": 1},
    {"inverse_mass_matrix": np.array([2.0, 0.1, 1.0])},
    {"step_size": 0.2, "num_leapfrog_steps": 2, "num_local_steps": 3, "inverse_mass_matrix": [1.0, 1.0, 1.0]},
)


def with_other(phase: fahmc.Phase, settings: dict[str, Any]) -> fahmc.Phase:
    sampler: Any = phase.sampler
    return phase._replace(sampler=replace(sampler, **settings))


def test_on_one_machine(compilations):
    run = cases.run_of("leapfrog", "float64")
    session, phase, start = cases.IN_PROCESS.start(run), run.phases[-1], begin(run, run.phases[-1])
    ends = [session.advance(phase, start, 0, 3).state["position"]]
    compilations.clear()
    for other in OTHERS:
        ends.append(session.advance(with_other(phase, other), start, 0, 3).state["position"])
    assert not compilations
    assert len({end.tobytes() for end in ends}) == len(ends), "every setting must have its effect"


def test_in_row_space(compilations):
    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=(3, 6)), "y": rng.integers(0, 2, 3)} for _ in range(2)]
    run = make_run(
        fahmc.models.logistic_regression(1.0, intercept=False), fahmc.Federation.from_clients(rows),
        fahmc.FAHMC(0.1, 3, 2), 8, num_chains=2, dtype=np.dtype("float64"),
    )  # fmt: skip
    session, phase = fahmc.engines.InProcess(threads=1, row_space=True).start(run), run.phases[-1]
    assert session.path == "row space"
    state = session.advance(phase, begin(run, phase), 0, 2).state
    same = session.advance(phase, state, 2, 2).state
    compilations.clear()
    changed = session.advance(with_other(phase, {"step_size": 0.05}), state, 2, 2).state
    assert not compilations
    assert not np.array_equal(changed["base"], same["base"])
    with pytest.raises(SettingsError, match="began in row space"):
        session.advance(with_other(phase, {"inverse_mass_matrix": np.ones(6)}), state, 2, 2)


def test_at_a_client_of_its_own(compilations):
    run = cases.run_of("leapfrog", "float64")
    phase, name, rows = run.phases[-1], run.federation.names[0], run.federation.rows[0]
    state, own_models = begin(run, phase), ["contract_cases:linear"]
    program = ClientProgram(Order.of(run, phase), name, rows, own_models=own_models)
    replies = [program.reply(2, state)["position"]]
    compilations.clear()
    for other in OTHERS:
        order = Order.of(run, with_other(phase, other))
        program = ClientProgram(order, name, rows, own_models=own_models, before=program)
        replies.append(program.reply(2, state)["position"])
    assert not compilations
    assert len({reply.tobytes() for reply in replies}) == len(replies), "every setting must have its effect"
