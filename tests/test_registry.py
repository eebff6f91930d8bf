"""Settings come back from plain values as they were; code does not go in, and what is not registered does not run."""

import importlib
import json
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import FAHMC, FALD, HMC, DebiasedFAHMC, FullGradient, GaussianNoise, Minibatch, registry
from fahmc.density.supports import constrain
from fahmc.dynamics.schedules import Stages
from fahmc.engines.order import Order, sampler_recipe
from fahmc.errors import FederationError, ModelError, SettingsError
from fahmc.models.recipes import build_model, model_recipe, with_feature_names


def sent(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return what arrives at the other end of a connection that carries JSON."""
    return json.loads(json.dumps(recipe, allow_nan=False))


@pytest.mark.parametrize(
    "sampler",
    [
        FAHMC(0.1),
        FAHMC(1 / 3, 7, 2, 0.25, Minibatch(5), "leapfrog", reuse_gradient=True),
        FALD(float(np.float32(0.1)), momentum_correlation=0, gradient=GaussianNoise(0.1 + 0.2)),
        DebiasedFAHMC(0.1, num_local_steps=3, gradient=GaussianNoise(2, of=Minibatch(9)), first_anchor="origin"),
        FAHMC(Stages(0.3, 5), gradient=GaussianNoise(0.0, of=FullGradient())),
        HMC(0.1, metropolis=True),
    ],
    ids=str,
)
def test_samplers_come_back(sampler):
    again = registry.decode("sampler", sent(registry.encode(sampler)))
    assert type(again) is type(sampler) and again == sampler


@pytest.mark.parametrize(
    "mass",
    [
        np.array([0.1 + 0.2, 1e-300, 3.0]),
        np.array([[2, 1], [1, 3]], np.float32),
        jnp.array([1.5, 2.5]),
        {"coefficients": np.array([1.0, 2.0]), "intercept": np.float64(1 / 3)},
        [{"weights": np.ones((2, 1)), "biases": np.full(1, 0.5)}],
        ([1.0, 2.0], np.ones(2)),
    ],
    ids=["vector", "matrix", "JAX", "dict", "layers", "tuple"],
)
def test_mass_matrices_come_back(mass):
    recipe = sent(registry.encode(FAHMC(0.1, inverse_mass_matrix=mass)))
    found = registry.decode("sampler", recipe).inverse_mass_matrix
    assert jax.tree.structure(found) == jax.tree.structure(mass)
    for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(mass), strict=True):
        assert np.asarray(leaf).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(leaf, expected)


class Louder(FAHMC):
    """A sampler of the user's own that was not registered: it must never run as the one that it derives from."""

    def build(self, target):
        raise AssertionError("it runs")


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (
            Louder(0.1),
            r"^sampler is Louder\(.*; use one of FAHMC, .*registered by the decorator @fahmc.register\(\"samp",
        ),
        (FAHMC, r"use one of FAHMC, .* This is the class: write FAHMC\(\.\.\.\)\."),
        (Minibatch(3), r"^sampler is Minibatch\(size=3\); use one of FAHMC"),
        ("FAHMC", "^sampler is 'FAHMC'; use one of FAHMC"),
    ],
)
def test_what_is_not_registered_is_refused_and_never_run_as_something_else(logistic_study, sampler, words):
    with pytest.raises(SettingsError, match=words):
        fahmc.sample(fahmc.models.logistic_regression(), logistic_study, sampler, 3)
    with pytest.raises(SettingsError, match=words):
        sampler_recipe(sampler)


