"""One process a site: a copy of a kit that connects while its owner is there is turned away.

FLARE would drop the older connection for the newer one. The older process connects again, and so the two take the
site's name from each other in turns, and no run gets through. A connection that is only believed to be there, as after
a cut in the network, does not keep its owner out: a process that lives is heard every few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys

logger = logging.getLogger("fahmc")


def refuse_doubles(is_there: Callable[[str], bool]) -> None:
    """Have this process, the server's, close a connection in a name whose owner ``is_there`` by another one."""
    update = ConnManager.update_endpoint

    def update_unless_taken(self: ConnManager, sfm_conn: Any, data: Any) -> None:
        name = data.get(HandshakeKeys.ENDPOINT_NAME)
        known = self.sfm_endpoints.get(name)
        if known is not None and sfm_conn not in known.connections and known.connections and is_there(name):
            logger.warning("a second process connects in the name of %s and is refused: a copy of its kit?", name)
            sfm_conn.conn.close()
        else:
            update(self, sfm_conn, data)

    ConnManager.update_endpoint = update_unless_taken
