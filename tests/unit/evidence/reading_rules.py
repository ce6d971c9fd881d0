"""A small rulebook for tests of reading, so that they do not change with ours; and a reader on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bireme.core.diagnosis.matching import Rulebook
from bireme.core.diagnosis.model import Cause, Rule
from bireme.evidence.logs import Found, Limits
from bireme.evidence.reading import Output, Reader
from bireme.evidence.searching import Searcher

CAUSES = [
    Cause(id=name, title=name, family="test", who="you", actions=("do",)) for name in ("memory", "python", "unknown")
]
OOM = Rule(id="oom", cause="memory", pattern=r"CUDA out of memory\. Tried (?P<wanted>\S+)", words=("cuda out of",))
RULES = [
    OOM,
    Rule(id="value", cause="python", pattern=r"ValueError: (?P<said>.*)", words=("valueerror",)),
    Rule(id="stands", cause="python", pattern=r"stands in (?P<where>\S+)", words=("stands in",), sources=("trace",)),
    Rule(id="xid", cause="memory", pattern=r"Xid \(PCI", words=("xid",), sources=("kernel",)),
]
BOOK = Rulebook(CAUSES, RULES)
ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried 2GiB"


def read(*paths: Path | str, book: Rulebook = BOOK, limits: Limits | None = None, **more: Any) -> Found:
    return read_outputs([Output(path=str(path)) for path in paths], book=book, limits=limits, **more)


def read_outputs(
    outputs: Sequence[Output], *, book: Rulebook = BOOK, limits: Limits | None = None, **more: Any
) -> Found:
    with Searcher(book) as searcher:
        return Reader(searcher, limits=limits or Limits(), **more).read(outputs)


def numbers(found: Found, rule: str = "oom") -> list[int]:
    return [clue.line.number for clue in found.clues if clue.rule.id == rule]
