"""What crosses a federation's wire, damaged or made up: requests, orders, broadcasts, replies, answers, headers.

A site says one of its closed list of refusals, with words of the asker's alone, and takes no more memory than its rules
give. What the server combines is what sound replies come to, and nothing else.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import random
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey

from fahmc import FAHMC
from fahmc.engines.client import ClientProgram
from fahmc.engines.flare import messages, site
from fahmc.engines.flare.arrays import arrays_to_text, text_to_arrays
from fahmc.engines.flare.gate import find_fault
from fahmc.engines.flare.masks import open_sum
from fahmc.engines.flare.refusals import Refusal, raise_refusal
from fahmc.engines.flare.rounds import Rounds
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.survey import survey
from fahmc.engines.flare.wire import Layout
from fahmc.engines.flare.work import Work
from fahmc.engines.order import Order
from fahmc.engines.run import Block
from fahmc.errors import FahmcError
from harness import part
from kit_forge import Authority
from odd_values import ODD_NUMBERS, ODD_TEXTS, flip_bytes

SITES = ("north", "south")
COLUMNS = {"outcome": "ill", "outcome_positive": "yes", "features": ["age", "group"], "missing": "drop"}
MEGABYTES, NUM_CHAINS = 64, 2
# Beside what the rules give, a case may compile a program.
_SLACK = 400 * 2**20
_JSON_ODD = (
    *(number for number in ODD_NUMBERS if isinstance(number, int | float)),
    *ODD_TEXTS[:12],
    None,
    [],
    {},
    [[]],
)
_NAMES = (
    "age",
    "group",
    "ill",
    "income",
    "A",
    "B",
    "north",
    "object",
    "array",
    "dtype",
    "name",
    "float64",
    "os:system",
)


class Federation(NamedTuple):
    """Two sites with real tables, asked and made ready."""

    work: dict[str, Work]
    programs: dict[str, ClientProgram]
    requests: dict[str, str]
    answers: dict[str, dict[str, Any]]
    order: Order
    rounds: Rounds
    secrets: list[str]
    """Row counts and cells, as they would stand in a sentence."""


@functools.cache
def federation() -> Federation:
    """Make it, once a process."""
    folder = Path(tempfile.mkdtemp(prefix="fahmc-fuzz-wire-"))
    rng, work, secrets = np.random.default_rng(3), {}, []
    known = Authority().identities(SITES)
    for name, size in zip(SITES, (431, 577), strict=True):
        ages = (rng.normal(7000, 900, size) + 0.137).round(3)
        cells = [f"{age},{'AB'[place % 2]},{place}.5,{'yes' if age > 7000 else 'no'}" for place, age in enumerate(ages)]
        cells[17] = ",A,0,no"
        (folder / f"{name}.csv").write_text("\n".join(["age,group,income,ill", *cells]))
        rules = Rules(
            file=str(folder / f"{name}.csv"),
            columns=["age", "group", "ill"],
            maximum_megabytes=MEGABYTES,
            secure_sum="allowed",
            minimum_sites=len(SITES),
            maximum_runs=10**6,
            maximum_rounds=10**9,
        )
        work[name] = Work(name, rules, bytes(32), known[name])
        secrets += [str(size), str(size - 1), f"{name}.csv", *(f"{age}" for age in ages)]
    site.collab = SimpleNamespace(caller="server")  # type: ignore
    requests, answers = {}, {}

    def call(sites, method, seconds, arguments, /):
        answers[method] = {name: answered(work[name], method, **arguments) for name in sites}
        requests.update({method: arguments["request"]} if "request" in arguments else {})
        return answers[method], {}

    about = survey(call, SITES, COLUMNS, None, 1.0)
    requests["add_up"] = json.dumps(json.loads(requests["summarize"]) | {"variables": ["age"], "means": [7000.0]})
    sampler = {"name": "FAHMC", "step_size": 0.1, "num_leapfrog_steps": 2, "momentum_correlation": 0.5}
    order = Order(
        model={"name": "logistic_regression", "prior_scale": 2.0, "feature_names": ["age", "group[B]"]},
        sampler=sampler,
        leader=sampler,
        phase="sampling",
        stream="",
        seed=1,
        num_chains=NUM_CHAINS,
        dtype="float64",
        template={"dict": [["coefficients", "coefficients"], ["intercept", "intercept"]]},
        leaf_shapes={"coefficients": [2], "intercept": []},
        weights=dict(zip(SITES, about["weights"], strict=True)),
        num_rows=sum(about["sizes"].values()),
    )
    for name in SITES:
        assert answered(work[name], "prepare", order=order.text) == {}
    programs: Any = {name: work[name]._program for name in SITES}
    rounds = Rounds(lambda *arguments: ({}, {}), order, FAHMC(0.1), 1.0)
    return Federation(work, programs, requests, answers, order, rounds, secrets)


def answered(work: Work, method: str, **arguments: Any) -> dict[str, Any]:
    """Call a site as the server does: no exception comes back."""
    return site._answered(getattr(work, method))(**arguments)


# Damage


def mutated(rng: random.Random, value: Any, times: int = 1) -> Any:
    """Return JSON values with something in them changed, left out, doubled or put elsewhere."""
    value = copy.deepcopy(value)
    for _ in range(times):
        places = list(_places(value))
        if not places:
            return odd(rng)
        parent, key = rng.choice(places)
        kind = rng.randrange(7)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[rng.choice((*_NAMES, *ODD_TEXTS[:8]))] = parent[key]
        elif kind == 1:
            parent.append(parent[key])
        elif kind == 2:
            other, its = rng.choice(places)
            parent[key] = copy.deepcopy(other.get(its)) if isinstance(other, dict) else odd(rng)
        elif kind == 3 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = rng.choice((-1, 0, 0.5, 2, 1e-306, 1e300, 2**31, 2**40, 2**63)) * (parent[key] or 1)
        elif kind == 4:
            parent[key] = [parent[key]] * rng.choice((1, 3, 60))
        elif kind == 5:
            parent[key] = rng.choice(_NAMES)
        else:
            parent[key] = odd(rng)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(child)


def odd(rng: random.Random) -> Any:
    """Return what nobody expects."""
    if rng.random() < 0.03:
        return functools.reduce(lambda inner, _: [inner], range(rng.choice((20, 150, 300))), rng.choice(_NAMES))
    return copy.deepcopy(rng.choice((*_JSON_ODD, *_NAMES, True, 10**400, {"array": [1], "dtype": "S90000000"})))


def damaged_text(rng: random.Random, text: str) -> str:
    """Return JSON text with its values changed, or its characters."""
    kind = rng.random()
    if kind < 0.1:
        return text
    if kind < 0.2:
        return flip_bytes(rng, text.encode()).decode("utf-8", errors="replace")
    if kind < 0.23:
        return rng.choice(("", "null", "[" * 10**5, '{"a":' * 10**4, "9" * 10**5, "1e999", "\ud800", text * 3, "NaN"))
    return json.dumps(mutated(rng, json.loads(text), rng.choice((1, 1, 2, 4))))


def damaged_bytes(rng: random.Random, content: bytes) -> Any:
    """Return a field of a message that is not it, but for the bits that may be any number."""
    kind = rng.randrange(6)
    if kind == 0:
        return flip_bytes(rng, content)
    if kind == 1:
        return content[: rng.randrange(len(content) + 1)]
    if kind == 2:
        return content + rng.randbytes(rng.choice((1, 8, 64)))
    return (
        content
        if kind == 3
        else rng.choice((content.hex(), bytearray(content), None, [content], 7, memoryview(content)))
    )


# What must hold


def check_refusal(answer: dict[str, Any], *asked: str) -> str:
    """Hold a site's refusal against its list, and read it as the server would."""
    here = federation()
    assert set(answer) == {"refused", "words"}, answer
    words = answer["words"]
    assert answer["refused"] != "FAULT", "something failed that should have been refused"
    assert answer["refused"] in Refusal.__members__ and all(isinstance(word, str) for word in words)
    text = "".join(asked)
    for word in words:
        assert json.dumps(word) in text or json.dumps(word, ensure_ascii=False) in text, "a word that nobody had used"
    try:
        raise_refusal("x", "it", answer, asked)
    except FahmcError as error:
        said = str(error)
        for word in sorted(words, key=len, reverse=True):
            said = said.replace(repr(word), "")
        assert not re.search(r"\d", said), said
        assert not any(secret in said for secret in here.secrets)
        return f"site: {answer['refused'].lower()}"
    raise AssertionError("the server took a refusal for an answer")


