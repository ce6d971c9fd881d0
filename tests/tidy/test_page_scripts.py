"""The pages' scripts read as data: their types hold, nothing comes from elsewhere, one file has all of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.support.typescript import compiler

from bireme.web import one_file

STATIC = Path(__file__).resolve().parents[2] / "src" / "bireme" / "web" / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
OPTIONS = (
    "--noEmit", "--allowJs", "--checkJs", "--strict", "--target", "es2022", "--module", "es2022",
    "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable",
)  # fmt: skip
MOST_LINES = 600


def test_their_types_hold() -> None:
    found = compiler()
    if found is None:
        pytest.skip("TypeScript's compiler is not here: python -m tests.prepare fetches it from npm")
    done = subprocess.run([found, *OPTIONS, *map(str, SCRIPTS)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_ours_short_and_checked(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("// "), "it opens with what it is"
    assert "// @ts-check" in text.splitlines()[:6] or script.name == "theme.js"
    assert text.count("\n") <= MOST_LINES
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), "nothing is asked of another host"
    assert not re.search(r"\b(eval|Function|document\.write|insertAdjacentHTML|outerHTML)\b\s*\(?", text)
    for name in re.findall(r'^import .* from "([^"]*)";', text, re.MULTILINE):
        assert name.startswith("./"), name
        assert (STATIC / name).exists(), name


def test_a_page_of_one_file_has_all_of_them() -> None:
    text = one_file.script("one_file.js")
    assert not re.search(r"^\s*(import|export)\b", text, re.MULTILINE)
    assert "</script" not in text
    for name in ("class Axis", "class Board", "function figure", "function drawTimeline"):
        assert text.count(name) == 1, name
    assert text.index("class Axis") < text.index("class Board") < text.index("function drawTimeline")


def test_a_page_of_one_file_is_dark_where_its_reader_is() -> None:
    text = one_file.style("plot.css")
    assert "data-theme" not in text
    assert "@media (prefers-color-scheme: dark) { :root {" in text
    assert text.count("{") == text.count("}")
    assert not re.search(r"@import|url\(", text)
