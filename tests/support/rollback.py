"""A home's journal as it was some time ago, put back in its place: what came after it is lost.

Tests of losses use it, on this machine's own agents and on kubelets.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path

from tests.support.cluster import Cluster


def journal(cluster: Cluster) -> Path:
    return cluster.home / "journal.db"


def mark(cluster: Cluster) -> Path:
    return cluster.home / "journal.mark"


def keep(cluster: Cluster) -> Path:
    """The journal as it is now, for `put_back`: what comes after it will be lost."""
    copy = cluster.folder / f"older-{time.monotonic_ns()}.db"
    with sqlite3.connect(journal(cluster)) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return copy


def put_back(cluster: Cluster, copy: Path) -> None:
    """An older copy in the journal's place, without its write-ahead file."""
    _drop_write_ahead(cluster)
    shutil.copy(copy, journal(cluster))


def keep_home(cluster: Cluster) -> dict[Path, bytes]:
    """The journal and its mark as they are now: a backup of everything that the daemon has."""
    return {journal(cluster): keep(cluster).read_bytes(), mark(cluster): mark(cluster).read_bytes()}


def put_home_back(cluster: Cluster, kept: dict[Path, bytes]) -> None:
    """As `put_back`, with a mark that agrees: only others can know of what came later."""
    _drop_write_ahead(cluster)
    for path, content in kept.items():
        path.write_bytes(content)


def _drop_write_ahead(cluster: Cluster) -> None:
    for beside in ("-wal", "-shm"):
        Path(f"{journal(cluster)}{beside}").unlink(missing_ok=True)