def peak() -> int:
    """Return the most memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# What is tried


def try_request(rng: random.Random) -> str:
    """A request to sum up or to encode."""
    here, method = federation(), rng.choice(("summarize", "add_up", "encode", "encode"))
    work = copy.copy(here.work[rng.choice(SITES)])
    request = damaged_text(rng, here.requests[method] if rng.random() < 0.6 else cunning_encoding(rng))
    answer = answered(work, method, request=request)
    if "refused" in answer:
        return check_refusal(answer, request)
    if method == "encode":
        assert work._rows is not None and all(np.isfinite(leaf).all() for leaf in work._rows.values())
        assert sum(leaf.nbytes for leaf in work._rows.values()) <= MEGABYTES * 2**20
    elif "levels" in str(answer):
        columns = [*answer["features"].values(), answer["outcome"]]
        assert all(len(column["levels"]) <= 50 for column in columns)
    return "accepted"


def cunning_encoding(rng: random.Random) -> str:
    """Return a request that would tell cells, if a site tried it on them."""
    request = json.loads(federation().requests["encode"])
    scale = [rng.choice((0.0, 7000.0, 1e308, -1e17)), rng.choice((1e-306, 7000 / 1.7e308, 5e-324, 1e-6, 1.0, 1e300))]
    levels = [rng.choice("ABCD") for _ in range(rng.choice((1, 2, 3, 60)))]
    ages = [secret for secret in federation().secrets if secret[0] in "56789"]
    change = rng.choice(
        ({"standardization": {"age": scale}}, {"levels": {"group": levels}}, {"levels": {"age": rng.sample(ages, 40)}})
    )
    return json.dumps(request | {"encoding": request["encoding"] | change})


def greedy(rng: random.Random) -> dict[str, Any]:
    """Return a part of an order that asks for more than there is, or nearly."""
    size = rng.choice((5, 10**3, 10**6, 2**31, 2**40, 2**63))
    sampler = {"name": "FAHMC", "step_size": 0.1}
    return rng.choice(
        (
            {"num_chains": size},
            {"leaf_shapes": {"coefficients": [2, *[size] * rng.randrange(1, 4)], "intercept": []}},
            {"leaf_shapes": {"coefficients": [size], "intercept": []}},
            {"sampler": {"name": "_expansion", "size": 3, "num_points": size}},
            {"sampler": {"name": "_scatter", "size": size, "num_points": 4}},
            {"sampler": sampler | {"num_leapfrog_steps": size, "num_local_steps": rng.choice((1, size))}},
            {"sampler": sampler | {"gradient": {"name": "minibatch", "size": size}}},
            {"model": {"name": "mlp", "num_classes": size, "hidden": [size]}},
            {"model": {"name": "softmax_regression", "num_classes": size}},
        )
    )


def try_order(rng: random.Random) -> str:
    """An order; only what shares the first one's program is compiled in no time."""
    here, name = federation(), rng.choice(SITES)
    work = copy.copy(here.work[name])
    work._program = here.programs[name]
    text = here.order.text if rng.random() < 0.6 else json.dumps(json.loads(here.order.text) | greedy(rng))
    order, before = damaged_text(rng, text), peak()
    answer = answered(work, "prepare", order=order)
    assert peak() - before < MEGABYTES * 2**20 + _SLACK, "it took too much memory"
    if answer == {}:
        assert work._program is not None
        return "accepted"
    # What was ready before may stay, if the order was not even read.
    assert work._program is None or work._program is here.programs[name]
    return check_refusal(answer, order)


