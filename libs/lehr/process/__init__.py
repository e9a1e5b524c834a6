"""What every service process is made of, built once and taken down in order."""

from lehr.process.entry import run
from lehr.process.loops import Loop
from lehr.process.process import Process

__all__ = ["Loop", "Process", "run"]
