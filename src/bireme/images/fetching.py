"""From what a user wrote to a folder that can be run: finds out what it names, and has it fetched.

Called by `__main__` for tasks, and by `bireme images pull`. Invariant: what is returned is whole, and is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bireme.images.messages import Image, Progress, Wanted
from bireme.images.references import LocalPath, parse_reference
from bireme.images.refusing import RefusedError
from bireme.images.sources.folder import plain_folder
from bireme.images.sources.kinds import Kind, kind_of

Tell = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Done:
    """`settle`: what is left to do when whoever asked has been told."""

    image: Image
    settle: Callable[[], None] = lambda: None


def fetch(wanted: Wanted, tell: Tell) -> Done:
    """Raises RefusedError, OSError."""
    named = parse_reference(wanted.image)
    if isinstance(named, LocalPath):
        path = named.absolute(wanted.folder)
        if kind_of(path) is Kind.FOLDER:
            return Done(plain_folder(path))
    raise RefusedError(f"{wanted.image}: only folders can be images so far")
