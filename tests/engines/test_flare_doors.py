"""FLARE's process at a site keeps the doors shut that fahmc does not use, and opens the others to the server alone."""

from typing import Any

import pytest
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import Message, MsgHeader, ReturnCode
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from fahmc.engines.flare.doors import NEEDED, shut_doors

LOOKS_IN = {
    f"{what}Processor"
    for what in ("ShellCommand", "ReportEnv", "ConfigureJobLog", "ConfigureSiteLog", "SysInfo", "ClientInfo",
                 "ShutdownClient", "RestartClient")
}  # fmt: skip


@pytest.fixture
def dispatched(monkeypatch):
    """Shut the doors of this process for one test; return the requests that come through."""
    through: list[Any] = []

    def dispatch(self, request):
        through.append(request)
        return "done"

    monkeypatch.setattr(ClientRequestProcessors, "request_processors", [*ClientRequestProcessors.request_processors])
    monkeypatch.setattr(FedAdminAgent, "_dispatch_request", dispatch)
    shut_doors()
    return through


def processors() -> set[str]:
    return {type(processor).__name__ for processor in ClientRequestProcessors.request_processors}


def test_what_looks_into_a_site_is_gone_and_what_jobs_need_is_there(dispatched):
    assert processors() == NEEDED and not NEEDED & LOOKS_IN
    topics = [
        topic for processor in ClientRequestProcessors.request_processors for topic in processor.get_topics() or []
    ]
    assert not [topic for topic in topics if "shell" in topic.lower() or "log" in topic.lower()]


def test_without_it_they_would_be_there():
    """The fixture puts back what it took away; and if FLARE renames them, the test above says nothing."""
    assert processors() >= NEEDED | LOOKS_IN


@pytest.mark.parametrize("origin", ["south", "server.job", "server.south", "SERVER", "ann@example.org", "", None])
def test_a_request_of_anybody_but_the_server_goes_no_further(dispatched, origin):
    headers = {} if origin is None else {MessageHeaderKey.ORIGIN: origin}
    agent: Any = object()
    answer: Any = FedAdminAgent._dispatch_request(agent, CellMessage(headers, Message("train.deploy", "")))
    assert dispatched == []
    assert answer.payload.get_header(MsgHeader.RETURN_CODE) == ReturnCode.ERROR
    assert answer.payload.body == "only the server may ask this site"


def test_the_server_s_requests_are_answered(dispatched):
    agent: Any = object()
    request = CellMessage({MessageHeaderKey.ORIGIN: "server"}, Message("train.deploy", ""))
    assert FedAdminAgent._dispatch_request(agent, request) == "done"  # type: ignore
    assert dispatched == [request]
