"""Watching: what is told of a run, to whom, and that the run does not notice."""

import http.client
import json
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import fahmc
from fahmc.cli.app import app
from fahmc.errors import CheckpointError, FederationError
from fahmc.live import watcher as watching
from fahmc.live.server import LiveServer
from fahmc.live.trail import MOST_DRAWS, group_of
from fahmc.live.watcher import Place, Watcher
from fahmc.own_folder import own_folder
from fahmc.report import ess, r_hat
from fahmc.runs.journal import Journal

FEDERATION = fahmc.Federation.from_clients({"a": np.arange(4.0), "b": np.arange(6.0)})
MODEL = fahmc.Model(
    lambda position, batch: -((batch - position["level"].sum()) ** 2) / 2,
    init={"level": jnp.zeros(2), "scale": jnp.ones(())},
    logprior_fn=lambda position: -(position["level"] ** 2).sum() / 2 - position["scale"],
    supports={"scale": fahmc.positive},
    dims={"level": ["place"]},
    coords={"place": ["inland", "coast"]},
)


def run(folder, num_rounds=60, **settings):
    return fahmc.sample(
        MODEL, FEDERATION, fahmc.FAHMC(0.2, 3), num_rounds, num_warmup_rounds=10, num_chains=2, dtype="float32",
        progress=False, checkpoint_dir=folder, **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, block_rounds=7)


