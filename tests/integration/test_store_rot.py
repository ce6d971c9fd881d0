"""Rot in every file of a home: a bit flipped or a file cut at every 4 KiB, a file removed, older, or another home's.

Each is noticed (named at the start or by `verify`) or harmless: the state, the history and the scripts are what they
were. One home is made by a real cluster and left as a killed daemon leaves it; its copies are damaged and opened here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.core.model.events import JobReleased
from bireme.daemon import inspection
from bireme.daemon.files import changed_settings
from bireme.daemon.paths import Paths
from bireme.daemon.settings import SettingsError, load
from bireme.ports import HistoryQuery, StoreError
from bireme.runtime import kernel
from bireme.store.inspection import inspect
from bireme.store.journal import SqliteStore
from bireme.store.snapshots import encode_state

STEP = 4096
WRITTEN_ANEW = ("log/", "bin/", "run/agents.json", "run/daemon.pid", "run/daemon.lock", "journal.db-shm")
"""Every start writes these itself, or only appends to them."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs of every kind, history, accounts, a reservation, snapshots; then a daemon that was killed."""
    cluster = Cluster(virtual_nodes(2, cpus=8))
    place = tmp_path_factory.mktemp("rot")
    with cluster.running():
        (cluster.home / "bireme.toml").write_text('[log]\nlevel = "info"\n')
        lived_in(cluster)
        cluster.down()  # a snapshot
        cluster.up_again()
        older = place / "older"
        copied(cluster.home, older)
        cluster.wait(cluster.sbatch("-o", "/dev/null", "--wrap", "true"))
        cluster.sbatch("-H", "-o", "/dev/null", "--array=0-9", "--wrap", "true")
        cluster.kill_daemon()
        copied(cluster.home, place / "home")
    return place / "home"


def lived_in(cluster: Cluster) -> None:
    cluster.run("sacctmgr", "-i", "add", "account", "physics", "Fairshare=10")
    cluster.run("sacctmgr", "-i", "add", "qos", "urgent", "Priority=100")
    cluster.run("scontrol", "create", "reservation", "ReservationName=later", "StartTime=now+1hour", "Duration=60",
                "Users=root", "Nodes=n1")  # fmt: skip
    ends = [cluster.sbatch("-o", "/dev/null", "--wrap", f"srun true; exit {n % 3}") for n in range(4)]
    ends.append(cluster.sbatch("-o", "/dev/null", "-N2", "--wrap", "true", ":", "--ntasks=1"))
    for job in ends:
        cluster.wait(job)
    cluster.sbatch("-H", "-o", "/dev/null", "--array=0-99%3", "--wrap", "echo " + "x" * 9000)
    first = cluster.sbatch("-o", "/dev/null", "--wrap", "sleep 1000")
    cluster.sbatch("-o", "/dev/null", f"--dependency=afterok:{first}", "--comment", "y" * 1000, "--wrap", "true")


def copied(source: Path, target: Path) -> None:
    """All that outlives a start."""
    for name in files_of(source):
        if not name.startswith(WRITTEN_ANEW):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, target / name)


def files_of(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def content(home: Path) -> Any:
    """All that a daemon would know, as bytes; raises what a start raises."""
    settings = load(str(home), environ={})
    store = SqliteStore(str(home / "journal.db"))
    try:
        state = kernel.load(store)
        specs = [job.spec for job in state.jobs.values()]
        blobs = sorted({blob for spec in specs for blob in (spec.script, spec.environment) if blob})
        stories = [store.story(job_id) for job_id in state.jobs]
        history = store.finished(HistoryQuery(with_steps=True, duplicates=True))
        return settings, encode_state(state), history, [store.get(blob) for blob in blobs], stories
    finally:
        store.close()


def noticed(home: Path) -> bool:
    """Whether a look or a start names something."""
    paths = Paths(str(home))
    looked = [*inspect(paths.journal).findings, *inspection.inspect(paths)]
    return bool(looked) or changed_settings(paths)


class Rot:
    """Damages copies of one home, one after the other, and collects what was neither noticed nor harmless."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self._copy = folder / "copy"
        self.tried, self.told, self.silent = 0, 0, list[str]()
        shutil.copytree(home, self._copy)
        self._whole = content(self._copy)

    def try_out(self, what: str, damage: Callable[[Path], None]) -> None:
        shutil.rmtree(self._copy)
        shutil.copytree(self.home, self._copy)
        damage(self._copy)
        self.tried += 1
        if noticed(self._copy):
            self.told += 1
            return
        try:
            same = content(self._copy) == self._whole
        except (StoreError, SettingsError):
            self.told += 1
            return
        if not same:
            self.silent.append(what)


@pytest.fixture
def rot(home: Path, tmp_path: Path) -> Rot:
    return Rot(home, tmp_path)


def swap_database(source: Path, home: Path) -> None:
    os.unlink(home / "journal.db-wal")
    shutil.copy(source / "journal.db", home / "journal.db")


def flip(name: str, at: int) -> Callable[[Path], None]:
    def damage(home: Path) -> None:
        with open(home / name, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << at % 8)]))

    return damage


def places(size: int) -> list[int]:
    """Every 4 KiB, a little behind each (where rows are), a page's header, the file's and its end."""
    every = range(0, size, STEP)
    around = [at + more for at in every for more in (0, 1_111, STEP - 40)]
    return sorted({at for at in (*around, 3, 16, 18, 24, 28, 40, 60, 92, size // 2, size - 1) if 0 <= at < size})


def test_a_sound_home_is_sound(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "copy")
    assert not noticed(tmp_path / "copy")
    settings, state, history, blobs, stories = content(tmp_path / "copy")
    assert settings.log_level == "info"
    assert b"physics" in state
    assert b"later" in state
    assert len(history) >= 5
    assert blobs
    assert all(stories)


def test_a_flipped_bit_is_noticed_or_harmless(rot: Rot) -> None:
    for name in files_of(rot.home):
        for at in places(os.path.getsize(rot.home / name)):
            rot.try_out(f"{name} at {at}", flip(name, at))
    assert rot.silent == []
    assert rot.told > rot.tried // 3, "most pages hold something"


def test_a_cut_file_is_noticed_or_harmless(rot: Rot) -> None:
    for name in files_of(rot.home):
        size = os.path.getsize(rot.home / name)
        for length in sorted({*range(0, size, STEP), size - 1, size // 2, 1, 100} & set(range(size))):
            rot.try_out(f"{name} cut to {length}", lambda home, n=name, to=length: os.truncate(home / n, to))
    assert rot.silent == []


def test_a_file_that_is_gone_or_old_or_of_another_home(rot: Rot, tmp_path: Path) -> None:
    older = rot.home.parent / "older"
    other = SqliteStore(str(tmp_path / "journal.db"))
    other.append([(1.0, "x", JobReleased(n)) for n in range(1, 500)])
    other.close()
    for name in ("journal.db", "journal.mark"):
        rot.try_out(f"{name} of another home", lambda home, n=name: shutil.copy(tmp_path / n, home / n))
    rot.try_out("journal.db of another home, alone", lambda home: swap_database(tmp_path, home))
    for name in files_of(rot.home):
        rot.try_out(f"{name} removed", lambda home, n=name: os.unlink(home / n))
        if (older / name).exists():
            rot.try_out(f"{name} of before", lambda home, n=name: shutil.copy(older / n, home / n))
    assert rot.silent == []
