"""TypeScript's compiler, for checking alone: it reads the types that our scripts say in JSDoc, and writes nothing.

`python -m tests.prepare` fetches it from npm into the user's cache; tests only look. Nothing of it is shipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

VERSION = "5.9.3"
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bireme-tests" / f"typescript-{VERSION}"


def compiler() -> str | None:
    found = FOLDER / "node_modules" / ".bin" / "tsc"
    return str(found) if found.exists() and shutil.which("node") else None


def fetch() -> str:
    """Why it could not be had, in a few words."""
    if compiler() is not None:
        return ""
    if not shutil.which("npm"):
        return "there is no npm"
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [
        "npm",
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(FOLDER),
        f"typescript@{VERSION}",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 and compiler() else "npm could not install it"