def test_a_gradient_that_is_not_registered_is_refused():
    class Own(Minibatch):
        pass

    with pytest.raises(SettingsError, match=r'gradient is .*Own\(size=3\); .*@fahmc.register\("gradient"\)'):
        FAHMC(0.1, gradient=Own(3))
    with pytest.raises(SettingsError, match=r"gradient is .*; use one of FullGradient, Minibatch, GaussianNoise"):
        GaussianNoise(0.1, of="full")  # type: ignore


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (FAHMC(lambda t: 0.1), r"step_size is <function .* cannot be sent to sites: .* but no Python functions\."),
        (FAHMC(0.1, inverse_mass_matrix=[{1, 2}]), r"inverse_mass_matrix is \{1, 2\}, which cannot be sent"),
        (HMC(0.1), "HMC runs on one machine; a federation takes FAHMC, FALD or DebiasedFAHMC"),
    ],
    ids=["function", "set", "HMC"],
)
def test_samplers_that_cannot_be_sent_are_refused(sampler, words):
    with pytest.raises(SettingsError, match=words):
        sampler_recipe(sampler)


PLAIN = {"name": "FAHMC", "step_size": 0.1}


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"name": "Popen"}, r"^sampler\.name = 'Popen' is not known\. Known here: FAHMC, "),
        ({"name": "FAHMK"}, r"sampler\.name = 'FAHMK' is not known, did you mean 'FAHMC'"),
        ({"step_size": 0.1}, r"^sampler\.name is missing; add name = one of FAHMC, "),
        ({"name": ["FAHMC"]}, r"sampler\.name = \['FAHMC'\] is not known"),
        ({"name": "minibatch", "size": 3}, r"sampler\.name = 'minibatch' is not known"),
        ({"name": "own_samplers:ServerLangevin", "step": 0.1}, "name = 'own_samplers:ServerLangevin' is not known"),
        ({"name": "FAHMC"}, r"^sampler\.step_size is missing; it has no default\. Add it\.$"),
        (
            {"name": "FAHMC", "step_size": 0.1, "stepsize": 2},
            r"sampler\.stepsize is not known, did you mean 'step_size'",
        ),
        ({"name": "FAHMC", "step_size": -1.0}, r"step_size is -1\.0; it must be a positive number"),
        ({"name": "FAHMC", "step_size": "0.1"}, r"sampler\.step_size = '0\.1': it should be a number, written without"),
        (
            {"name": "FAHMC", "step_size": True},
            r"sampler\.step_size is True; it must be a positive number or a table with name = one of stages",
        ),
        ({"name": "FAHMC", "step_size": [0.1]}, r"sampler\.step_size is \[0\.1\]; it must be a positive number"),
        (
            {"name": "FAHMC", "step_size": {"name": "eval"}},
            r"sampler\.step_size\.name = 'eval' is not known\. .* stages",
        ),
        (
            PLAIN | {"num_leapfrog_steps": 2.5},
            r"num_leapfrog_steps is 2\.5; it must be a whole number from 1 to 1,000,000",
        ),
        (PLAIN | {"num_local_steps": "3"}, r"num_local_steps is '3'; it must be a whole number"),
        (PLAIN | {"reuse_gradient": 1}, r"reuse_gradient is 1; it must be True or False"),
        (PLAIN | {"sync_unit": "step"}, r"sync_unit is 'step'; it must be 'trajectory' or 'leapfrog'"),
        (PLAIN | {"gradient": "all"}, r"sampler\.gradient = 'all' is not known\. Known here: full, minibatch, "),
        (
            PLAIN | {"gradient": {"name": "minibatch", "size": "9"}},
            r"gradient\.size is '9'; it must be a whole number of rows",
        ),
        (
            PLAIN | {"gradient": {"name": "minibatch", "size": 0}},
            r"sampler\.gradient\.size is 0; it must be a whole number",
        ),
        (
            PLAIN | {"inverse_mass_matrix": ["1", "2"]},
            r"inverse_mass_matrix is \['1', '2'\]: it should hold numbers only",
        ),
    ],
)
def test_wrong_settings_are_sentences(recipe, words):
    with pytest.raises(SettingsError, match=words) as refusal:
        registry.decode("sampler", recipe, ("sampler",))
    assert refusal.value.where[0] == "sampler"


