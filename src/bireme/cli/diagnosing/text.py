"""A diagnosis as text of at most 80 columns: the cause first, then its evidence, what to do, who, and the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

WIDTH = 80
LABEL = 12
_SHOWN = 4
"""Lines of evidence; JSON has all that are quoted."""
_LONGEST = 3
"""Lines of text that one quoted line may take."""
_SURE = {"high": "sure", "medium": "likely", "low": "a hint, no more"}
_WHO = {"you": "you", "platform": "your platform team", "vendor": "the vendor, through your platform team"}
_SOURCES = {"kernel": "kernel", "record": "the scheduler", "device": "the GPU", "series": "measured", "trace": "trace"}

Record = dict[str, Any]


def text_of(answer: Record, stamp: Callable[[float], str]) -> Iterator[str]:
    """`answer`: as `answer_of` made it, made visible."""
    sure = f"{_SURE[answer['confidence']]}: " if answer["confidence"] != "none" else ""
    yield from _wrapped(f"{answer['title']} ({sure}{answer['basis']})", "", "")
    yield from _wrapped(answer["summary"], "", "")
    yield ""
    label = "Evidence" if answer["confidence"] != "none" else "Its end"
    for number, line in enumerate(answer["evidence"][:_SHOWN]):
        yield from _row("" if number else label, [_where(line, stamp)])
        yield from _quote(line["text"])
    more = len(answer["evidence"]) - _SHOWN
    if more > 0:
        yield from _row("", [f"and {more} more (--json)"])
    yield from _row("What to do", answer["actions"])
    yield from _row("Who", [_WHO[answer["who"]]])
    yield from _row("Not this", (_other(each) for each in answer["others"]))
    yield from _row("Ruled out", answer["ruled_out"])
    yield from _row("Next time", answer["collect"])
    yield from _row("Problems", answer["problems"])


def _where(line: Record, stamp: Callable[[float], str]) -> str:
    place = _place(line) if line["file"] else ""
    parts = [
        place or _SOURCES.get(line["source"], ""),
        f"rank {line['rank']}" if line["rank"] is not None else "",
        line["node"],
        line["device"],
        stamp(line["time"]) if line["time"] is not None else "",
        _SOURCES[line["source"]] if place and line["source"] in _SOURCES else "",
    ]
    return ", ".join(part for part in parts if part)


def _quote(text: str) -> Iterator[str]:
    indent = " " * (LABEL + 2)
    lines = textwrap.wrap(" ".join(text.split()), WIDTH - LABEL - 2, break_on_hyphens=False)
    for number, line in enumerate(lines[:_LONGEST]):
        cut = number == _LONGEST - 1 and len(lines) > _LONGEST
        yield f"{indent}{line[: WIDTH - LABEL - 6]} ..." if cut else f"{indent}{line}"


def _other(told: Record) -> str:
    why = f": {told['why_not']}" if told["why_not"] else ""
    places = [_place(line) for line in told["evidence"] if line["file"]]
    return f"{told['title']}{why}" + (f" ({places[0]})" if places else "")


def _place(line: Record) -> str:
    return f"{line['file']}:{line['line']}" if line["line"] else str(line["file"])


def _row(label: str, texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _wrapped(text, f"{label:<{LABEL}}", " " * LABEL)
        label = ""


def _wrapped(text: str, first: str, then: str) -> list[str]:
    """Paths and commands stay in one piece, so that they can be copied."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )
