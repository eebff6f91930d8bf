"""The live view in a browser: it grows with the run, says how it ended, and can be read by everybody."""

import contextlib
import threading

import jax.numpy as jnp
import numpy as np

import fahmc
from fahmc.live import watcher as watching
from fahmc.live.server import LiveServer
from fahmc.live.watcher import Place, Watcher
from fahmc.own_folder import own_folder
from fahmc.runs.journal import Journal
from looks import NARROW, WIDE, Open, overflows, serious_findings


@contextlib.contextmanager
def served(folder):
    """Serve a page that asks often."""
    with LiveServer(Watcher(Place(folder))) as server:
        assert b"setTimeout(look, 1000)" in server.page
        server.page = server.page.replace(b"setTimeout(look, 1000)", b"setTimeout(look, 50)")
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def assert_readable(page):
    for width, scheme in ((NARROW, "light"), (NARROW, "dark"), (WIDE, "light"), (WIDE, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert overflows(page) <= 0
        if (width == WIDE) == (scheme == "dark"):
            assert serious_findings(page) == []


def test_it_grows_with_the_run_to_its_end(open_page: Open, tmp_path, after_each_block, monkeypatch):
    monkeypatch.setattr(watching, "SHARE", 1e9)
    Journal(own_folder(tmp_path, "fahmc.sample"))
    federation = fahmc.Federation.from_clients({"a": np.arange(4.0), "b": np.arange(6.0)})
    model = fahmc.Model(
        lambda position, batch: -((batch - position["level"].sum()) ** 2) / 2,
        init={"level": jnp.zeros(3)},
        logprior_fn=lambda position: -(position["level"] ** 2).sum() / 2,
    )
    with served(tmp_path) as server:
        page, rounds = open_page(server.address, NARROW), iter((0, 30, 60, 90))
        page.get_by_text("Starting: the data are read").wait_for()

        def look():  # when the next block is done, and before it is kept
            server.watcher.look()
            page.get_by_text(f"{(done := next(rounds))} of 120").wait_for()
            if done:
                page.get_by_text(f"After {done} draws a chain").wait_for()
            return page.locator("#traces svg").count(), page.locator("#growth svg").count()

        seen = after_each_block(look)
        fahmc.sample(
            model, federation, fahmc.FAHMC(0.2, 3), 120, num_chains=2, dtype="float32", progress=False,
            block_rounds=30, checkpoint_dir=tmp_path,
        )  # fmt: skip
        assert seen == [(0, 0), (3, 0), (3, 2), (3, 2)]
        server.watcher.look()
        page.get_by_text("Sampling is complete.").wait_for()
        assert server.end_told_at is not None
    # Nobody listens any more, and the page stands.
    assert "Nothing listens here any more" in page.inner_text("[role=status]")
    assert [row.split()[0] for row in page.locator("#agreement tbody tr").all_inner_texts()] == [
        f"level[{place}]" for place in range(3)
    ]
    assert_readable(page)
    page.set_viewport_size({"width": NARROW, "height": 900})
    page.wait_for_function("document.querySelector('#traces svg').viewBox.baseVal.width < 420")
    heights = page.eval_on_selector_all("svg text", "all => all.map(text => text.getBoundingClientRect().height)")
    assert min(heights) > 9


def test_it_shows_sites_decisions_and_a_run_that_was_killed(open_page: Open, tmp_path):
    journal = Journal(tmp_path)
    phase = {"rounds": 1, "num_rounds": 1, "warmup": None}
    journal.tell(
        sampler="Auto",
        phases=[phase | {"name": "search 0"}, phase | {"name": "refine 0"}],
        course={"choices": ["A <b>choice</b>."], "trace": [{"round": 4, "k_hat": 0.31, "ess": 3772.0}]},
    )
    journal.tell_sites({"north": "connected", "south": "lost 12 s ago"}, "Site 'south' is not connected")
    with served(tmp_path) as server:
        page = open_page(server.address, WIDE, True)
        page.get_by_text("Waiting: Site 'south' is not connected.").wait_for()
        assert page.locator("#sites li").all_inner_texts() == ["north: connected", "south: lost 12 s ago"]
        assert page.locator("#course li").all_inner_texts() == ["A <b>choice</b>."]
        assert page.locator("#course td").all_inner_texts() == ["0.31", "3,772"]
        assert page.locator("#phases li").all_inner_texts() == ["search 0: 1 round", "refine 0: 1 round"]
        assert_readable(page)
        machine, number, _ = server.watcher._told["process"].split(":")
        journal.tell(process=f"{machine}:{number}:1.00")  # another had this number before
        server.watcher.look()
        page.get_by_text("Killed: the run's process ended without a word.").wait_for()
