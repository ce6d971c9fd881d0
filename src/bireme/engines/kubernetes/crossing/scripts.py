"""Prolog and Epilog of slurm.conf are files of the daemon's machine: they travel into the pods with the orders.

The engine shows every order to `with_scripts`; the agent unpacks them (`agent/confining/container.py`). Those of
slurm.conf only: what a user names (srun --task-prolog) is a file of the pod. Invariant: an order without such scripts
is left as it is.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec.structs import replace

from bireme.agent.messages.orders import Order, Prepare, Start, StartStep
from bireme.core.model.cluster import Settings


def with_scripts(order: Order, settings: Settings) -> Order:
    ours = {*settings.prolog, *settings.epilog, settings.task_prolog, settings.task_epilog}
    match order:
        case Start():
            named = {*order.prolog, *order.epilog, *order.task_prolog, *order.task_epilog}
        case Prepare():
            named = {*order.prolog, *order.epilog}
        case StartStep():
            named = {*order.task_prolog, *order.task_epilog}
        case _:
            return order
    texts: dict[str, str] = {}
    for path in named & ours:
        with contextlib.suppress(OSError):  # of the image, then
            texts[path] = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    return replace(order, scripts=texts) if texts else order
