"""Opens a file of this machine as a submitter may open it: for output that comes back, and input that is brought.

User and umask of a process are those of all its threads: a child opens the file and hands it over.
Invariant: what is opened here could have been opened by the user; a daemon of root never lends its rights.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from bireme.agent.system.descriptors import receive_fds
from bireme.agent.system.identity import Identity, become
from bireme.agent.system.output import OpenFileError


def open_for(identity: Identity, stream: str, path: str, opening: Callable[[], int]) -> int:
    """What `opening` opened as this user. `stream` and `path` word the error. Raises OpenFileError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            _open_in_child(theirs, identity, opening)
        theirs.close()
        answer, fds, _ = receive_fds(ours, 64, 1)
        os.waitpid(child, 0)
    if not fds:
        raise OpenFileError(stream, path, int(answer or b"5"))
    return fds[0]


def _open_in_child(answer: socket.socket, identity: Identity, opening: Callable[[], int]) -> None:
    """Ends the child, whatever happens."""
    try:
        if not identity.is_own():
            become(identity)
        socket.send_fds(answer, [b"0"], [opening()])
    except OpenFileError as error:
        answer.send(str(error.errno).encode())
    except OSError as error:
        answer.send(str(error.errno or 5).encode())
    finally:
        os._exit(0)
