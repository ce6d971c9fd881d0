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
"""... and a folder in which the script is looked for."""
_WRAP = "--wr"
"""How the option begins with which there is no script."""
_FLAGS = """
    consolidate-segments container-entrypoint container-entrypoint-log container-mount-home container-readonly
    container-remap-root container-writable contiguous exclusive external get-user-env help hold ignore-pbs nice
    no-container-entrypoint no-container-mount-home no-container-remap-root no-kill no-requeue oom-kill-step
    overcommit oversubscribe parsable propagate quiet reboot requeue resv-ports spread-job spread-segments stepmgr
    test-only usage use-min-nodes verbose version wait
"""
ALONE = frozenset(_FLAGS.split())
ALONE_LETTERS = "HOQVWhksv"
"""Options of sbatch that leave the next word alone (a tidy test compares them with the catalogue); all others take it
where no value is written to them."""
_LONGER = ("container",)
"""Options that take a value, and that are the beginning of some that do not."""


def may_be_read(command: str, argv: list[str], host_file: str, path: str, places: bytes) -> bool:
    """Whether these are the places of a file that the words name; b"" is standard input.

    `host_file` and `path`: the variables of which one names a file and the other folders with scripts.
    """
    if command not in READERS:
        return False
    script, values, folders = _named(argv)
    if not places:
        return script is None
    *_, name = wanted = [os.fsdecode(place) for place in places.split(b"\0")]
    if not name or name not in (script, *values, host_file):
        return False
    along = ("", *folders, *path.split(":")) if name == script else ("",)
    return set(wanted) <= {os.path.join(folder, name) for folder in along}


def _named(argv: list[str]) -> tuple[str | None, list[str], list[str]]:
    """(the script, what options name that are read, folders for the script); "" for a script that no file is.

    The first word that is neither an option nor an option's value is the script, and what follows it is the script's
    own business.
    """
    values: list[str] = []
    folders: list[str] = []
    script: str | None = None
    words = iter(argv)
    for word in words:
        if word == ":":  # the next component of a heterogeneous job
            continue
        if word == "--":
            return next(words, script), values, folders
        if not word.startswith("-") or word == "-":
            return word, values, folders
        option, value = _split(word)
        if value is None and not stands_alone(option):
            value = next(words, "")
        if option.startswith(_WRAP):
            script = ""
        elif value and option.startswith(_READ):
            values.append(value)
        elif value and option.startswith(_FOLDER):
            folders.append(value)
    return script, values, folders


def stands_alone(option: str) -> bool:
    """Whether the word after this option, which may be shortened, is not its value."""
    if not option.startswith("--"):
        return option[1:] in ALONE_LETTERS
    name = option[2:]
    return name in ALONE or (name not in _LONGER and any(each.startswith(name) for each in ALONE))


def _split(word: str) -> tuple[str, str | None]:
    """The option, and what is written to it; of letters in one word the last that may take a value."""
    if word.startswith("--"):
        option, equals, value = word.partition("=")
        return option, value if equals else None
    while len(word) > 2 and word[1] in ALONE_LETTERS:
        word = f"-{word[2:]}"
    return word[:2], word[2:] or None