@pytest.fixture
def server(finished):
    with LiveServer(Watcher(Place(finished[0]))) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def ask(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def test_a_run_that_is_over_is_shown_with_the_report_s_own_numbers(finished):
    folder, draws = finished
    watcher = Watcher(Place(folder))
    state, shown = json.loads(watcher.state), json.loads(watcher.draws)
    assert watcher.is_over and state["kind"] == "good" and "complete" in state["words"]
    assert (state["rounds"], state["draws"], state["left"], state["sampler"]) == (70, 60, None, "FAHMC")
    names = ["level[inland]", "level[coast]", "scale (unconstrained)"]
    assert [one["name"] for one in shown["parameters"]] == names == list(shown["traces"])
    free = draws.flat_unconstrained()
    assert np.allclose([one["r_hat"] for one in shown["parameters"]], r_hat(free)["position"], rtol=1e-4)
    sizes = np.minimum(ess(free)["position"], ess(free, method="tail")["position"])
    assert np.allclose([one["ess"] for one in shown["parameters"]], sizes, rtol=1e-4)
    assert np.allclose(np.moveaxis(np.array(list(shown["traces"].values())), 0, -1), free, rtol=1e-4)
    assert shown["growth"][-1]["draws"] == 60 and len(shown["growth"]) == 10


def test_numbers_grow_with_the_run_and_watching_changes_no_draw(finished, tmp_path, after_each_block, monkeypatch):
    monkeypatch.setattr(watching, "SHARE", 1e9)
    Journal(own_folder(tmp_path / "run", "fahmc.sample"))
    watcher = Watcher(Place(tmp_path / "run"))
    assert "Starting" in json.loads(watcher.state)["words"]

    def look():
        watcher.look()
        state = json.loads(watcher.state)
        return state["kind"], state["rounds"], state["draws"], len(json.loads(watcher.draws)["growth"])

    seen = after_each_block(look)
    draws = run(tmp_path / "run", block_rounds=10)
    assert seen[0] == ("unknown", 0, 0, 0) and seen[-1] == ("running", 60, 50, 4)
    assert all(np.all(np.diff([each[k] for each in seen]) >= 0) for k in (1, 2, 3))
    watcher.look()
    assert watcher.is_over and json.loads(watcher.state)["rounds"] == 70
    assert draws.flat().tobytes() == finished[1].flat().tobytes()


def test_many_draws_are_thinned_evenly_whatever_the_blocks(tmp_path):
    draws = run(tmp_path, 2500, block_rounds=333)
    watcher = Watcher(Place(tmp_path))
    trail = watcher._trail
    assert (trail.every, trail.num_draws) == (4, 2500) and MOST_DRAWS <= trail.positions.shape[1] <= 2 * MOST_DRAWS
    np.testing.assert_array_equal(trail.positions, draws.flat_unconstrained()[:, ::4])


def test_time_left_follows_from_the_last_blocks(finished):
    watcher = Watcher(Place(finished[0]))
    own = [block.seconds for block in watcher._trail._recent]
    assert watcher._trail.rate(0) == pytest.approx((3 * 7 + 4) / sum(own[1:])) and watcher._trail.rate(1) is None


def test_parts_of_a_phase_belong_together():
    assert group_of("attempt 1, part 0") == group_of("attempt 1, part 12") != group_of("attempt 2, part 0")
    assert group_of("sampling") == "sampling"


def test_how_a_run_ended_is_said(finished, tmp_path):
    def words(told, results=None, **changes):
        (tmp_path / "progress.json").write_text(json.dumps(told | changes))
        watcher = Watcher(Place(tmp_path, results))
        state = json.loads(watcher.state)
        assert watcher.is_over == state["is_over"]
        return state["kind"], state["is_over"], state["words"]

    told = json.loads((finished[0] / "progress.json").read_text())
    machine, number, _ = told["process"].split(":")
    gone = f"{machine}:{number}:1.00"  # another process had this number before
    assert words(told, ended=None) == ("running", False, "The run goes on.")
    assert words(told, ended=None, process=gone)[:2] == ("bad", True)
    _, is_over, sentence = words(told, Path("out"), ended=None, process=gone)
    assert is_over and "Killed" in sentence and "`fahmc resume out` goes on" in sentence
    assert words(told, ended="interrupted")[:2] == ("bad", True)
    assert words(told, ended="failed", reason="Chain 0 diverged.")[2] == "Stopped: Chain 0 diverged."
    waiting = words(told, ended=None, reason="Site 'north' is not connected", sites={"north": "not connected"})
    assert waiting == ("unknown", False, "Waiting: Site 'north' is not connected.")
    # A run of the command line is over when its report is there.
    told["began"] -= 1
    assert words(told, tmp_path)[:2] == ("good", False)
    (tmp_path / "report.html").touch()
    assert words(told, tmp_path)[:2] == ("good", True)
    assert "On another machine" in words(told, ended=None, process="elsewhere:1:1.00")[2]
    for text in ("{}", "[]", "{", json.dumps(told | {"format": 0})):
        (tmp_path / "progress.json").write_text(text)
        with pytest.raises(CheckpointError, match="tells nothing that could be watched"):
            Watcher(Place(tmp_path))


def test_a_run_tells_its_end_also_when_it_fails(tmp_path):
    with pytest.raises(FederationError), Journal(tmp_path):
        raise FederationError("Given up.")
    assert json.loads((tmp_path / "progress.json").read_text())["reason"] == "Given up."
    with pytest.raises(KeyboardInterrupt), Journal(tmp_path):
        raise KeyboardInterrupt
    assert json.loads((tmp_path / "progress.json").read_text())["ended"] == "interrupted"
    Journal(tmp_path / "gone").tell(ended="complete")  # where nothing can be written, the run goes on


def test_only_who_knows_the_address_gets_an_answer(server):
    own = f"127.0.0.1:{server.server_port}"
    page, state = f"/{server.token}/", f"/{server.token}/state"
    code, content, headers = ask(server, page)
    assert code == 200 and content == server.page and headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in headers["Content-Security-Policy"] and headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers and headers["Cache-Control"] == "no-store"
    assert ask(server, state, f"localhost:{server.server_port}")[0] == 200
    wrong = server.token[:-1] + ("a" if server.token[-1] != "a" else "b")
    for path in ("/", "/state", "//", f"/{wrong}/state", f"/{server.token}x/state", "/%C3%A9/state"):
        code, content, headers = ask(server, path)
        assert (code, content) == (403, b"") and server.token not in str(headers)
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", f"{own}.evil.example", ""):
        assert ask(server, state, host)[:2] == (403, b"")
    assert ask(server, f"{page}../state")[:2] == ask(server, f"{page}nothing")[:2] == (404, b"")
    assert ask(server, state, method="POST")[:2] == ask(server, state, method="OPTIONS")[:2] == (501, b"")
    assert len(server.token) >= 43  # 256 bits


def test_it_listens_on_the_loopback_alone(server):
    process = psutil.Process()
    connections = getattr(process, "net_connections", None) or process.connections
    (own,) = [one.laddr for one in connections("tcp") if one.laddr.port == server.server_port and not one.raddr]
    assert own.ip == "127.0.0.1"


def test_it_knows_that_its_end_was_seen(server):
    assert server.end_told_at is None
    ask(server, f"/{server.token}/state", "evil.example")
    assert server.end_told_at is None
    assert json.loads(ask(server, f"/{server.token}/state")[1])["is_over"]
    assert server.end_told_at is not None


def test_what_cannot_be_watched_is_refused_with_a_sentence(server, finished, tmp_path):
    def refusal(code, *arguments):
        result = CliRunner().invoke(app, ["watch", *map(str, arguments)])
        assert (result.exit_code, result.stdout) == (code, "")
        return result.stderr

    assert "does not exist; give the folder that `fahmc sample` wrote to" in refusal(4, tmp_path / "nowhere")
    taken = refusal(2, finished[0], "--port", server.server_port)
    assert f"Port {server.server_port} of the loopback cannot be had" in taken
    assert "--quiet would not print the page's address" in refusal(2, finished[0], "--quiet")
