"""Connections that are made for users, to public servers only."""

from lehr.egress.clients import guarded, guarded_pool
from lehr.egress.guard import EgressRefused, Guard
from lehr.egress.process import enforce

__all__ = ["EgressRefused", "Guard", "enforce", "guarded", "guarded_pool"]
