"""Logs of the services: constant event names, values as fields, secrets masked."""

from lehr.logs.setup import Logger, bind_context, configure, get_logger

__all__ = ["Logger", "bind_context", "configure", "get_logger"]