def try_broadcast(rng: random.Random) -> str:
    """A call for a round."""
    here, name = federation(), rng.choice(SITES)
    work, order = here.work[name], here.order
    work._program = here.programs[name]
    state: Any = {"position": np.ones((NUM_CHAINS, 3)).tobytes()}
    if rng.random() < 0.6:
        state["position"] = damaged_bytes(rng, state["position"])
    if rng.random() < 0.1:
        state = rng.choice((None, [], {}, {"position": state["position"], "more": b""}, {"momentum": bytes(48)}))
    run = order.identity if rng.random() < 0.8 else odd(rng)
    round_index = 3 if rng.random() < 0.7 else odd(rng)
    answer = answered(work, "local_round", run=run, round_index=round_index, state=state)
    if "refused" in answer:
        return check_refusal(answer, *(part for part in (run, round_index) if isinstance(part, str)))
    assert run == order.identity and isinstance(state["position"], bytes) and len(state["position"]) == 48
    assert len(answer["reply"]["position"]) == 48 and answer["site"] == name
    return "accepted"


def try_replies(rng: random.Random) -> str:
    """Replies to a round."""
    here = federation()
    sent = {name: np.asarray([[rng.uniform(-9, 9) for _ in range(3)] for _ in range(NUM_CHAINS)]) for name in SITES}
    answers: dict[str, Any] = {
        name: {"site": name, "round": 5, "reply": {"position": values.tobytes()}} for name, values in sent.items()
    }
    kind, victim = rng.randrange(7), rng.choice(SITES)
    if kind == 1:
        answers[victim] = mutated(rng, answers[victim] | {"reply": {"position": "p"}})
    elif kind == 2:
        answers[victim]["reply"]["position"] = damaged_bytes(rng, sent[victim].tobytes())
    elif kind == 3:
        answers[victim] = {"refused": odd(rng), "words": odd(rng)}
    elif kind == 4:
        answers = dict(zip(SITES, reversed(list(answers.values())), strict=True))
    elif kind == 5:
        sent[victim][rng.randrange(NUM_CHAINS), rng.randrange(3)] = rng.choice((math.nan, math.inf, -math.inf))
        answers[victim]["reply"]["position"] = sent[victim].tobytes()
    elif kind == 6:
        del answers[victim]
    rounds = copy.copy(here.rounds)
    rounds._call = lambda sites, *rest: ({name: answers[name] for name in sites if name in answers}, {})
    result = rounds.advance({"position": np.zeros((NUM_CHAINS, 3))}, 5)
    replies = [answers[name]["reply"]["position"] for name in SITES]
    assert all(answers[name]["site"] == name and answers[name]["round"] == 5 for name in SITES), "not this round's"
    assert all(isinstance(reply, bytes) and len(reply) == 48 for reply in replies), "a damaged reply was averaged"
    numbers = np.stack([np.frombuffer(reply).reshape(NUM_CHAINS, 3) for reply in replies])
    assert result.is_finite.all() == np.isfinite(numbers).all()
    if np.isfinite(numbers).all() and np.abs(numbers).max() < 1e100:
        mean = np.tensordot(list(here.order.weights.values()), numbers, 1)
        np.testing.assert_allclose(result.state["position"], mean, rtol=1e-12, atol=1e-12)
    return "accepted"


