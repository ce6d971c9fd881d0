"""Something tried in a forked child: what cannot be taken back there (a namespace, a mount) ends with it.

Called where the agent finds out what the kernel allows. Invariant: whatever goes wrong in the child is a reason, not an
error of the caller's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def in_child(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The action's result, computed in a forked child; `why` where it broke."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_fd)
            os.write(write_fd, json.dumps(action()).encode())
        except BaseException as error:
            os.write(write_fd, json.dumps({"why": repr(error)}).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    outcome: dict[str, Any] = json.loads(text) if text else {"why": "the trial process died"}
    return outcome
