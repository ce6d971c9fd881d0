"""The engine is built from the settings; what cannot be had is told with the words that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.state.state import State
from bireme.daemon import engines
from bireme.daemon.configuration import load_cluster
from bireme.daemon.engines import Fitting, build_engine, check_same_engine, images_policy, left_for_a_start
from bireme.daemon.settings import Settings, SettingsError
from bireme.ports import Engine
from bireme.store.journal import SqliteStore


def fitting(folder: Path, settings: Settings) -> Fitting:
    return Fitting(settings, folder, load_cluster(settings), SqliteStore(str(folder / "journal.db")))


def test_the_setting_chooses_the_engine(tmp_path: Path) -> None:
    engine = build_engine(fitting(tmp_path, Settings(gpus="off")))
    assert (engine.name, engine.capabilities.queue) == ("embedded", None)


def test_what_an_engine_is_told_at_its_start_alone_is_said_until_then() -> None:
    built = Settings(gpus="off")
    assert left_for_a_start(built, Settings(gpus="auto", log_keep=9)) == ""
    said = left_for_a_start(built, Settings(images_insecure=("r:5000",), containers_mount_home="on"))
    assert said == (
        "containers.mount_home, images.insecure: changed, which counts from the next start (bireme down, bireme up)"
    )


def test_a_mirror_that_is_none_is_refused_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^images\.mirrors: 'r' is not REGISTRY=HOST:PORT"):
        images_policy(Settings(images_mirrors=("r",)), tmp_path)


def test_a_missing_library_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_it(_: Fitting) -> Engine:
        raise ModuleNotFoundError("No module named 'lightkube'", name="lightkube")

    monkeypatch.setitem(engines._KINDS, "kubernetes", needs_it)
    with pytest.raises(SettingsError, match=r"needs the Python package lightkube: pip install lightkube$"):
        build_engine(fitting(tmp_path, Settings(engine="kubernetes")))


def test_a_home_with_jobs_of_one_engine_is_not_given_to_another() -> None:
    state = State()
    check_same_engine(state, "embedded", "slurm")
    job = Job(7, JobSpec(owner=Owner(uid=1, gid=1, user="ann")), 0.0, Pending(0.0))
    state.jobs[7] = state.pending[7] = job
    check_same_engine(state, "", "slurm")
    check_same_engine(state, "slurm", "slurm")
    with pytest.raises(SettingsError, match="1 jobs of the embedded engine have not ended here: end them first"):
        check_same_engine(state, "embedded", "slurm")
