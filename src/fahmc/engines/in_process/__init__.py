"""All clients in this process: the default engine, and its faster way for generalised linear models."""

from fahmc.engines.in_process.engine import InProcess

__all__ = ["InProcess"]