THREE, SHAPES = ("north", "south", "east"), {"move": (2, 3), "loss": (4,)}


@functools.cache
def secure() -> tuple[dict[str, Work], str]:
    """Return three sites that are about to agree on a secure sum, and what they say to each other."""
    federation()  # from now on, who calls sites is the server
    known, rules = Authority("sums").identities(THREE), Rules(file="none.csv", columns="all")
    work = {name: Work(name, rules, bytes(32), known[name]) for name in THREE}
    return work, json.dumps({name: one.greet()["hello"] for name, one in work.items()})


def try_hellos(rng: random.Random) -> str:
    """What sites say to each other, damaged by the server that passes it on."""
    work, hellos = secure()
    told = damaged_text(rng, hellos)
    answer = answered(copy.copy(work[rng.choice(THREE)]), "agree", hellos=told)
    if "refused" in answer:
        return check_refusal(answer, told)
    assert answer == {"secure_sum": "required"}
    said, heard = ({name: hello["statement"] for name, hello in json.loads(text).items()} for text in (hellos, told))
    assert said == heard, "a key that nobody signed was taken"
    return "accepted"


def try_shares(rng: random.Random) -> str:
    """Shares of a sum."""
    work, hellos = secure()
    values = {name: np.asarray([rng.uniform(-9, 9) for _ in range(math.prod(shape))]).reshape(shape)
              for name, shape in SHAPES.items()}  # fmt: skip
    shares: dict[str, Any] = {}
    for name, one in work.items():
        assert one._party is not None
        shares[name] = one._party.agree(hellos).shares("order").hide("round 1", bytes(32), values, {"move"})
    sound, victim = dict(shares), rng.choice(THREE)
    if rng.random() < 0.8:
        shares[victim] = damaged_bytes(rng, shares[victim])
    totals = open_sum(shares, SHAPES, during="in round 1", narrow={"move"})
    assert shares == sound, "a damaged share was added"
    for name, value in values.items():
        np.testing.assert_allclose(totals[name], 3 * value, rtol=0, atol=1e-11)
    return "accepted"


