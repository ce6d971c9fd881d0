"""What processes import is what their start costs, and memory on every machine of a cluster: what they must not import
is named here."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"numpy", "sqlite3", "rich", "starlette", "uvicorn", "http", "email", "bireme.store", "bireme.core.state"}
"""numpy alone is 11 MiB; the others follow when something of the daemon's is imported by mistake."""
NOT_AT_START = {"fastapi", "pydantic", "rich", "matplotlib", "cryptography", "lightkube", "uvloop", "bireme.sim"}
"""What `bireme up` would wait for and most daemons never need. FastAPI and what it brings took as long as the core."""


def loaded_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_gatherer_imports_nothing_heavy() -> None:
    loaded = loaded_by("bireme.gather.__main__")
    assert "bireme.gather.gpus.nvidia" in loaded
    assert loaded & HEAVY == set()


def test_a_daemon_imports_nothing_that_most_never_need() -> None:
    loaded = loaded_by("bireme.daemon.app")
    assert "bireme.api.app" in loaded
    assert loaded & NOT_AT_START == set()