OWN_MODULE = """
from dataclasses import dataclass
import fahmc

@fahmc.register("sampler")
@dataclass(frozen=True)
class Own(fahmc.FAHMC):
    pass

@fahmc.register("gradient")
@dataclass(frozen=True)
class OwnGradient(fahmc.Minibatch):
    pass

class NotRegistered(fahmc.FAHMC):
    pass
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module that is not imported yet, and that nobody has registered anything of."""
    (tmp_path / "a_module_of_one_s_own.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for kind, names in registry._registered.items():
        monkeypatch.setitem(registry._registered, kind, dict(names))
    yield (name := "a_module_of_one_s_own")
    sys.modules.pop(name, None)


def test_what_is_one_s_own_is_imported_only_if_it_is_listed(own_module):
    own, gradient = f"{own_module}:Own", f"{own_module}:OwnGradient"
    recipe = {"object": own, "step_size": 0.1, "gradient": {"object": gradient, "size": 3}}
    for listed in ((), (gradient,), (own_module,), (f"{own}s",)):
        with pytest.raises(SettingsError, match=rf"The sampler '{own}' .*not listed .*own_samplers = \[\"{own}\"\]"):
            registry.decode("sampler", recipe, (), listed)
    with pytest.raises(SettingsError, match=rf"The gradient '{gradient}' is not part of fahmc"):
        registry.decode("sampler", {"name": "FAHMC", "step_size": 0.1, "gradient": recipe["gradient"]}, (), [own])
    assert own_module not in sys.modules, "it was imported before that was known"
    made = registry.decode("sampler", recipe, (), [own, gradient])
    module = importlib.import_module(own_module)
    assert made == module.Own(0.1, gradient=module.OwnGradient(3))
    assert sampler_recipe(made) | recipe == sampler_recipe(made), "it goes by where it can be imported from"
    for reference in (f"{own_module}:NotRegistered", f"{own_module}:dataclass", f"{own_module}:absent", gradient):
        with pytest.raises(SettingsError, match=rf"'{reference}' is not a sampler registered by @fahmc\.register"):
            registry.decode("sampler", {"object": reference, "step_size": 0.1}, (), [reference])


def test_what_is_one_s_own_does_not_take_the_place_of_fahmc_s(own_module):
    importlib.import_module(own_module)
    assert "Own" not in registry.choices("sampler")
    with pytest.raises(SettingsError, match="name = 'Own' is not known"):
        registry.decode("sampler", {"name": "Own", "step_size": 0.1}, ("sampler",), [f"{own_module}:Own"])
    with pytest.raises(SettingsError, match=r"register\('samplers'\): there are sampler, gradient, schedule, model"):
        fahmc.register("samplers")  # type: ignore


def test_descriptions_tell_settings_apart_and_hold_no_arrays():
    mass = np.ones(1000)
    described = registry.describe(FAHMC(lambda t: 0.1 / (1 + t), inverse_mass_matrix=mass, gradient=Minibatch(3)))
    assert described["name"] == "FAHMC" and described["gradient"] == {"name": "minibatch", "size": 3}
    assert described["step_size"]["values"]["1"] == pytest.approx(0.05)
    assert described["inverse_mass_matrix"].startswith("array ") and len(json.dumps(described)) < 2000
    others = [FAHMC(0.1), FAHMC(0.2), DebiasedFAHMC(0.1), FAHMC(lambda t: 0.1), FAHMC(0.1, inverse_mass_matrix=mass)]
    others += [FAHMC(0.1, inverse_mass_matrix=2 * mass), FAHMC(0.1, gradient=Minibatch(3))]
    texts = [json.dumps(registry.describe(sampler)) for sampler in others]
    assert len(set(texts)) == len(others)
    # What a function returns counts, not which it is.
    assert json.dumps(registry.describe(FAHMC(lambda t: 0.2 / 2))) == texts[3]


def test_structures_are_equal_where_one_program_serves():
    def structure(sampler: FAHMC) -> str:
        return registry.structure(sampler, sampler.NUMBERS)

    first = FAHMC(0.1, 5, 1)
    assert structure(first) == structure(FAHMC(0.2, 7, 2)) == structure(replace(first, inverse_mass_matrix=np.ones(3)))
    schedule = Stages(0.1, 5)
    assert structure(FAHMC(schedule)) == structure(FAHMC(schedule, 3))
    others = [
        first,
        DebiasedFAHMC(0.1, 5, 1),
        FAHMC(schedule),  # functions are code, also where a number would not count
        FAHMC(0.1, momentum_correlation=0.5),
        FAHMC(0.1, gradient=Minibatch(3)),
        FAHMC(0.1, gradient=Minibatch(4)),
        Louder(0.1),
    ]
    assert len(set(map(structure, others))) == len(others)


@dataclass(frozen=True)
class Prior:
    """No part of fahmc knows it."""

    scale: float = 1.0


def test_what_cannot_be_written_is_refused_by_name():
    for value in (Prior(), print, {1, 2}, object(), [Prior()], {"a": Prior()}):
        with pytest.raises(SettingsError, match=r"^the scale is .*, which cannot be sent to sites"):
            registry.encode(value, "the scale")


ROWS = {"x": np.random.default_rng(2).normal(size=(5, 2)), "y": np.array([0, 1, 1, 0, 1])}
MODELS = {
    "linear_regression": fahmc.models.linear_regression(
        None, noise_scale=1 / 3, intercept=False, feature_names=("a", "b")
    ),
    "logistic_regression": fahmc.models.logistic_regression(0.1 + 0.2, intercept_scale=None, temperature=0.5),
    "poisson_regression": fahmc.models.poisson_regression(prior_scale=2, feature_names=["a", "b"]),
    "softmax_regression": fahmc.models.softmax_regression(3, np.float64(0.7)),
    "mlp": fahmc.models.mlp(2, (4, 3), 0.5, temperature=2.0),
    "negative_binomial_regression": fahmc.models.negative_binomial_regression(2.0, dispersion_scale=0.5),
    "binomial_regression": fahmc.models.binomial_regression(intercept=False),
    "gamma_regression": fahmc.models.gamma_regression(shape_scale=2.0),
    "student_t_regression": fahmc.models.student_t_regression(None, degrees=None, noise_prior_scale=3),
    "ordered_regression": fahmc.models.ordered_regression(3, cutpoint_scale=2.0, feature_names=["a", "b"]),
    "exponential_survival": fahmc.models.exponential_survival(horizon=5.0),
    "weibull_survival": fahmc.models.weibull_survival(shape_scale=0.5),
    "piecewise_exponential": fahmc.models.piecewise_exponential([1, 2.5], hazard_scale=3.0),
}


POSITIVE = {"y": ROWS["y"] + 1}
OTHER_ROWS = {
    "binomial_regression": {"trials": ROWS["y"] + 1},
    "gamma_regression": POSITIVE,
    "exponential_survival": POSITIVE,
    "weibull_survival": POSITIVE,
    "piecewise_exponential": POSITIVE,
}


@pytest.mark.parametrize("name", registry.choices("model"))
def test_ready_made_models_come_back(name):
    model = MODELS[name]
    again = build_model(sent(model_recipe(model)))
    assert again.temperature == model.temperature and again.coords == model.coords and again.dims == model.dims
    shapes, shapes_again = (jax.eval_shape(made.initial_position, jax.random.key(0), ROWS) for made in (model, again))
    assert shapes == shapes_again
    rng = np.random.default_rng(4)
    free = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)
    rows = ROWS | OTHER_ROWS.get(name, {})

    # In one program: compiling costs more than the rest of these tests.
    @jax.jit
    def densities(free):
        at = constrain(model.supports or {}, free)
        return [(made.loglikelihood_fn(at, rows), made.logprior_fn(at)) for made in (model, again)]

    (likelihood, prior), (likelihood_again, prior_again) = jax.device_get(densities(free))
    np.testing.assert_array_equal(likelihood_again, likelihood)
    assert prior_again == prior and np.isfinite(likelihood).all()


