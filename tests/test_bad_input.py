"""The mistakes a user makes first: each gets a sentence that names the place and the way out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import keys
from fahmc.errors import DataError, ModelError, SettingsError
from fahmc.runs.plan import fingerprint_of, make_run

GOOD = {"x": np.ones((4, 2)), "y": np.array([0.0, 1.0, 1.0, 0.0])}


def changed(**arrays):
    return {"north": GOOD, "south": GOOD | arrays}


def holed(value, row, column):
    x = np.ones((4, 2))
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("clients", "weights", "message"),
    [
        ({}, None, "at least one client"),
        ({3: GOOD}, None, "non-empty string, not 3"),
        ({"north": {}}, None, "'north' holds no arrays"),
        (changed(x=np.ones((0, 2)), y=np.ones(0)), None, r"'south' has 0 rows; .* Drop it or merge it"),
        (changed(x=holed(np.nan, 2, 1)), None, r"'south': column 1 of x is nan in row 2 \(1 such value"),
        (changed(y=np.array([0, 1, np.inf, 0])), None, r"'south': y is inf in row 2"),
        (changed(y=np.ones(3)), None, r"'south': row counts differ \(x has 4, y has 3\)"),
        (changed(x=np.ones((4, 3))), None, r"x is float \[row, 2\] at 'north' but float \[row, 3\] at 'south'"),
        (changed(z=np.ones(4)), None, "z is absent at 'north' but float"),
        (changed(y=np.array([0, 1, 1, 0])), None, r"y is float \[row\] at 'north' but integer \[row\] at 'south'"),
        (changed(y=np.array(["a", "b", "a", "b"])), None, "y has dtype <U1; these must be real numbers"),
        (changed(y=np.float64(1.0)), None, "y is a single number"),
        (changed(), [0.5, 0.6], "weights sum to 1.1; they must sum to 1"),
        (changed(), [1.5, -0.5], "'south' has weight -0.5"),
        (changed(), [1.0], r"2 clients but weights of shape \(1,\)"),
        (changed(), {"north": 0.5, "west": 0.5}, "do not match: south, west"),
        (changed(), [np.nan, 1.0], r"weights\[0\] is nan; it must be a finite number"),
    ],
)
def test_federations(clients, weights, message):
    with pytest.raises(DataError, match=message):
        fahmc.Federation.from_clients(clients, weights)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fahmc.FAHMC(-0.1), "step_size is -0.1; it must be a positive number"),
        (lambda: fahmc.FAHMC(float("nan")), "step_size is nan"),
        (lambda: fahmc.FAHMC("big"), "step_size is 'big'"),  # type: ignore
        (lambda: fahmc.FAHMC(0.1, num_leapfrog_steps=0), "num_leapfrog_steps is 0; K must be a whole number"),
        (lambda: fahmc.FAHMC(0.1, num_local_steps=0), "num_local_steps is 0; T must"),
        (lambda: fahmc.FAHMC(0.1, num_local_steps=2.5), "num_local_steps is 2.5"),  # type: ignore
        (
            lambda: fahmc.FAHMC(0.1, momentum_correlation=1.2),
            "momentum_correlation is 1.2; rho must be a number from 0 to 1",
        ),
        (lambda: fahmc.FAHMC(0.1, sync_unit="epoch"), "sync_unit is 'epoch'"),  # type: ignore
        (lambda: fahmc.FAHMC(0.1, gradient=10), "gradient is 10; use one of FullGradient, Minibatch"),  # type: ignore
        (lambda: fahmc.FALD(0.1, num_leapfrog_steps=3), "FALD has K = 1"),
        (lambda: fahmc.HMC(0.1, metropolis=True, gradient=fahmc.Minibatch(3)), "needs the exact energy"),
        (lambda: fahmc.schedules.Stages(0.1, 0), "first_stage is 0"),
        (lambda: fahmc.schedules.Stages(0.1, 2.5), "first_stage is 2.5"),  # type: ignore
        (lambda: fahmc.Minibatch(0), "size is 0; it must be a whole number of rows"),
        (lambda: fahmc.Minibatch(2.0), "size is 2.0"),  # type: ignore
        (lambda: fahmc.GaussianNoise(-1.0), "scale is -1"),
        (lambda: fahmc.GaussianNoise("loud"), "scale is 'loud'"),  # type: ignore
        (lambda: fahmc.GaussianNoise(1.0, of=fahmc.GaussianNoise(1.0)), "add the noise once"),  # type: ignore
        (lambda: fahmc.HMC(0.1, gradient=fahmc.Minibatch), "gradient is"),  # type: ignore
        (lambda: fahmc.FAHMC(0.1, momentum_correlation="1"), "momentum_correlation is '1'"),  # type: ignore
        (lambda: fahmc.RHatBelow(0.9), "0.9"),
    ],
)
def test_samplers(call, message):
    with pytest.raises(SettingsError, match=message):
        call()


@pytest.mark.parametrize("number", [np.float32(0.25), np.float64(0.25), jnp.float32(0.25), 0.25])
def test_numbers_of_any_library_are_welcome(number):
    counts: dict = {"num_leapfrog_steps": np.int64(3), "num_local_steps": np.int32(2)}
    sampler = fahmc.FAHMC(number, **counts)
    assert sampler == fahmc.FAHMC(0.25, 3, 2)
    assert type(sampler.step_size) is float and type(sampler.num_local_steps) is int


MODEL = fahmc.models.logistic_regression()
FEDERATION = fahmc.Federation.from_clients(changed())
LARGE_INTEGERS = fahmc.Federation.from_clients(
    {"north": GOOD | {"y": np.array([0, 1, 1, 0])}, "south": GOOD | {"y": np.array([0, 1, 1, 3 * 10**9])}}
)


def model(loglikelihood_fn, init: object = np.zeros(2), **options):
    return fahmc.Model(loglikelihood_fn, init=init, **options)


def good(position, batch):
    return -((batch["y"] - batch["x"] @ position) ** 2)


def imaginary(position, batch):
    return jax.lax.complex(good(position, batch), good(position, batch))


class AnEngine:
    """One that could run rounds, but knows of no row space."""

    def start(self, run):
        return pytest.fail("started")


class Unregistered(fahmc.FAHMC):
    """What nobody has vouched for: it may do something else than its base."""


def stacked(*shape):
    return {"coefficients": np.zeros(shape), "intercept": np.zeros(shape[:-1])}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_rounds": 0}, SettingsError, "num_rounds is 0"),
        ({"num_chains": 0}, SettingsError, "num_chains is 0"),
        ({"num_warmup_rounds": -1}, SettingsError, "num_warmup_rounds is -1"),
        ({"thin": 20}, SettingsError, "thin = 20 keeps no draw of num_rounds = 10"),
        ({"seed": -1}, SettingsError, "seed is -1"),
        ({"seed": 1.5}, SettingsError, "seed is 1.5"),
        ({"private_seed": 2**64}, SettingsError, "private_seed is 18446744073709551616"),
        ({"stop_when": 1.01}, SettingsError, "stop_when is 1.01; it must be a rule such as fahmc.RHatBelow"),
        ({"stop_when": fahmc.RHatBelow(1.1)}, SettingsError, "looks every 100 draws, but a chain keeps only 10"),
        ({"sampler": fahmc.FAHMC(lambda t: 0.1 if t < 5 else 0.05)}, SettingsError, "jnp.where instead of if"),
        ({"sampler": fahmc.FAHMC(lambda t: -0.1)}, SettingsError, r"step_size\(0\) is -0.1"),
        ({"sampler": fahmc.FAHMC(lambda t: jnp.ones(2))}, SettingsError, "as a function of t, failed"),
        ({"sampler": fahmc.FAHMC(0.1, inverse_mass_matrix="wide")}, SettingsError, "has another structure"),
        ({"sampler": fahmc.FAHMC(0.1, inverse_mass_matrix=np.ones((2, 2)))}, SettingsError, r"shape \(2, 2\)"),
        ({"model": model(good, init=lambda: jnp.zeros(2))}, ModelError, "model's init failed: TypeError"),
        ({"model": model(good, init={"chain": jnp.zeros(2)})}, ModelError, "failed|called 'chain'"),
        ({"model": model(good, dims={"position": ["a", "b"]})}, ModelError, "dims of 'position' is .* has 1 axes"),
        (
            {"federation": LARGE_INTEGERS, "model": model(good), "dtype": "float32"},
            DataError,
            "Client 'south': y holds integers beyond 2147483647",
        ),
        ({"dtype": "float16"}, SettingsError, "it must be 'float32', 'float64' or None"),
        ({"engine": AnEngine(), "row_space": True}, SettingsError, "row_space = True, but AnEngine does not know it"),
        ({"engine": "fast"}, SettingsError, "engine is 'fast'; it must be one of fahmc.engines"),
        ({"sampler": fahmc.FAHMC}, SettingsError, r"This is the class: write FAHMC\(\.\.\.\)"),
        ({"sampler": Unregistered(0.1)}, SettingsError, 'registered by the decorator @fahmc.register\\("sampler"\\)'),
        ({"sampler": "FAHMC"}, SettingsError, "use one of FAHMC, FALD, "),
        ({"model": good}, ModelError, r"it must be a fahmc\.Model, or one of fahmc\.models"),
        ({"federation": changed()}, DataError, r"build it with fahmc\.Federation\.from_clients"),
        ({"sampler": fahmc.FALD(0.1, gradient=fahmc.Minibatch(5))}, DataError, "size 5 is larger than client 'north'"),
        ({"model": model(lambda p, b: good(p, b).sum())}, ModelError, r"shape \(\) for the 4 rows of client 'north'"),
        ({"model": model(lambda p, b: b["z"])}, ModelError, "loglikelihood_fn failed on client 'north': KeyError: 'z'"),
        ({"model": model(lambda p, b: b["x"] @ jnp.ones(7))}, ModelError, "loglikelihood_fn failed on client 'north'"),
        ({"model": model(good, logprior_fn=lambda p: p)}, ModelError, r"logprior_fn returned shape \(2,\)"),
        ({"model": model(good, init=None)}, ModelError, "model has no init"),
        ({"model": model(good, init=jnp.array([np.nan, 0]))}, ModelError, "NaN or infinity"),
        ({"model": model(lambda p, b: jnp.log(0.0 * good(p, b)))}, ModelError, "potential of client 'north' is"),
        ({"init": stacked(5)}, ModelError, "init has shapes"),
        ({"init": stacked(3, 2)}, ModelError, "leading axis of 4"),
        ({"sampler": fahmc.FALD(0.1, inverse_mass_matrix=np.ones(5))}, SettingsError, "as a position has 3 numbers"),
        ({"sampler": fahmc.FAHMC(0.1, inverse_mass_matrix=-np.ones(3))}, SettingsError, "not positive"),
        ({"sampler": fahmc.FAHMC(0.1, inverse_mass_matrix=np.ones((3, 3)))}, SettingsError, "not positive definite"),
        ({"model": fahmc.models.logistic_regression(feature_names=["a"])}, ModelError, "along 'feature', but 1 names"),
        (
            {"federation": fahmc.Federation.from_clients(changed(y=np.array([0.0, 2.0, 1.0, 0.0])))},
            DataError,
            "Client 'south': y must be 0 or 1, but row 1 has 2.0. For more classes, take softmax_regression",
        ),
        ({"federation": fahmc.Federation.from_clients([np.ones(3)])}, DataError, r"rows \{'x': \[row, feature\]"),
        (
            {
                "federation": fahmc.Federation.from_clients(changed(), weights=[1.0, 0.0]),
                "sampler": fahmc.FAHMC(0.1, momentum_correlation=0.5),
            },
            SettingsError,
            "'south' has weight 0, so its private momentum",
        ),
    ],
)  # fmt: skip
def test_runs(arguments, error, message):
    options = {
        "model": MODEL,
        "federation": FEDERATION,
        "sampler": fahmc.FAHMC(0.1),
        "num_rounds": 10,
        "progress": False,
    }
    with pytest.raises(error, match=message):
        fahmc.sample(**(options | arguments))


def test_client_of_weight_zero_counts_for_nothing():
    weighted = fahmc.Federation.from_clients(changed(y=np.zeros(4)), weights=[1.0, 0.0])
    alone = fahmc.Federation.from_clients({"north": GOOD, "south": GOOD}, weights=[1.0, 0.0])
    sampler, options = fahmc.FAHMC(0.1, 3), {"seed": 1, "progress": False}
    np.testing.assert_array_equal(
        fahmc.sample(MODEL, weighted, sampler, 5, **options).flat(),
        fahmc.sample(MODEL, alone, sampler, 5, **options).flat(),
    )


def test_unreadable_containers_and_names_are_refused_before_the_run():
    rows = fahmc.Federation.from_clients([np.arange(4.0)])
    for init, words in [
        ({0: jnp.zeros(())}, "keys"),
        ({"a.b": jnp.zeros(()), "a": {"b": jnp.zeros(())}}, "called 'a.b'"),
        ({"a/b": jnp.zeros(())}, "called 'a/b'"),
        ({"draw": jnp.zeros(())}, "called 'draw'"),
    ]:
        model = fahmc.Model(lambda position, batch: -((batch - sum(jax.tree.leaves(position))) ** 2), init=init)
        with pytest.raises(ModelError, match=words):
            fahmc.sample(model, rows, fahmc.HMC(0.1), 5, progress=False)


def test_init_that_can_be_read_in_two_ways_is_refused():
    model = fahmc.Model(lambda position, batch: -((batch - position) ** 2) / 2)
    two_clients = fahmc.Federation.from_clients([np.arange(4.0), np.arange(4.0)])
    with pytest.raises(ModelError, match="one position or as one a chain"):
        fahmc.sample(model, two_clients, fahmc.FAHMC(0.1), 5, num_chains=4, init=np.zeros(4), progress=False)
    # With another number of rows only one reading is left.
    other = fahmc.Federation.from_clients([np.arange(5.0), np.arange(4.0)])
    draws = fahmc.sample(model, other, fahmc.FAHMC(0.1), 5, num_chains=4, init=np.zeros(4), progress=False)
    assert draws.positions.shape == (4, 5)


def test_init_may_have_optional_arguments():
    model = fahmc.Model(lambda p, batch: -((batch - p.sum()) ** 2), init=lambda key, size=2: jnp.zeros(size))
    draws = fahmc.sample(model, fahmc.Federation.from_clients([np.arange(4.0)]), fahmc.HMC(0.1), 3, progress=False)
    assert draws.positions.shape == (4, 3, 2)


@pytest.mark.parametrize("is_double", [False, True])
def test_seeds_have_64_bits_in_both_precisions(is_double):
    with jax.enable_x64(is_double):
        roots = [jax.random.key_data(keys.chain_keys(seed, 1).shared).tolist() for seed in (0, 2**32, 2**64 - 1)]
    assert roots[0] != roots[1] != roots[2] != roots[0]


HUGE = 2**40
DEEP: list = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fahmc.FAHMC(0.1, HUGE), r"num_leapfrog_steps is \d+; K must be a whole number from 1 to 1,000,000\."),
        (lambda: fahmc.FAHMC(10**5000), "step_size is an integer of 5,001 digits; it must be a positive number or a"),
        (lambda: fahmc.FAHMC(0.1, num_local_steps=10**5000), "num_local_steps is an integer of 5,001 digits; T must"),
        (lambda: fahmc.FAHMC("x" * 10**6), "step_size is 'xxx.{,200}; it must be"),  # type: ignore
        (lambda: fahmc.FAHMC(0.1, jitter=DEEP), r"jitter is \[\[\[.*; it must be a number of at least 0"),  # type: ignore
        (lambda: fahmc.HMC(0.1, metropolis="no"), "metropolis is 'no'; it must be True or False"),  # type: ignore
        (lambda: fahmc.Minibatch(HUGE), "size is .*; it must be a whole number of rows from 1 to 2,147,483,647"),
        (lambda: fahmc.Auto(max_rounds=HUGE), "max_rounds is .*; it must be a whole number from 1 to 100,000,000"),
        (lambda: fahmc.EssAbove(every=True), "every is True; it must be a whole number of draws from 4"),  # type: ignore
        (lambda: fahmc.models.mlp(3, (4, HUGE)), r"hidden\[1\] is 1099511627776; .* from 1 to 1,000,000"),
        (lambda: fahmc.models.softmax_regression(HUGE), "num_classes is .* from 2 to 100,000"),
        (lambda: fahmc.models.logistic_regression(temperature=True), "temperature is True; it must be a positive"),
        (lambda: fahmc.models.logistic_regression(feature_names="ab"), "feature_names is 'ab'; .* into a list"),
        (lambda: fahmc.models.poisson_regression("wide"), "prior_scale is 'wide'; it must be a positive"),  # type: ignore
        (lambda: fahmc.engines.InProcess(threads=0), "threads is 0; it must be a whole number from 1 to"),
        (lambda: fahmc.register([]), r"register\(\[\]\): there are sampler"),  # type: ignore
    ],
)  # fmt: skip
def test_what_is_refused_at_the_door(call, message):
    with pytest.raises(SettingsError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fahmc.Federation.from_clients(3), "clients is 3; give a dict from names to rows"),  # type: ignore
        (lambda: fahmc.Federation.from_clients({"north": 1j * np.ones(3)}), "'north' has dtype complex128; .* real"),
        (lambda: fahmc.Federation.from_clients({"north": {"x": np.array([None, 1])}}), "'north': x has dtype object"),
        (lambda: fahmc.Federation.from_clients({"north": DEEP}), r"'north' is \[\[.*, which is no tree of arrays"),
        (lambda: fahmc.Federation.from_clients({"north": {1: np.ones(2), "a": np.ones(2)}}), "no tree of arrays"),
        (lambda: fahmc.Federation.from_clients([np.ones(2)], [1 + 1j]), r"weights\[0\] is \(1\+1j\); it must be a fin"),  # type: ignore
        (lambda: fahmc.Sites(outcome="y", features=["a", 3]), r"features\[1\] is 3; it must be non-empty text"),  # type: ignore
        (lambda: fahmc.Federation.from_clients([np.ma.masked_equal([1.0, 2.0], 2.0)]), "holds masked numbers"),
        (lambda: fahmc.partition.iid(np.ones(4), HUGE, seed=1), "num_clients is 1099511627776; it must be"),
        (lambda: fahmc.partition.by_column(np.ones(2), [[1], [1, 2]]), "one value for each of the 2 rows"),
    ],
)  # fmt: skip
def test_rows_are_refused_at_the_door(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_rounds": HUGE}, SettingsError, "num_rounds is .* from 1 to 100,000,000"),
        ({"num_chains": HUGE}, SettingsError, "num_chains is .* from 1 to 100,000"),
        ({"num_rounds": 10**8, "sampler": fahmc.FAHMC(0.1, 1, 1000)}, SettingsError, "more than 2,147,483,647 local"),
        ({"model": fahmc.models.mlp(2, (10**6, 10**6))}, ModelError, "1,000,006,000,002 numbers.*may be 100,000,000"),
        ({"engine": fahmc.engines.InProcess}, SettingsError, "engine is <class .*; it must be one of fahmc.engines"),
        ({"engine": "abc", "row_space": True}, SettingsError, "engine is 'abc'; it must be one of"),
        ({"model": model(good, init={"a": 1j})}, ModelError, "init: a has dtype complex128"),
        ({"model": model(good, validate_fn=lambda rows: 1 / 0)}, ModelError, "validate_fn failed: ZeroDivisionError"),
        ({"model": model(good, validate_fn=lambda rows: 3)}, ModelError, "validate_fn returned 3; it should return"),
        ({"model": model(good, logprior_fn=lambda p: {"a": p})}, ModelError, "logprior_fn returned shape {'a'"),
        ({"model": model(good, logprior_fn=lambda p: imaginary(p, GOOD)[0])}, ModelError, "logprior_fn returned c"),
        ({"model": model(imaginary)}, ModelError, "loglikelihood_fn returned complex.*are real"),
        ({"seed": jax.random.key(0)}, SettingsError, "seed is .*; it must be a whole number from 0 to"),
        ({"sampler": fahmc.FAHMC(0.1, inverse_mass_matrix=1j * np.ones(3))}, SettingsError, "another structure"),
    ],
)  # fmt: skip
def test_runs_are_refused_at_the_door(arguments, error, message):
    options = {"model": MODEL, "federation": FEDERATION, "sampler": fahmc.FAHMC(0.1), "num_rounds": 10}
    with pytest.raises(error, match=message):
        fahmc.sample(**(options | arguments))


def test_private_seeds_have_64_bits():
    prints = set()
    for seed in (None, 0, 2**63 - 1, 2**63, 2**64 - 1):
        run = make_run(MODEL, FEDERATION, fahmc.FAHMC(0.1), private_seed=seed, dtype=np.dtype("float32"))
        prints.add(fingerprint_of(run, {}, None)["private_seed"])
        assert np.shape(run.chain_keys(run.sampling).private) == (1,)
    assert len(prints) == 5


def test_predictions_are_refused_in_words():
    draws = fahmc.sample(MODEL, FEDERATION, fahmc.FAHMC(0.1, 1), 2, num_chains=1, progress=False)
    for batch, error, message in [
        ("abc", DataError, "batch has dtype <U3"),
        ({"x": np.ones((2, 7))}, ModelError, "predict_fn failed: TypeError"),
        ({"x": 1j * np.ones((2, 2))}, DataError, "batch: x has dtype complex128"),
    ]:
        with pytest.raises(error, match=message):
            draws.predict(batch)
    with pytest.raises(ModelError, match=r"model is 3; it must be a fahmc\.Model"):
        draws.predict(GOOD, model=3)
