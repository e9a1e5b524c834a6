"""A guard for a whole process: no library in it can connect past it."""

import sys
from typing import Any

from lehr.egress.guard import EgressRefused, Guard

#: What names the peer in its second argument (Python's table of audit events).
_PEERS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})

#: Another program would not be watched.
_PROGRAMS = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "pty.spawn"})


def enforce(guard: Guard) -> None:
    """Watch every connection of this process until it ends; it cannot be undone.

    The address that the kernel is told is checked, whoever resolved it. Only extension modules that
    open sockets by themselves are not seen; a process that is guarded must not load such.
    """

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _PEERS:
            # sendmsg without an address goes where the socket was connected to.
            if arguments[1] is not None:
                guard.check_peer(arguments[0].family, arguments[1])
        elif event in _PROGRAMS:
            raise EgressRefused

    sys.addaudithook(watch)
