"""Scripts in the agent's keeping: shared, read-only, kept while used, not kept for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.agent.script_pool import ScriptPool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "scripts"


def scripts_in(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.glob("*/slurm_script")}


def test_equal_scripts_of_one_user_are_one_file(folder: Path) -> None:
    pool = ScriptPool(str(folder))
    first = pool.take(os.geteuid(), "#!/bin/sh\n")
    assert pool.take(os.geteuid(), "#!/bin/sh\n") == first
    assert pool.take(os.geteuid(), "#!/bin/bash\n") != first
    assert Path(first).stat().st_mode & 0o777 == 0o500


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_equal_scripts_of_two_users_are_two_files(folder: Path) -> None:
    pool = ScriptPool(str(folder))
    paths = [pool.take(uid, "#!/bin/sh\n") for uid in (0, 1234)]
    assert [Path(path).stat().st_uid for path in paths] == [0, 1234]


def test_text_that_is_not_utf8_comes_out_as_it_went_in(folder: Path) -> None:
    path = ScriptPool(str(folder)).take(os.geteuid(), b"#!/bin/sh\necho \xff\n".decode("utf-8", "surrogateescape"))
    assert Path(path).read_bytes() == b"#!/bin/sh\necho \xff\n"


def test_scripts_in_use_stay_and_idle_ones_are_removed_oldest_first(folder: Path) -> None:
    pool = ScriptPool(str(folder))
    pool.take(os.geteuid(), "used")
    for number in range(200):
        pool.take(os.geteuid(), f"idle {number}")
        pool.give_back(os.geteuid(), f"idle {number}")
    left = scripts_in(folder)
    assert {"used", "idle 199"} <= left
    assert "idle 0" not in left
    assert len(left) < 100


def test_what_an_earlier_agent_left_is_removed(folder: Path) -> None:
    ScriptPool(str(folder)).take(os.geteuid(), "#!/bin/sh\n")
    ScriptPool(str(folder))
    assert scripts_in(folder) == set()


def test_a_script_that_could_not_be_written_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ScriptPool(str(folder))

    def no_space(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(OSError, match="No space"):
        pool.take(os.geteuid(), "#!/bin/sh\n")
    monkeypatch.undo()
    assert list(folder.iterdir()) == []
    assert Path(pool.take(os.geteuid(), "#!/bin/sh\n")).read_text() == "#!/bin/sh\n"
