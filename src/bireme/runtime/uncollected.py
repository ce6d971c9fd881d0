"""A block in which Python's garbage collector is off, for a pass.

A pass makes some hundred thousand objects, keeps many of them and no cycles: the collector would look at them again and
again, find nothing, and take a fifth of the time. Called by the kernel and by the benchmark of the planner.
`bireme/collector.py` is how the daemon collects otherwise.
Invariant: the collector is on afterwards if it was on before.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
