"""Servers of Debian's that are only unpacked, into the user's cache: the packages, installed, would start services.

`python -m tests.prepare` fetches them; tests only look.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def program(package: str, name: str) -> str | None:
    """A program of a package: the one that `fetch` unpacked, else the system's."""
    own = _folder(package) / "usr" / "bin" / name
    return str(own) if os.access(own, os.X_OK) else shutil.which(name)


def fetch(package: str, *programs: str) -> str:
    """Unpacks the package where its programs are not; why it could not, in a few words."""
    if all(program(package, name) for name in programs):
        return ""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "this is no Debian"
    folder = _folder(package)
    folder.mkdir(parents=True, exist_ok=True)
    quiet: Mapping[str, Any] = {"check": False, "capture_output": True, "cwd": folder}
    subprocess.run(["apt-get", "download", "-q", package], **quiet)
    files = sorted(folder.glob(f"{package}_*.deb"))
    if not files or subprocess.run(["dpkg-deb", "-x", str(files[-1]), str(folder)], **quiet).returncode:
        return f"Debian's package {package} could not be fetched"
    for file in files:
        file.unlink()
    return ""


def _folder(package: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "bireme" / f"{package}-for-tests"
