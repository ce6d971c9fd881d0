"""Templates: an environment in which nothing that a user wrote can be anything but text.

Every value is made visible (no control character, no change of direction) and escaped, whoever forgets it; a part of a
page is one block of its template. Loaded whole at the start: afterwards the process may not read files any more.
Invariant: autoescape is on for all, and no template says `safe` (a test reads them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from bireme.slurm.formats.visible import visible, visible_lines
from bireme.web import words

TEMPLATES = Path(__file__).parent / "templates"
_FOR_SCRIPTS = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def _plain(value: Any) -> Any:
    """Of each value that a template shows."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value)


def lines(text: str) -> Markup:
    """Several lines of text, as they are: a script, a log."""
    return Markup(escape(visible_lines(text)))


def data(value: Any) -> Markup:
    """JSON for a `<script type="application/json">`: whatever is in it, it cannot end that element."""
    return Markup(json.dumps(value, separators=(",", ":")).translate(_FOR_SCRIPTS))


def time_of(at: Any) -> Markup:
    """A `<time>`: the reader's page says it in their zone and relative to now (`times.js`)."""
    if not words.iso(at):
        return Markup(words.NOTHING)
    exact = words.moment(at)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(words.iso(at), exact, exact)


class Drawing:
    """All templates. `always` is what every page may name: where it is, of which release."""

    def __init__(self, always: Mapping[str, Any]) -> None:
        sources = {
            str(path.relative_to(TEMPLATES)): path.read_text(encoding="utf-8") for path in TEMPLATES.rglob("*.html")
        }
        self._environment = Environment(
            loader=DictLoader(sources),
            autoescape=True,
            finalize=_plain,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            cache_size=-1,
        )
        self._environment.filters |= {
            "count": words.counted, "data": data, "elapsed": words.elapsed, "figure": words.figure,
            "hours": words.hours, "limit": words.limit, "limits": words.limits, "lines": lines, "memory": words.memory,
            "percent": words.percent, "shown": words.shown, "time": time_of,
        }  # fmt: skip
        self._environment.globals |= always
        self._environment.globals["ui"] = self._environment.get_template("ui.html").module
        self._environment.globals["kit"] = self._environment.get_template("kit.html").module
        for name in sources:
            self._environment.get_template(name)

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(values)

    def part(self, template: str, part: str, values: Mapping[str, Any]) -> str:
        """One block of it, without what is around."""
        made = self._environment.get_template(template)
        return "".join(made.blocks[part](made.new_context(dict(values))))

    def parts(self, template: str) -> frozenset[str]:
        return frozenset(self._environment.get_template(template).blocks)
