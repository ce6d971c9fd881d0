"""The story of a thing to which something happened that its table does not allow: the error that ends a run.

Made by the kernel, when it applies an event and when it reads the journal. Such an error is a bug of ours: whoever
reads it needs what happened to the thing before. Invariant: a story holds nothing of what came after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bireme.core.kinds.life import IllegalTransition
from bireme.core.model import events as e
from bireme.ports import Journal

LOOKED_THROUGH = 10_000
"""Jobs have an index of their events; for the story of anything else so many of the newest events are read."""


class IllegalTransitionError(RuntimeError):
    """An illegal transition with what happened to the thing before it."""

    def __init__(self, error: IllegalTransition, story: Sequence[e.Recorded]) -> None:
        lines = [f"  {recorded.seq} {recorded.at:.3f} {recorded.cause}: {recorded.event}" for recorded in story]
        super().__init__("\n".join([str(error), "its story:", *lines]))


def with_story(
    error: IllegalTransition, journal: Journal, seq: int, unsaved: Sequence[e.Recorded]
) -> IllegalTransitionError:
    """The error of event `seq`, with what happened to its thing: what is on disk, then what its turn had made of it."""
    told = [each for each in _stored(error, journal, seq) if error.is_about(each.event)]
    last = told[-1].seq if told else 0
    return IllegalTransitionError(
        error, [*told, *(each for each in unsaved if each.seq > last and error.is_about(each.event))]
    )


def _stored(error: IllegalTransition, journal: Journal, before: int) -> Iterator[e.Recorded]:
    job_id = getattr(error.event, "job_id", None)
    stored = journal.story(job_id) if job_id is not None else journal.replay(max(0, before - LOOKED_THROUGH))
    return (recorded for recorded in stored if recorded.seq < before)
