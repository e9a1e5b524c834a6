"""The command line, ``lehr``: what the SDK can do, for people and (``--json``) for scripts."""

from lehr.cli.app import app

__all__ = ["app"]
