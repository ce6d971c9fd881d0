"""The pages' style and scripts, for pages that are one file and fetch nothing: `bireme timeline --html`, reports.

Those are files of ours that are read as they are; here they become text to be put into a page. Such a page has no
switch: it is dark where its reader's system is. Invariant: nothing in what is returned asks for another file.
"""

from __future__ import annotations

import re
from importlib.resources import files

_STATIC = files("bireme.web") / "static"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) )", re.MULTILINE)
_TYPES = re.compile(r"/\*\*.*?\*/", re.DOTALL)
"""What is said of types to whoever reads the source."""
_DARK = re.compile(r':root\[data-theme="dark"\] (\{[^}]*\})')


def style(*names: str) -> str:
    """These stylesheets after the one of all pages."""
    text = "\n".join(_read(name) for name in ("app.css", *names))
    return _DARK.sub(r"@media (prefers-color-scheme: dark) { :root \1 }", text)


def script(name: str) -> str:
    """A module with all that it imports, each once and before who needs it."""
    return "".join(_with_imports(name, set()))


def _with_imports(name: str, known: set[str]) -> list[str]:
    if name in known:
        return []
    known.add(name)
    text = _read(name)
    needed = [part for other in _IMPORT.findall(text) for part in _with_imports(other, known)]
    return [*needed, _EXPORT.sub("", _TYPES.sub("", _IMPORT.sub("", text)))]


def _read(name: str) -> str:
    return _STATIC.joinpath(name).read_text(encoding="utf-8")