def try_survey(rng: random.Random) -> str:
    """What a site answers to a survey, or a survey that the analyst asks for."""
    here = federation()
    method, victim = rng.choice(("hello", "list_columns", "summarize", "summarize", "encode")), rng.choice(SITES)
    answers = here.answers | {method: dict(here.answers[method])}
    columns: Any = COLUMNS
    if rng.random() < 0.2:
        columns = mutated(rng, COLUMNS)
    else:
        plain = json.loads(json.dumps(answers[method][victim]))
        answers[method][victim] = mutated(rng, plain, rng.choice((0, 1, 1, 2)))

    def call(sites, method, seconds, arguments, /):
        json.dumps(dict(arguments))
        return {name: answers[method][name] for name in sites}, {}

    found = survey(call, SITES, columns, None, 1.0)
    assert set(found["sizes"]) == set(SITES) and all(1 <= size < 2**50 for size in found["sizes"].values())
    assert abs(sum(found["weights"]) - 1) < 1e-9
    assert all(math.isfinite(number) for scale in found["about"]["standardization"].values() for number in scale)
    assert sum(math.prod(array["shape"]) for array in found["arrays"].values()) < 10**8
    json.dumps(found, allow_nan=False)
    return "accepted"


REQUESTS = (
    messages.Status(),
    messages.Survey(list(SITES), COLUMNS, {"north": 0.5, "south": 0.5}, 3.0),
    messages.Prepare("{}", 3.0, 1.0),
    messages.Begin(4, 10, None, 2, arrays_to_text({"position": np.ones(3)})),
    messages.Fetch("begun", 4, 2),
    messages.Stop(),
)


def try_command(rng: random.Random) -> str:
    """A command of the analyst's."""
    values = mutated(rng, messages.write_request(rng.choice(REQUESTS)), rng.choice((0, 1, 1, 2)))
    request = messages.read_request(values if isinstance(values, dict) else {})
    assert isinstance(request, messages.Request)
    for name, value in dataclasses.asdict(request).items():
        if name in ("first_round", "num_rounds", "num_warmup_rounds", "thin"):
            assert value is None or 0 <= int(value) < 2**31 or name == "thin"
        if name in ("seconds", "round_timeout"):
            assert 0 <= float(value or 0) < 1e8
    return "accepted"