def test_every_ready_made_model_is_tried():
    assert set(MODELS) == set(registry.choices("model"))
    assert all(hasattr(fahmc.models, name) for name in MODELS)


def test_a_model_made_of_functions_is_refused():
    model = fahmc.Model(lambda position, batch: batch["y"] * position, init=np.zeros(()))
    with pytest.raises(ModelError, match=r"made of Python functions, .*sample fahmc\.Model\.named\(\"module:attribute"):
        model_recipe(model)


@pytest.mark.parametrize(
    "changes", [{"temperature": 2.0}, {"logprior_fn": lambda position: 0.0}, {"loglikelihood_fn": lambda at, rows: 0.0}]
)
def test_a_model_that_was_changed_after_it_was_made_is_refused(changes):
    """Sites would make it as it was."""
    with pytest.raises(ModelError, match="changed after it was made, and sites would make it as it was"):
        model_recipe(replace(fahmc.models.logistic_regression(), **changes))


FAMILY = """
import fahmc

@fahmc.models.family
def shifted(shift: float, names: tuple[str, ...] = ()) -> fahmc.Model:
    return fahmc.Model(lambda position, batch: batch["y"] * (position - shift), init=0.0)
"""


def test_a_family_of_one_s_own_is_made_anew_from_its_settings(tmp_path, monkeypatch):
    (tmp_path / "a_family_of_one_s_own.py").write_text(FAMILY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry._registered, "model", dict(registry._registered["model"]))
    reference = "a_family_of_one_s_own:shifted"
    recipe = {"object": reference, "shift": 0.5, "names": {"tuple": ["a"]}}
    with pytest.raises(FederationError, match="'a_family_of_one_s_own:shifted' is not ready-made and not listed here"):
        build_model(recipe)
    assert "a_family_of_one_s_own" not in sys.modules
    model = build_model(recipe, [reference])
    assert sent(model_recipe(model)) == recipe
    assert model.loglikelihood_fn(1.0, {"y": 2.0}) == 1.0
    with pytest.raises(FederationError, match=r"model\.shift is '0'; it must be a finite number"):
        build_model({"object": reference, "shift": "0"}, [reference])
    del sys.modules["a_family_of_one_s_own"]


