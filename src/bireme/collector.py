"""Python's garbage collector, set so that nobody waits long for it.

The collector stops the loop while it looks at objects: at those made of late often, at those that stayed now and then,
at all of them rarely, which takes a second where a hundred thousand jobs are known. A daemon's objects either go with
their request, by their reference counts, or stay for days. So the young are looked at when an answer has gone out, the
middle generation is kept small, and what a look at everything has left alone is not looked at again. Used by the daemon
and by its API.

Invariant: a look takes as long as what was made since the last one before it asks for, however much the daemon knows.
What is put aside is still freed when nothing refers to it; only cycles among such objects stay, and requests leave none
(a test counts them).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG, _MIDDLE, _ALL = 500, 1, 30
"""So many new objects make a look at the new ones; so many of these one at the middle; so many of those one at all."""
_ENOUGH = 200
"""New objects that are worth a look between two requests."""
_OLDEST = 2


def collect_in_small_steps() -> None:
    """Has garbage collected in small steps for the rest of this process."""
    gc.set_threshold(_YOUNG, _MIDDLE, _ALL)
    if _put_aside not in gc.callbacks:
        gc.callbacks.append(_put_aside)


def collect_a_little() -> None:
    """What would else be done in the middle of somebody's request."""
    young, middle, old = gc.get_count()
    if young > _ENOUGH:
        gc.collect(0 if middle < _MIDDLE else 1 if old < _ALL else _OLDEST)


def _put_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()


@contextmanager
def nothing_collected() -> Iterator[None]:
    """While many objects are made that stay: the collector need not look at them now nor ever."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
