"""The source read as data: what the laws ban, how large things get, what every module must open with.

One test for each law, not for each law and module: all offenders are named at once, and a suite with several workers
collects and reports twelve tests here, not thousands.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bireme"
MAP = ROOT / "ARCHITECTURE.md"
MODULES = sorted(SOURCE.rglob("*.py"))
PURE = [path for path in MODULES if path.relative_to(SOURCE).parts[0] in ("core", "slurm")]

BANNED_NAMES = {"utils", "helpers", "common", "manager", "misc"}
BANNED_CALLS_IN_PURE = {"open", "print", "input", "exec", "eval"}
BANNED_MODULES_IN_PURE = {"os", "time", "random", "secrets", "socket", "subprocess", "logging", "threading", "asyncio"}
FILE_LINES = {"core": 600, "": 1000}
FUNCTION_LINES = 70
ROOM_MODULES = 20

LATE_IMPORTS = {
    "__init__.py": "`import bireme` costs nothing; the SDK is imported when a name of it is asked for",
    "agent/devices/gpus.py": "NVML: most machines and most starts have no use for it",
    "cli/explain.py": "rich: only for a terminal",
    "cli/interactive/sattach.py": "only a Slurm cluster needs it",
    "cli/interactive/srun.py": "only --multi-prog and --prolog need them, and srun starts often",
    "cli/main.py": "--version and --help answer with the start of Python alone",
    "cli/near.py": "only a Slurm cluster needs it",
    "cli/sacctmgr/__init__.py": "each of its commands pays for its own tables only",
    "cli/sacctmgr/session.py": "the same",
    "cli/sacctmgr/show.py": "the same",
    "cli/thin.py": "what the daemon answers must not pay for what runs near",
    "commands/sbatch.py": "help texts and logins: srun imports this module too",
    "daemon/__main__.py": "forking is cheap only while little is imported",
    "daemon/engines.py": "an engine's client library is an extra: only the engine that is chosen is imported",
    "gather/clusters/kubelet.py": "h2 is an extra: only who asks a kubelet needs it, and it takes 5 MiB",
    "own_certificate.py": "cryptography is an extra: only who makes a certificate needs it",
    "sim/report/files.py": "matplotlib is an extra, and takes longer to import than small simulations take",
}
"""The modules that import inside functions, and why; all others import at their top."""


@cache
def tree_of(path: Path) -> ast.Module:
    return _trees()[path]


@cache
def _trees() -> dict[Path, ast.Module]:
    """All of them, without a garbage collector that walks again through the millions of nodes that are kept: it would
    take nine tenths of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(), filename=str(path)) for path in MODULES}
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    """All of its tree, walked once for all laws."""
    return tuple(ast.walk(tree_of(path)))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Where which module is imported."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def test_every_module_says_what_it_is() -> None:
    assert not [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))], "they have no docstring"


def test_names_explain_themselves() -> None:
    assert not [name_of(path) for path in MODULES if path.stem in BANNED_NAMES]


def test_files_fit_in_a_head() -> None:
    def limit(path: Path) -> int:
        return FILE_LINES.get(path.relative_to(SOURCE).parts[0], FILE_LINES[""])

    lines = {path: len(path.read_text().splitlines()) for path in MODULES}
    long = {name_of(path): count for path, count in lines.items() if count > limit(path)}
    assert not long, f"more lines than a file may have: {long}"


def test_functions_are_small() -> None:
    def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        return (function.end_lineno or function.lineno) - function.lineno + 1

    long = [
        f"{name_of(path)}: {function.name} ({lines(function)} lines)"
        for path in MODULES
        for function in functions(path)
        if lines(function) > FUNCTION_LINES
    ]
    assert not long, long


def test_rooms_fit_in_a_head() -> None:
    rooms = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    crowded = {name_of(room): count for room, count in rooms.items() if count > ROOM_MODULES}
    assert not crowded, f"more than {ROOM_MODULES} modules: {crowded}"


def test_imports_stand_at_the_top() -> None:
    def is_late(path: Path) -> bool:
        inside = (node for function in functions(path) for node in ast.walk(function))
        return any(isinstance(node, ast.Import | ast.ImportFrom) for node in inside)

    assert {name_of(path) for path in MODULES if is_late(path)} == set(LATE_IMPORTS)


def test_the_pure_rooms_touch_nothing() -> None:
    """No IO, no clock, no random number, no log: `now` and `seed` are arguments."""
    assert len(PURE) > 100
    calls = [
        f"{name_of(path)}:{node.lineno} calls {node.func.id}"
        for path in PURE
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS_IN_PURE
    ]
    imported = [
        f"{name_of(path)}:{line} imports {name}"
        for path in PURE
        for line, name in imports(path)
        if name.split(".")[0] in BANNED_MODULES_IN_PURE
    ]
    assert not [*calls, *imported]


def test_the_core_imports_only_numpy_besides_the_standard_library() -> None:
    known = {*sys.stdlib_module_names, "bireme", "numpy"}
    others = [
        f"{name_of(path)}:{line} imports {name}"
        for path in PURE
        if path.is_relative_to(SOURCE / "core")
        for line, name in imports(path)
        if name.split(".")[0] not in known
    ]
    assert not others


def test_no_shell_is_built_from_strings() -> None:
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                assert not (isinstance(node.value, ast.Constant) and node.value.value), (
                    f"{name_of(path)} uses shell=True"
                )
            if isinstance(node, ast.Attribute) and node.attr == "system":
                assert not (isinstance(node.value, ast.Name) and node.value.id == "os"), f"{name_of(path)}: os.system"


def test_nothing_waits_in_a_way_that_loses_cancellations() -> None:
    """Until Python 3.12 `wait_for` returns a result that comes together with a cancellation, and the task lives on."""
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute) and node.attr == "wait_for" and isinstance(node.value, ast.Name):
                assert node.value.id != "asyncio", f"{name_of(path)}:{node.lineno}: use asyncio.timeout"


def test_every_path_that_the_map_names_is_there() -> None:
    """In ARCHITECTURE.md: what begins with a room's name, as a folder, a module or a module without its `.py`."""
    rooms = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__")
    words = re.findall(rf"(?<![\w/.-])((?:{'|'.join([*rooms, 'tests', 'docs'])})/[\w/.]*\w)", MAP.read_text())
    assert len(words) > 50
    places = {word: [base / f"{word}{end}" for base in (SOURCE, ROOT) for end in ("", ".py")] for word in words}
    missing = [word for word, tried in places.items() if not any(path.exists() for path in tried)]
    assert not missing, f"ARCHITECTURE.md names what is not there: {missing}"
