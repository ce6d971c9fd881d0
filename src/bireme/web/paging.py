"""A page: its address, its template, what it shows, and which parts of it are live.

Modules of `pages/` collect theirs in a `Pages`; `app` serves them, `live` draws their parts again when something they
depend on has changed. A handler gets an `Asking` and returns the values of its template.
Invariant: a part is a block of the page's template of the same name, and draws from the same values as the whole page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import compile_path

from bireme.web.asking import Asking, Shared, Visitor
from bireme.web.drawing import Drawing

JOBS, NODES, SERVICES, FAULTS, PLAN, BOOK, RESERVATIONS, MEASURED = (
    "jobs", "nodes", "services", "faults", "plan", "book", "reservations", "measured"
)  # fmt: skip
"""What a part may depend on: topics of `/v1/changes`, and MEASURED: new samples, every ten seconds."""
JOB = "job"
"""The one job that the page's address names as `job`."""
VERDICT = "verdict"
"""What the plan says of that job."""

SELDOM_S = 60.0
Values = Mapping[str, Any]
Handler = Callable[[Asking], Awaitable[Values]]


@dataclass(frozen=True, slots=True)
class Part:
    """A block that is drawn again when one of these topics has changed, and no more often than every so many
    seconds."""

    on: tuple[str, ...]
    every_s: float = 2.0
    seldom: tuple[str, ...] = ()
    """Topics that change it a little at most: for these alone it is drawn again every `SELDOM_S`."""


@dataclass(frozen=True)
class Page:
    path: str
    template: str
    handler: Handler
    title: str
    nav: str
    """The entry of the menu that it belongs to."""
    parts: Mapping[str, Part]
    pattern: Any = field(init=False)

    def __post_init__(self) -> None:
        pattern, _, convertors = compile_path(self.path)
        object.__setattr__(self, "pattern", (pattern, convertors))

    def words_of(self, path: str) -> dict[str, str] | None:
        """The variable parts of an address of this page; None: it is another's."""
        pattern, convertors = self.pattern
        match = pattern.match(path)
        if match is None:
            return None
        return {name: str(convertors[name].convert(value)) for name, value in match.groupdict().items()}


class Pages:
    """Collects the pages of one module: `@pages.page("/jobs/{job}", "job.html", title="Job")`."""

    def __init__(self) -> None:
        self.table: list[Page] = []

    def page(
        self, path: str, template: str, *, title: str, nav: str = "", parts: Mapping[str, Part] | None = None
    ) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.table.append(Page(path, template, handler, title, nav, parts or {}))
            return handler

        return register


class Press:
    """Draws pages and parts of them for somebody."""

    def __init__(self, drawing: Drawing, shared: Shared) -> None:
        self._drawing, self._shared = drawing, shared

    async def page(self, page: Page, visitor: Visitor, path: Mapping[str, str], query: Mapping[str, str]) -> str:
        """Raises RefusedError, AwayError, NotLoggedInError."""
        values = await page.handler(Asking(visitor, self._shared, query, path))
        return self._drawing.page(page.template, {**self.around(page.title, page.nav, visitor), **values})

    async def part(
        self, page: Page, part: str, visitor: Visitor, path: Mapping[str, str], query: Mapping[str, str]
    ) -> str:
        """As `page`, of one block."""
        assert part in page.parts
        values = await page.handler(Asking(visitor, self._shared, query, path, part))
        return self._drawing.part(page.template, part, {**self.around(page.title, page.nav, visitor), **values})

    def plain(self, template: str, title: str, visitor: Visitor | None = None, **values: Any) -> str:
        """A page that asks nothing of the daemon: errors, the way in."""
        return self._drawing.page(template, {**self.around(title, "", visitor), **values})

    def around(self, title: str, nav: str, visitor: Visitor | None) -> dict[str, Any]:
        return {"title": title, "nav": nav, "visitor": visitor}
