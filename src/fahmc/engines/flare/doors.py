"""The doors of FLARE's process at a site that fahmc does not use, shut.

FLARE lets an administrator look into a site through the server: list folders, print files, change logs. Whether he may
is asked at the site only if the sender says that it should be. A server that is not honest would not say so. So a
site's process keeps only the requests that jobs need, and takes them only where FLARE names the server as their origin.
"""

from __future__ import annotations

from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

# What starting, watching and ending a job takes.
NEEDED = {
    "AbortAppProcessor",
    "AbortTaskProcessor",
    "CancelResourceProcessor",
    "CheckResourceProcessor",
    "ClientStatusProcessor",
    "DeleteRunNumberProcessor",
    "DeployProcessor",
    "NotifyJobStatusProcessor",
    "StartJobProcessor",
}


def shut_doors() -> None:
    """Keep the requests that jobs need, from the server alone."""
    processors = ClientRequestProcessors.request_processors
    processors[:] = [processor for processor in processors if type(processor).__name__ in NEEDED]
    dispatch = FedAdminAgent._dispatch_request

    def dispatch_from_server(self: FedAdminAgent, request: Any) -> Any:
        if request.get_header(MessageHeaderKey.ORIGIN) != FQCN.ROOT_SERVER:
            return new_cell_message({}, error_reply("only the server may ask this site"))
        return dispatch(self, request)

    FedAdminAgent._dispatch_request = dispatch_from_server
