"""`srun`, `scontrol` and the others inside a box, whatever C library or Python the image has, or has not.

The commands are Python programs of the machine's. Its interpreter, the libraries that it is linked with and the
packages are shown in the box below `/run/bireme`, read-only, and a script of two lines for each command starts the
machine's own loader with them: nothing of the image is used but `/bin/sh`, nothing of the image is covered, and no
variable is set that a task would inherit. Called while a box is built.
Invariant: where the interpreter cannot be carried like this (its loader lies outside of /usr), there are no commands,
and the box is as good without.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

import bireme
from bireme.agent.boxes.blueprint import Part

FOLDER = "/run/bireme"
BIN = f"{FOLDER}/bin"
_SYSTEM, _BASE = f"{FOLDER}/usr", f"{FOLDER}/python"
_INTERPRETER_SEGMENT = 3
_LIBRARIES = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
_SCRIPT = """\
#!/bin/sh
exec {loader} --library-path {libraries} {python} -IS -c '{program}' "$@"
"""
_PROGRAM = (
    'import sys; sys.path[:0] = "{paths}".split(":"); sys.argv[0] = "{name}"; '
    "from bireme.cli.{module} import {entry}; {call}"
)


@dataclass(frozen=True, slots=True)
class Commands:
    parts: tuple[Part, ...]
    scripts: dict[str, str]
    """By path in the box."""


NONE = Commands((), {})


def commands_of(home: str) -> Commands:
    """Those of the cluster that lives in this folder. Looks at the machine as it is outside."""
    python = os.path.realpath(sys.executable)
    loader = os.path.realpath(loader_of(python))
    base = os.path.realpath(sys.base_prefix)
    if not loader.startswith("/usr/") or not os.path.isdir(f"{home}/bin"):
        return NONE
    in_system = base == "/usr" or base.startswith("/usr/")
    base_inside = _in_system(base) if in_system else _BASE
    packages = sorted({os.path.dirname(os.path.dirname(module.__file__ or "")) for module in (bireme, msgspec)})
    inside = {folder: f"{FOLDER}/packages-{number}" for number, folder in enumerate(packages)}
    parts = [Part("/usr", _SYSTEM, read_only=True), *([] if in_system else [Part(base, _BASE, read_only=True)])]
    parts += [Part(folder, place, read_only=True) for folder, place in inside.items()]
    start = {
        "loader": _in_system(loader),
        "libraries": ":".join(f"{_SYSTEM}/{name}" for name in _LIBRARIES) + f":{base_inside}/lib",
        "python": f"{base_inside}/{os.path.relpath(python, base)}",
    }
    scripts = {
        f"{BIN}/{name}": _SCRIPT.format(**start, program=_program(name, ":".join(inside.values())))
        for name in os.listdir(f"{home}/bin")
        if name.isalnum()
    }
    return Commands(tuple(parts), scripts)


def _program(name: str, paths: str) -> str:
    if name == "bireme":
        return _PROGRAM.format(paths=paths, name=name, module="main", entry="main", call="sys.exit(main())")
    call = f'run_and_exit("{name}")'
    return _PROGRAM.format(paths=paths, name=name, module="thin", entry="run_and_exit", call=call)


def _in_system(path: str) -> str:
    return _SYSTEM + path.removeprefix("/usr")


def loader_of(program: str) -> str:
    """The loader that an ELF file names; empty where it names none."""
    with open(program, "rb") as file:
        head = file.read(4096)
        if head[:5] != b"\x7fELF\x02":
            return ""
        table, size, count = (*struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54))
        for kind, offset, length in _segments(head, table, size, count):
            if kind == _INTERPRETER_SEGMENT:
                file.seek(offset)
                return os.fsdecode(file.read(length).rstrip(b"\0"))
    return ""


def _segments(head: bytes, table: int, size: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(kind, offset in the file, length there) of those that are described in the first page."""
    for number in range(min(count, (len(head) - table) // size)):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, table + number * size)
        yield kind, offset, length
