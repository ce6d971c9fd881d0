"""Batch scripts: whether a file is one, and what its `#SBATCH` lines say.

Pure: bytes in, words out. `read_script` checks what Slurm checks, in its words; `directives` splits the `#SBATCH`
lines (and `#PBS`, `#BSUB` where wanted) into words, component by component. What the words mean is `options`' job.
Invariant: directives end at the first line that is neither blank nor a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bireme.slurm.options.errors import fatal, refused

MAX_SCRIPT_BYTES = 4 * 1024 * 1024
"""Slurm's default max_script_size."""
WRAPPER_NAME = "wrap"

_SBATCH = "#SBATCH"
_SPACES = " \t\v\f\r"
_SEPARATORS = {
    "hetjob": "",
    "packjob": 'Warning: the "packjob" component separator is being deprecated. Please, use "hetjob" instead.',
}


@dataclass(frozen=True, slots=True)
class Directive:
    """The words of one `#SBATCH` line, and where it stands."""

    line: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignDirective:
    """A `#PBS` or `#BSUB` line, unread."""

    line: int
    dialect: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Directives:
    """What a script asks for: one tuple of lines for each component of a heterogeneous job (usually one)."""

    components: tuple[tuple[Directive, ...], ...]
    foreign: tuple[ForeignDirective, ...] = ()
    warnings: tuple[str, ...] = ()


def read_script(data: bytes, max_bytes: int = MAX_SCRIPT_BYTES) -> str:
    """The script's text, or the error sbatch gives. Bytes that are not UTF-8 come through unchanged."""
    if not data:
        raise refused("Batch script is empty!")
    if not data.strip(b" \t\n\v\f\r"):
        raise refused("Batch script contains only whitespace!")
    if not data.startswith(b"#!"):
        raise refused(
            "This does not look like a batch script.  The first",
            "line must start with #! followed by the path to an interpreter.",
            "For instance: #!/bin/sh",
        )
    if b"\0" in data:
        raise refused("The Slurm controller does not allow scripts that", "contain a NULL character '\\0'.")
    if b"\r\n" in data:
        raise refused("Batch script contains DOS line breaks (\\r\\n)", "instead of expected UNIX line breaks (\\n).")
    if len(data) > max_bytes:
        raise refused("Batch job submission failed: Pathname of a file, directory or other parameter too long")
    return data.decode("utf-8", "surrogateescape")


def wrap(command_line: str) -> str:
    """The script that `sbatch --wrap` submits."""
    return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command_line}\n"


def directives(text: str, file_name: str) -> Directives:
    """The directives of a script. `file_name` is for messages."""
    components: list[list[Directive]] = [[]]
    foreign: list[ForeignDirective] = []
    warnings: list[str] = []
    for number, line in leading_comments(text):
        dialect = next((mark for mark in ("#PBS", "#BSUB") if line.startswith(mark)), None)
        if dialect is not None:
            words = tuple(split_words(line[len(dialect) :], file_name, number))
            foreign.append(ForeignDirective(number, dialect[1:], words))
        if not line.startswith(_SBATCH):
            continue
        words, separator = _until_separator(split_words(line[len(_SBATCH) :], file_name, number))
        if words:
            components[-1].append(Directive(number, words))
        if separator is not None:
            components.append([])
            warnings.extend(filter(None, [_SEPARATORS[separator]]))
    return Directives(tuple(tuple(component) for component in components), tuple(foreign), tuple(warnings))


def leading_comments(text: str) -> Iterator[tuple[int, str]]:
    """The comment lines before the first command, with their numbers."""
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.strip(_SPACES)
        if bare and not bare.startswith("#"):
            return
        if bare:
            yield number, line


def _until_separator(words: Iterator[str]) -> tuple[tuple[str, ...], str | None]:
    """The words before `hetjob` or `packjob`, and which of the two it was. What follows it is not read."""
    kept: list[str] = []
    for word in words:
        if word.lower() in _SEPARATORS:
            return tuple(kept), word.lower()
        kept.append(word)
    return tuple(kept), None


def split_words(text: str, file_name: str, line: int) -> Iterator[str]:
    """The words of a directive: quotes group, a backslash takes the next character as it is, `#` starts a comment.

    Slurm's own rules, which differ from a shell's: a space outside quotes ends the word even after a backslash,
    and a `#` outside quotes ends the line even inside a word.
    """
    text = text.lstrip(_SPACES)
    position = 0
    while True:
        start = position
        while position < len(text) and text[position] in _SPACES:
            position += 1
        if position == len(text) or text[position] == "#":
            return
        if text[position] == ":":
            raise fatal(f"{file_name}: line {line}: Unexpected `:` in [{text[start:]}]")
        word, position, open_quote = _read_word(text, position)
        if open_quote:
            raise fatal(f"{file_name}: line {line}: Unmatched `{open_quote}` in [{text[start:]}]")
        yield word


def _read_word(text: str, position: int) -> tuple[str, int, str]:
    """The word at `position`, where it ends, and the quote that was left open, if any."""
    quote = ""
    word: list[str] = []
    while position < len(text):
        char = text[position]
        if not quote and (char in _SPACES or char == "#"):
            break
        if char == "\\":
            position += 1
            if position < len(text) and (quote or text[position] not in _SPACES):
                word.append(text[position])
                position += 1
        elif char == quote:
            quote = ""
            position += 1
        elif not quote and char in "\"'":
            quote = char
            position += 1
        else:
            word.append(char)
            position += 1
    return "".join(word), position, quote