@pytest.fixture
def study_module(monkeypatch):
    module = types.ModuleType("a_study_s_module")
    vars(module)["model"] = fahmc.models.logistic_regression()
    vars(module)["build"] = lambda: fahmc.models.mlp(2, (3,))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_models_of_a_site_s_own_are_imported_only_if_it_lists_them(study_module):
    recipe = sent(model_recipe(fahmc.Model.named("a_study_s_module:build")))
    assert recipe == {"object": "a_study_s_module:build"}
    listed = build_model(recipe, ["a_study_s_module:model", "a_study_s_module:build"])
    assert listed.recipe == recipe and callable(listed.init)
    del sys.modules[study_module.__name__]  # what is not listed is refused before anything is imported
    for own_models in ((), ("a_study_s_module:model",), ("a_study_s_module",)):
        with pytest.raises(FederationError, match=r'is not ready-made and not listed .*own_models = \["a_study_s_modu'):
            build_model(recipe, own_models)


@pytest.mark.parametrize("name", ["forest", "_build", "annotations", None, "Model"])
def test_a_model_that_is_not_ready_made_is_refused(name):
    with pytest.raises(FederationError, match=f"There is no ready-made model {name!r}; there are linear_regression, "):
        build_model({"name": name})


def test_coefficients_are_named_unless_the_user_did(study_module):
    model = fahmc.models.softmax_regression(3, 0.7, temperature=2.0)
    named = with_feature_names(model, ("age", "group[B]"))
    assert named.coords == {"feature": ["age", "group[B]"]} and named.temperature == 2.0
    assert named.recipe == dict(model.recipe or {}) | {"feature_names": ["age", "group[B]"]}
    for other in (
        fahmc.models.logistic_regression(feature_names=["a", "b"]),
        fahmc.models.mlp(2),  # has no coefficients of columns
        fahmc.Model.named("a_study_s_module:model"),
        fahmc.Model(lambda position, batch: batch["y"] * position),
    ):
        assert with_feature_names(other, ("age", "group[B]")) is other


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (3, r"^sampler is 3; it must be a table with name = one of FAHMC, "),
        (None, "^sampler is None; it must be a table"),
        ({1: 2}, r"^sampler is \{1: 2\}; it must be a table"),
        ({"name": 10**5000}, r"^sampler\.name = an integer of 5,001 digits is not known"),
        ({"object": ["this:s"]}, r"The sampler \['this:s'\] is not part of fahmc"),
        (PLAIN | {"num_leapfrog_steps": 10**5000}, "num_leapfrog_steps is an integer of 5,001 digits; it must be"),
        (PLAIN | {"num_leapfrog_steps": 2**40}, r"it must be a whole number from 1 to 1,000,000\.$"),
        (PLAIN | {"x" * 10**6: 1}, r"^sampler\.x{200}… is not known"),
        (PLAIN | {"gradient": 3}, r"^sampler\.gradient is 3; it must be a table with name = one of full"),
        (PLAIN | {"inverse_mass_matrix": {"array": [1], "dtype": "U1000000000"}}, "no array of 'U1000000000'; dtype"),
        (PLAIN | {"inverse_mass_matrix": {"array": [1, 300], "dtype": "uint8"}}, "numbers that are none of uint8"),
        (PLAIN | {"inverse_mass_matrix": {"array": [[1], [1, 2]], "dtype": "float64"}}, "inhomogeneous"),
    ],
)  # fmt: skip
def test_recipes_of_any_kind_get_a_sentence(recipe, words):
    with pytest.raises(SettingsError, match=words):
        registry.decode("sampler", recipe, ("sampler",))


