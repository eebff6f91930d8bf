"""Who runs the clients and averages them."""

from fahmc.engines.flare import Flare
from fahmc.engines.in_process import InProcess

__all__ = ["Flare", "InProcess"]
