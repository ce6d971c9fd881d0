"""The files that a user's command line names: the only ones that a thin command reads for the daemon.

`thin` asks before it reads. A daemon says which files it wants, and whoever runs the daemon is not always one whom the
user would let read all that is theirs. So what may be read is made here from the user's own words, not from what the
daemon says; where that is doubtful the command runs near, and reads for itself. Nothing is imported that costs time.

Invariant: a file is read for the daemon only if a word names it that the command would read as a file.
"""

from __future__ import annotations

import os

READERS = frozenset({"sbatch"})
"""Commands that read files for which the daemon may ask."""
_READ = ("--nodef", "--nodel", "--export-f", "-F", "-w")
"""How options begin whose value may be a file that is read."""
_FOLDER = ("--ch", "-D")
"""... a folder in which the script is looked for ..."""
_NOT_READ = ("--out", "--err", "--inp", "-o", "-e", "-i")
"""... and a file that only the job reads or writes."""


def may_be_read(command: str, argv: list[str], host_file: str, path: str, places: bytes) -> bool:
    """Whether these are the places of a file that the words name; b"" is standard input.

    `host_file` and `path`: the variables of which one names a file and the other folders with scripts.
    """
    if command not in READERS:
        return False
    words, values, folders = _named(argv)
    if not places:
        return not any(os.path.exists(word) for word in words)
    *_, name = wanted = [os.fsdecode(place) for place in places.split(b"\0")]
    if not name or name not in (*words, *values, host_file):
        return False
    along = ("", *folders, *path.split(":")) if name in words else ("",)
    return set(wanted) <= {os.path.join(folder, name) for folder in along}


def _named(argv: list[str]) -> tuple[list[str], list[str], list[str]]:
    """(what may be the script or an option's value, what options have written to them, folders for the script).

    Which options take a value is not known here, so the word after an option may be either. A word after a word is the
    script, and what follows that is the script's own business.
    """
    words: list[str] = []
    values: list[str] = []
    folders: list[str] = []
    option = ""
    for word in argv:
        if word == ":":  # the next component of a heterogeneous job
            option = ""
        elif word.startswith("-"):
            option, value = _split(word)
            if value and option.startswith(_READ):
                values.append(value)
            elif value and option.startswith(_FOLDER):
                folders.append(value)
            if value and option.startswith(("--", *_READ, *_FOLDER, *_NOT_READ)):
                option = ""  # it has its value
        elif option.startswith(_NOT_READ):
            option = ""
        else:
            words.append(word)
            if option.startswith(_FOLDER):
                folders.append(word)
            if not option:
                break
            option = ""
    return words, values, folders


def _split(word: str) -> tuple[str, str]:
    """The option, and what is written to it."""
    if word.startswith("--"):
        option, _, value = word.partition("=")
        return option, value
    return word[:2], word[2:]
