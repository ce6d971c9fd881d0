"""What a diagnosis is made of: lines of evidence, the rules that know them, the causes that they tell, the answer.

Everything that is known of a job's end becomes a `Line`: a line of its output, of the kernel's log, an exit code, an
event of the journal, a figure that was measured. Where it is from is its `source`, which no text can claim for itself.
A rule that knows a line makes it a `Clue`; `judging` weighs clues and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Source = Literal["output", "kernel", "record", "device", "series", "trace", "file"]
"""What the job's programs wrote; what the kernel wrote; what the scheduler knows (states, exit codes, events of nodes
and pods); what a GPU's driver told; what was measured; what a flight recorder or a stack dump holds; a file of which
nobody knows who wrote it (a log that somebody hands in, often with lines of the kernel in it)."""

Role = Literal["cause", "general", "exception", "echo", "symptom", "progress", "finish"]
"""How much a line says of why: it names a cause; it names one that is often only the outermost layer of another; it is
an exception, of which this rule knows no more than that (and is silent where another knows the line); it is what others
see when something else went wrong (a collective that timed out, a
connection that was reset); it says that it is over and no more (an exit code). The last two are signs of health: the
program went on; it came to its end. What stands before them it has outlived."""

SIGNS: tuple[Role, ...] = ("progress", "finish")
"""Roles of lines that tell of no cause."""

Who = Literal["you", "platform", "vendor"]
"""Who can do something about it: whose job it is, who runs the cluster, who made the hardware."""

Confidence = Literal["high", "medium", "low", "none"]

COMPLETED = "completed"
UNKNOWN = "unknown"
"""The cause where nothing explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One of the published list."""

    id: str
    title: str
    family: str
    who: Who
    actions: tuple[str, ...]
    """What to do, most useful first; a rule may know better."""
    leads_to: tuple[str, ...] = ()
    """Causes whose lines are also written when this one is the true one."""
    is_hardware: bool = False
    """Another machine would not have it: worth keeping a part out, and a try elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one kind of line means."""

    id: str
    cause: str = ""
    """Empty for signs of health alone."""
    pattern: str
    """A regular expression, searched in a line without colours."""
    words: tuple[str, ...]
    """In lower case; every line that the pattern knows has one of them. A line is only searched if it does."""
    role: Role = "cause"
    sources: tuple[Source, ...] = ("output",)
    sure: Confidence = "high"
    """The most that such a line can make of a diagnosis."""
    meaning: str = ""
    """A sentence, which may use the pattern's named groups: `{path}`."""
    actions: tuple[str, ...] = ()
    """Instead of the cause's."""
    examples: tuple[str, ...] = ()
    counterexamples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of evidence, and where and when it was written, as far as that is known."""

    text: str
    source: Source = "output"
    order: int = 0
    """Its place among the lines of its file: what was first where no time is known."""
    last: int = 0
    """The place of the last line of its file; 0: not known."""
    file: str = ""
    number: int = 0
    """Counted from 1; 0: not known, or not in a file."""
    at: float | None = None
    node: str = ""
    rank: int | None = None
    device: str = ""
    pid: int = 0
    others: int = 0
    """Other jobs that met the same on the same hardware of late."""


@dataclass(frozen=True, slots=True)
class Clue:
    """A line that a rule knows."""

    rule: Rule
    line: Line
    named: Mapping[str, str] = field(default_factory=dict)
    """The pattern's named groups."""
    sure: Confidence = "high"
    """The most that it can make of a diagnosis: the rule's, or less where nobody vouches for the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A cause that some clues tell, with the clue that tells it best."""

    cause: Cause
    clues: tuple[Clue, ...]
    """The one that counts most is first."""
    why_not: str = ""
    """Why it is not the answer; empty: it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer."""

    cause: Cause
    summary: str
    confidence: Confidence
    why_so_sure: str
    """What the confidence is built on, in a sentence."""
    evidence: tuple[Line, ...]
    actions: tuple[str, ...]
    others: tuple[Candidate, ...] = ()
    """The runners-up."""
    ruled_out: tuple[str, ...] = ()
    """What was seen and is not why, with the reason, a sentence each."""
    collect: tuple[str, ...] = ()
    """What to collect the next time, where this is not sure."""