def try_block(rng: random.Random) -> str:
    """Rounds as text."""
    block = Block(5, 9, np.ones((2, 4, 3)), {"n": np.ones((2, 4), "int32")}, None, {"position": np.zeros((2, 3))})
    text = messages.block_to_text(block)
    text = text if rng.random() < 0.1 else damaged_text(rng, text)
    arrays = text_to_arrays(text)
    assert sum(array.nbytes for array in arrays.values()) <= len(text), "it unpacks to more than itself"
    assert all(array.dtype.kind in "fiub" for array in arrays.values())
    read = messages.text_to_block(text)
    assert isinstance(read.first_round, int) and isinstance(read.positions, np.ndarray)
    return "accepted"


def try_layout(rng: random.Random) -> str:
    """The bytes of one message."""
    exchange = FAHMC(0.1, sync_unit="leapfrog").exchange(3)
    layout = Layout(exchange.reply, NUM_CHAINS, np.dtype(rng.choice(("float32", "float64"))))
    content: Any = layout.pack({name: np.full((NUM_CHAINS, 3), 1.5) for name in exchange.reply})
    if rng.random() < 0.8:
        name = rng.choice(list(content))
        content[name] = damaged_bytes(rng, content[name])
    if rng.random() < 0.1:
        content = rng.choice(
            (None, 7, [], {}, list(content.items()), content | {"x": b""}, {name: b"" for name in content})
        )
    message = layout.unpack(content, "Site 'x'")
    assert {name: array.shape for name, array in message.items()} == dict.fromkeys(exchange.reply, (NUM_CHAINS, 3))
    assert layout.pack(message) == content
    return "accepted"


_CELLS = (
    "server",
    "server.job",
    "north",
    "north.job",
    "south",
    " server",
    "server ",
    "_admin_1",
    "",
    ".",
    "server.north",
)
_CHANNELS = ("task", "admin", "hci", "server_main", "server_command", "cellnet.channel", "return_only", "collab", "aux")
_TOPICS = ("heart_beat", "get_task", "app_command", "bye", "abort", "call", "command", STREAM_DATA_TOPIC)


def try_headers(rng: random.Random) -> str:
    """A message at the server's gate."""
    sender = rng.choice(("north", "north.job", "_admin_1", "south", "server", "server.job"))

    def one(known: tuple[str, ...]) -> Any:
        return rng.choice(known) if rng.random() < 0.9 else odd(rng)

    headers: dict[str, Any] = {
        MessageHeaderKey.ORIGIN: sender if rng.random() < 0.6 else one(_CELLS),
        MessageHeaderKey.DESTINATION: "server.job" if rng.random() < 0.5 else one(_CELLS),
        MessageHeaderKey.CHANNEL: one((*_CHANNELS, STREAM_CHANNEL)),
        MessageHeaderKey.TOPIC: one(_TOPICS),
        MessageHeaderKey.MSG_TYPE: one((MessageType.REQ, MessageType.REQ, MessageType.REPLY, "return")),
        StreamHeaderKey.CHANNEL: one(_CHANNELS),
        StreamHeaderKey.TOPIC: one(_TOPICS),
    }
    for _ in range(rng.choice((0, 0, 1, 3))):
        headers.pop(rng.choice(list(headers)))
    if rng.random() < 0.1:
        headers[MessageHeaderKey.CONN_URL] = odd(rng)
    fault = find_fault(sender, headers)
    if fault is not None:
        assert isinstance(fault, str) and fault
        return "dropped"
    root = FqcnInfo(sender).root
    assert FqcnInfo(headers[MessageHeaderKey.ORIGIN]).root == root, "a message passed in another's name"
    assert root == "server" or FqcnInfo(headers[MessageHeaderKey.DESTINATION]).root == "server", "past the server"
    assert not headers.get(MessageHeaderKey.CONN_URL)
    return "accepted"


# By how often; what compiles is rare.
TRIED = {
    try_request: 25, try_order: 12, try_broadcast: 12, try_replies: 15, try_survey: 12, try_command: 8, try_block: 6,
    try_hellos: 6, try_shares: 6, try_layout: 5, try_headers: 5,
}  # fmt: skip


@part("wire")
def try_one(rng: random.Random, folder: Path) -> str:
    """Damage one thing that crosses the wire."""
    return rng.choices(list(TRIED), list(TRIED.values()))[0](rng)
