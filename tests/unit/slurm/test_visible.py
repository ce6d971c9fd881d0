"""Text of others is shown, and obeyed by nobody's terminal."""

from __future__ import annotations

import io
import json
import sys

import pytest

from bireme.cli.plain_streams import plain_streams
from bireme.commands.voice import Voice
from bireme.slurm.formats.visible import visible, visible_lines, visible_values

EVIL = "a\x1b[31mred\x07\x9b2J\x7f\r\n\tend \u202efoo"


def test_a_value_stays_within_its_line() -> None:
    assert visible(EVIL) == r"a\u001b[31mred\u0007\u009b2J\u007f\r\n\tend \u202efoo"


def test_lines_keep_their_ends_and_tabs() -> None:
    assert visible_lines("one\ttwo\nthree\x1b[2J\n") == "one\ttwo\nthree\\u001b[2J\n"


@pytest.mark.parametrize("text", ["train.py", "größe", "日本語", "no\u00a0break", "\udcff", ""])
def test_what_harms_nobody_is_left_as_it_is(text: str) -> None:
    assert visible(text) == visible_lines(text) == text


def test_records_are_made_visible_in_depth() -> None:
    assert visible_values({"a": ["\x1b", 1, None], "b": ("\n",)}) == {"a": [r"\u001b", 1, None], "b": [r"\n"]}


def test_json_stays_json() -> None:
    """Also with characters that JSON writes as they are: the escape is one of its own."""
    text = json.dumps({"name": EVIL}, ensure_ascii=False)
    assert json.loads(visible_lines(text)) == {"name": EVIL}


def test_commands_print_plain_text_and_bytes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    behind = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", behind)
    with plain_streams():
        print("name", "\x1b[31m")
        sys.stdout.writelines(["\x07\n"])
        sys.stdout.buffer.write(b"\x1b of the job\n")
    assert sys.stdout is behind
    assert raw.getvalue() == b"name \\u001b[31m\n\\u0007\n\x1b of the job\n"


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8", b"\\ud800 \xff \xc3\xa9 \xe2\x82\xac"), ("latin-1", b"\\ud800 \xff \xe9 \\u20ac")]
)
def test_no_command_dies_of_what_a_record_holds(
    encoding: str, shown: bytes, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Half characters, bytes that were no text, and what the terminal's encoding does not have."""
    held = "\ud800 \udcff \u00e9 \u20ac"
    files = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr("sys.stdout", files[0])
    monkeypatch.setattr("sys.stderr", files[1])
    with plain_streams():
        sys.stdout.write(held)
        print(held, end="", file=sys.stderr)
    for file in files:
        file.flush()
        assert file.buffer.getvalue() == shown  # type: ignore[attr-defined]
        assert file.errors == "strict"
    Voice("sbatch").error(held)
    assert capfdbinary.readouterr().err == b"sbatch: error: \\ud800 \xff \xc3\xa9 \xe2\x82\xac\n"
