"""The server takes from a connection only what its owner may say; the rest of FLARE's traffic passes."""

from typing import Any

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey

from fahmc.engines.flare.gate import find_fault, watch_gate


def message(
    origin: Any, destination: Any, channel: Any = "task", topic: Any = "heart_beat", kind: Any = MessageType.REQ
) -> dict[str, Any]:
    return {
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.DESTINATION: destination,
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
        MessageHeaderKey.MSG_TYPE: kind,
    }


def stream(origin: str, destination: str, channel: Any, topic: Any, of: str = STREAM_DATA_TOPIC) -> dict[str, Any]:
    inner = {StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic}
    return message(origin, destination, STREAM_CHANNEL, of) | inner


@pytest.mark.parametrize(
    ("sender", "headers"),
    [
        ("south", message("south", "server")),
        ("south", message("south", "server", "cellnet.channel", "bye")),
        ("south", message("south.job", "server.job", "server_command", "get_task")),
        ("south.job", message("south.job", "server.job", "server_command", "submit_update")),
        ("north", message("north", "server", "admin", "train.deploy", MessageType.REPLY)),
        ("south", stream("south.job", "server.job", "return_only", "collab:call")),
        ("south.job", stream("south.job", "server.job", "collab", "call", of="sm__ERROR")),
        ("_admin_1", message("_admin_1", "server", CellChannel.HCI, "command")),
        ("server.job", stream("server.job", "north.job", "collab", "call")),
        ("server", message("server", "server.job", "server_command", "app_command")),
    ],
)
def test_what_a_run_needs_passes(sender, headers):
    assert find_fault(sender, headers) is None


@pytest.mark.parametrize(
    ("sender", "headers", "fault"),
    [
        ("south", message("server", "north", "admin", "train.abort"), "it says that it is of server"),
        ("south", message("server.job", "north.job", "collab", "call"), "it says that it is of server.job"),
        ("south", message(" server", "north"), "it says that it is of  server"),
        ("south", message("north", "server"), "it says that it is of north"),
        ("south", message("north", "server", "admin", "x", MessageType.REPLY), "it says that it is of north"),
        ("southern", message("south", "server"), "it says that it is of south"),
        ("south", message("south", "north"), "it is for north"),
        ("south", message("south", " server"), "it is for  server"),
        ("_admin_1", message("_admin_1", "north", "admin", "x"), "it is for north"),
        (
            "south",
            message("south", "server") | {MessageHeaderKey.CONN_URL: "tcp://x:1"},
            "it asks for a connection past the server",
        ),
        (
            "south",
            message("south", "server.job", "server_command", "app_command"),
            "nobody asks app_command of server_command here",
        ),
        ("south", message("south", "server", "_net_manager", "stop"), "nobody asks stop of _net_manager here"),
        (
            "south",
            stream("south", "server.job", "server_command", "abort"),
            "nobody asks abort of server_command here",
        ),
        ("south", stream("south", "server.job", None, None), "it does not say what it asks"),
        ("south", message("south", "server", ["task"]), "it does not say what it asks"),
        ("south", message(None, "server"), "it does not say from whom and for whom it is"),
        ("south", {}, "it does not say from whom and for whom it is"),
    ],
)
def test_what_nobody_may_say_is_found(sender, headers, fault):
    assert find_fault(sender, headers) == fault


def test_a_server_that_watches_its_gate_drops_what_is_not_proper(monkeypatch, caplog):
    taken = []
    monkeypatch.setattr(CoreCell, "process_message", lambda self, *arguments: taken.append(arguments))
    watch_gate()
    cell: Any = object()
    proper, forged = (Message(message(origin, "server"), None) for origin in ("south", "north"))
    for arrived in (forged, proper):
        CoreCell.process_message(cell, Endpoint("south"), None, 1, arrived)  # type: ignore
    assert [arguments[3] for arguments in taken] == [proper]
    assert "dropped a message of south: it says that it is of north" in caplog.text
