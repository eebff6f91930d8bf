"""FLARE's process at a site, with the doors shut that fahmc does not use.

FLARE lets an administrator look into a site through the server: list folders, print files, change logs. Whether he may
is asked at the site only if the sender says that it should be. A server that is not honest would not say so. So this
process, which `fahmc federation start` runs in the place of FLARE's own, keeps only the requests that jobs need, and
takes them only where FLARE names the server as their origin.
"""

from __future__ import annotations

import sys
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import new_cell_message
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.app.utils import version_check
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


def main() -> None:
    """Run FLARE's client."""
    version_check()
    shut_doors()
    arguments = client_train.parse_arguments()
    code: Any = MainProcessMonitor.run(main_func=client_train.main, run_dir=arguments.workspace, args=arguments)
    sys.exit(code)


if __name__ == "__main__":
    main()