def test_recipes_are_not_walked_endlessly():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    for value in (deep, {"a": deep}):
        with pytest.raises(SettingsError, match="more than 64 deep; write it flatter"):
            registry.decode("sampler", PLAIN | {"inverse_mass_matrix": value}, ("sampler",))
        with pytest.raises(SettingsError, match="more than 64 deep"):
            registry.encode(FAHMC(0.1, inverse_mass_matrix=value).inverse_mass_matrix)


def test_model_recipes_of_any_kind_get_a_sentence():
    for recipe in (3, None, [], "mlp", {"name": ["mlp"]}, {"name": 10**5000}, {"object": 3}, {"object": []}):
        with pytest.raises(
            FederationError, match=r"^(The model's recipe is|There is no ready-made model|The model) .*\.$"
        ):
            build_model(recipe)


ORDER = {
    "model": {"name": "logistic_regression"}, "sampler": PLAIN, "leader": PLAIN, "phase": "sampling", "stream": "",
    "seed": 1, "num_chains": 2, "dtype": "float64", "template": {"dict": [["a", "a"]]}, "leaf_shapes": {"a": [3]},
    "weights": {"north": 1.0}, "num_rows": 9,
}  # fmt: skip


def test_orders_are_held_to_their_hints():
    assert Order.read(json.dumps(ORDER)).position["a"].shape == (3,)
    for change, words in [
        ({"leaf_shapes": {"a": [1] * 1000}}, "cannot be read"),
        ({"seed": "1"}, "cannot be read"),
        ({"dtype": "float16"}, "cannot be read"),
        ({"template": {"dict": 3}}, "template does not fit its leaves"),
        ({"template": {"dict": [["a", "a"], ["b", "b"]]}}, "template does not fit its leaves"),
        ({"leaf_shapes": {"a": [3], "b": [1]}}, "template does not fit its leaves"),
    ]:
        with pytest.raises(FederationError, match=words):
            _ = Order.read(json.dumps(ORDER | change)).position
