"""The server's gate: from each connection it takes only what the connection's owner may say.

FLARE believes what a message says of itself. Its tokens do not hold a sender to a name: a site could pass for the
server at another site, and for the analyst at the server's worker. But FLARE knows whose certificate opened the
connection that a message came in by, and in a fahmc federation every message comes by the server. So it looks there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey

logger = logging.getLogger("fahmc")

# What sites and the analyst ask of the server and its workers: channels and their topics, None for all of them.
_ASKED: dict[Any, set[str] | None] = {
    CellChannel.SERVER_MAIN: None,  # to be let in, to be alive, to leave
    CellChannel.HCI: None,  # the analyst's commands; FLARE asks for his certificate
    CellChannel.AUX_COMMUNICATION: None,
    # Not app_command: the analyst's commands reach a worker from the server's main process, which has checked who asks.
    CellChannel.SERVER_COMMAND: {"get_task", "submit_update"},
    CellChannel.RETURN_ONLY: None,
    CellChannel.CELLNET: {CellChannelTopic.Bye},
}


def watch_gate() -> None:
    """Have this process, the server's, drop what is not proper."""
    process = CoreCell.process_message

    def process_if_proper(self: CoreCell, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        if fault := find_fault(endpoint.name, message.headers or {}):
            logger.warning("dropped a message of %s: %s", endpoint.name, fault)
        else:
            process(self, endpoint, connection, app_id, message)

    CoreCell.process_message = process_if_proper


def find_fault(sender: str, headers: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a message that came in by the connection of ``sender``."""
    origin, destination = headers.get(MessageHeaderKey.ORIGIN), headers.get(MessageHeaderKey.DESTINATION)
    if not isinstance(origin, str) or not isinstance(destination, str):
        return "it does not say from whom and for whom it is"
    owner = FqcnInfo(sender)
    if FqcnInfo(origin).root != owner.root:
        return f"it says that it is of {origin}"
    if headers.get(MessageHeaderKey.CONN_URL):
        # FLARE would make it, in clear, and believe any name at its other end.
        return "it asks for a connection past the server"
    if owner.is_on_server:
        return None
    if not FqcnInfo(destination).is_on_server:
        return f"it is for {destination}"
    if headers.get(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
        return None  # an answer: FLARE takes those that it waits for
    return _find_fault_in_request(headers)


def _find_fault_in_request(headers: Mapping[str, Any]) -> str | None:
    channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
    if channel == STREAM_CHANNEL:
        if topic != STREAM_DATA_TOPIC:
            return None  # word that a part of a stream arrived, or that it broke off
        channel, topic = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
        if channel is None and topic is None and StreamHeaderKey.ERROR_MSG in headers:
            return None  # the sender breaks off
    if not isinstance(channel, str) or not isinstance(topic, str):
        return "it does not say what it asks"
    topics = _ASKED.get(channel, set())
    return None if topics is None or topic in topics else f"nobody asks {topic} of {channel} here"
