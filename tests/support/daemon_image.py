"""An image with what deploy/kubernetes/Containerfile puts into it, made without a registry: no base image is at hand.

The same parts lie in it: an interpreter, Bireme with what its `kubernetes` extra needs, and the bundle in /opt/bireme,
whose interpreter brings its own loader and libraries. The rest is busybox, where the Containerfile has Debian.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.kubernetes_cluster import images
from tests.kubernetes_cluster.cluster import Kubernetes
from tests.support.kubernetes import add_busybox

import bireme

DAEMON = "bireme.test/daemon:1"
_PACKAGES = "/opt/daemon"
_PROGRAM = "#!/opt/bireme/bin/python3\nimport sys\nfrom bireme.cli.main import main\nsys.exit(main())\n"


def load_daemon(kubernetes: Kubernetes, bundle: Path) -> None:
    """Makes it of this checkout, beside the bundle that was made already, and gives it to every node."""
    root = kubernetes.slot.folder / "daemon"
    packages = root / _PACKAGES.lstrip("/")
    packages.mkdir(parents=True)
    shutil.copytree(os.path.dirname(bireme.__file__), packages / "bireme", ignore=shutil.ignore_patterns("__pycache__"))
    for name in _needed("bireme", "kubernetes"):
        _copy(importlib.metadata.distribution(name), packages)
    shutil.copytree(bundle, root / "opt" / "bireme", symlinks=True)
    _copy_libraries(packages, root / "opt" / "bireme" / "lib")
    program = root / "usr" / "local" / "bin" / "bireme"
    program.parent.mkdir(parents=True)
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    add_busybox(root)
    (root / "tmp").mkdir(mode=0o1777)
    archive = images.from_files(
        kubernetes.slot.folder / "daemon.tar", DAEMON, [(root, "/")], ["bireme"], {"PYTHONPATH": _PACKAGES}
    )
    for node in kubernetes.nodes:
        node.load(archive)


def _needed(name: str, extra: str = "") -> set[str]:
    """What this package requires here, and what those require."""
    found: set[str] = set()
    for line in importlib.metadata.requires(name) or ():
        words, _, marker = line.partition(";")
        wanted = re.match(r"[A-Za-z0-9._-]+", words)
        if wanted is None or ("extra" in marker and f'extra == "{extra}"' not in marker.replace("'", '"')):
            continue
        try:
            importlib.metadata.distribution(wanted.group())
        except importlib.metadata.PackageNotFoundError:  # for another system or Python
            continue
        found |= {wanted.group(), *_needed(wanted.group())}
    return found


def _copy(package: importlib.metadata.Distribution, target: Path) -> None:
    for file in package.files or ():
        if ".." in file.parts or file.suffix == ".pyc" or "tests" in file.parts:
            continue
        there = target / file
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.fspath(package.locate_file(file)), there)


def _copy_libraries(packages: Path, target: Path) -> None:
    """The system's shared libraries that compiled packages name and the bundle has not."""
    for module in packages.rglob("*.so*"):
        listed = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=False).stdout
        for name, path in re.findall(r"(\S+) => (/\S+) \(0x", listed):
            if not path.startswith(str(packages)) and not (target / name).exists():
                shutil.copy(path, target / name)
