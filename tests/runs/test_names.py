"""Names of parameters, entries and clients: refused before the first round if no file could keep them."""

import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc.draws import Draws
from fahmc.errors import DataError, ModelError
from fahmc.report import About, write_report

# What pages, tables and figures might take for markup, and what is hard to draw.
NASTY = [
    "<script>alert(1)</script>", "a|b", "`code`", "it's \"quoted\"", "😀 emoji", "עברית", "long " * 39, "a_b", "x^2",
    "\\", "$x$", "$x", r"\$y$ $", r"$\frac{$", "*bold*", "[link](http://x)", "=1+1", "&amp;", "%s {0}", "#h",
]  # fmt: skip


def sample(names=None, client="a", parameter=None):
    rows = {"x": np.ones((4, 2)), "y": np.arange(4.0)}
    federation = fahmc.Federation.from_clients({client: rows})
    model = fahmc.models.linear_regression(feature_names=names)
    if parameter is not None:
        model = fahmc.Model(lambda q, rows: rows["y"] * 0, lambda q: -jnp.sum(q[parameter] ** 2),
                            init=lambda key: {parameter: jnp.zeros(2)})  # fmt: skip
    return fahmc.sample(model, federation, fahmc.FAHMC(0.01, 1), num_rounds=1, num_chains=1)


def test_names_that_no_file_can_keep_are_refused_before_the_first_round():
    for second, words in (("a", "stands for two entries"), ("\0", "holds the control"), ("b" * 201, "has 201 letters")):
        with pytest.raises(ModelError, match=f"Along 'feature' a name is .*which {words}"):
            sample(["a", second])
    with pytest.raises(DataError, match=r"A client is called 'nor\\nth', which holds the control character"):
        sample(client="nor\nth")
    with pytest.raises(ModelError, match="which is taken or cannot be stored"):
        sample(parameter="a\x07")


def test_whatever_can_be_printed_goes_through_files_figures_and_pages(tmp_path):
    numbers = np.random.default_rng(0)
    draws = Draws(
        positions={"coefficients": numbers.normal(size=(2, 20, len(NASTY)))},
        stats={"diverging": np.zeros((2, 20), bool), "client_drift": np.ones((2, 20))},
        client_names=tuple(NASTY),
        client_drift=np.ones((2, len(NASTY))),
        settings={"clients": dict.fromkeys(NASTY, 1)},
        cost={"rounds": 20, "seconds": 1.0},
        dims={"coefficients": ["feature"]},
        coords={"feature": NASTY},
    )
    draws.save(tmp_path / "draws.nc")
    loaded = Draws.load(tmp_path / "draws.nc")
    assert list(loaded.coords["feature"]) == NASTY == list(loaded.client_names)
    page = write_report(loaded, tmp_path / "report", about=About(title=NASTY[0], notes=NASTY)).read_text()
    assert "<script>" not in page and "coefficients[&lt;script&gt;alert(1)&lt;/script&gt;]" in page
    text = (tmp_path / "report" / "summary.md").read_text()
    assert "<script>" not in text and r"coefficients[a\|b]" in text and r"coefficients[\*bold\*]" in text
    rows = [line for line in text.split("\n") if line.startswith("| coefficients[")]
    assert {row.replace(r"\\", "").replace(r"\|", "").count("|") for row in rows} == {5, 6}, "each row has its cells"
