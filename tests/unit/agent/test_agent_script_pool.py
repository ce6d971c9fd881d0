"""Scripts in the agent's keeping: shared, read-only, kept while used, not kept for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.agent.starting.script_pool import ScriptPool


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


def no_space(_fd: int, _data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_a_script_that_could_not_be_written_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ScriptPool(str(folder))

    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(OSError, match="No space"):
        pool.take(os.geteuid(), "#!/bin/sh\n")
    monkeypatch.undo()
    assert list(folder.iterdir()) == []
    assert Path(pool.take(os.geteuid(), "#!/bin/sh\n")).read_text() == "#!/bin/sh\n"


CLOCK_REALTIME_COARSE = 5
"""Of linux/time.h; Python has no name for it."""


def let_the_clock_tick(path: str) -> None:
    """Times of files are those of the last tick: within it a change is not seen."""
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= os.stat(path).st_ctime_ns:
        time.sleep(0.001)


def rewritten(path: str) -> None:
    """As a job of the owner's can: the same length, and the mode put back."""
    file = Path(path)
    file.chmod(0o700)
    file.write_text("#!/bin/ev\n")
    file.chmod(0o500)


def replaced(path: str) -> None:
    Path(path).rename(f"{path}.old")
    Path(path).write_text("#!/bin/ev\n")
    Path(path).chmod(0o500)


def linked(path: str) -> None:
    os.rename(path, f"{path}.old")
    os.symlink(f"{path}.old", path)


@pytest.mark.parametrize("touched", [rewritten, replaced, linked, os.unlink])
def test_a_file_that_was_touched_is_not_given_to_a_later_start(folder: Path, touched: Callable[[str], None]) -> None:
    pool = ScriptPool(str(folder))
    uid, text = os.geteuid(), "#!/bin/sh\n"
    first = pool.take(uid, text)
    let_the_clock_tick(first)
    touched(first)
    second = pool.take(uid, text)
    assert second != first
    assert Path(second).read_text() == text
    assert pool.take(uid, text) == second
    assert Path(first).parent.exists(), "the first start may still read its own"
    for _ in range(3):
        pool.give_back(uid, text)
    assert not Path(first).parent.exists()
    assert pool.take(uid, text) == second


def test_files_that_were_touched_do_not_fill_the_disk(folder: Path) -> None:
    pool = ScriptPool(str(folder))
    for _ in range(100):
        os.unlink(pool.take(os.geteuid(), "#!/bin/sh\n"))
    assert len(list(folder.iterdir())) < 20


def test_a_script_that_was_touched_and_cannot_be_written_again_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ScriptPool(str(folder))
    first = pool.take(os.geteuid(), "#!/bin/sh\n")
    let_the_clock_tick(first)
    rewritten(first)

    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(OSError, match="No space"):
        pool.take(os.geteuid(), "#!/bin/sh\n")
    monkeypatch.undo()
    assert Path(pool.take(os.geteuid(), "#!/bin/sh\n")).read_text() == "#!/bin/sh\n"
    pool.give_back(os.geteuid(), "#!/bin/sh\n")
    pool.give_back(os.geteuid(), "#!/bin/sh\n")
