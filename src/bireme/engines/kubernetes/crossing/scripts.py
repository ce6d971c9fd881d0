"""Prolog and Epilog of slurm.conf are files of the daemon's machine: they travel into the pods with the orders.

The engine shows every order to `with_scripts`; the agent unpacks them (`agent/confining/container.py`). Those of
slurm.conf only: what a user names (srun --task-prolog) is a file of the pod. Invariant: an order without such scripts
is left as it is.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from bireme.agent.confining.container import SCRIPT_KEYS
from bireme.agent.messages.protocol import Message
from bireme.core.model.cluster import Settings


def with_scripts(message: Message, settings: Settings) -> Message:
    ours = {*settings.prolog, *settings.epilog, settings.task_prolog, settings.task_epilog}
    texts: dict[str, str] = {}
    for path in {path for key in SCRIPT_KEYS for path in message.get(key) or ()} & ours:
        with contextlib.suppress(OSError):  # of the image, then
            texts[path] = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    return {**message, "scripts": texts} if texts else message
