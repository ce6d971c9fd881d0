"""What a gatherer imports is memory on every machine of a cluster: what it must not is named here."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"numpy", "sqlite3", "rich", "fastapi", "uvicorn", "http", "email", "bireme.store", "bireme.core.state"}
"""numpy alone is 11 MiB; the others follow when something of the daemon's is imported by mistake."""


def test_a_gatherer_imports_nothing_heavy() -> None:
    code = "import bireme.gather.__main__, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "bireme.gather.gpus.nvidia" in loaded
    assert loaded & HEAVY == set()
