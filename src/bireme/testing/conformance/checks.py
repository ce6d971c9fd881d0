"""What a check is: a sentence that must be true of every engine, and when it does not apply.

All parts of the suite list theirs with `CheckList`. A check that does not apply says why:
the reason is shown where the suite runs, so that nothing is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Body = TypeVar("Body", bound=Callable[..., object])


class NotApplicable(Exception):  # noqa: N818  (named for what it says)
    """This check says nothing about this engine; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Check(Generic[Body]):
    name: str
    body: Body
    placed: bool
    """True: it says where jobs go, which an engine that places by itself decides alone."""

    def __str__(self) -> str:
        return self.name

    def require(self, *, places_by_itself: bool, inapplicable: Mapping[str, str]) -> None:
        """Raises NotApplicable where the check says nothing."""
        if self.placed and places_by_itself:
            raise NotApplicable("the engine places by itself")
        if self.name in inapplicable:
            raise NotApplicable(inapplicable[self.name])


class CheckList(Generic[Body]):
    """`@checks.say(...)` adds a function under its own name."""

    def __init__(self) -> None:
        self._checks: dict[str, Check[Body]] = {}

    def say(self, *, placed: bool = False) -> Callable[[Body], Body]:
        def add(body: Body) -> Body:
            name = body.__name__
            assert name not in self._checks, f"two checks are called {name}"
            self._checks[name] = Check(name, body, placed)
            return body

        return add

    def __iter__(self) -> Iterator[Check[Body]]:
        return iter(self._checks.values())

    def __contains__(self, name: object) -> bool:
        return name in self._checks
