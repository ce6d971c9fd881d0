"""Checks of a machine: each says what is wrong with what to do, and one that hangs costs its own line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from bireme.agent.health import checks
from bireme.agent.health.checks import Check, Expected
from bireme.agent.health.running import run_checks

NOTHING = Expected()


def well(expected: Expected) -> Iterator[Check]:
    yield Check("well", "PASS", f"{expected.gpus} GPUs")


def hangs(expected: Expected) -> Iterator[Check]:
    time.sleep(600)
    yield Check("hangs", "PASS", "")


def is_given_no_turn(expected: Expected) -> Iterator[Check]:
    while time.monotonic() < 1e12:
        pass
    yield Check("is_given_no_turn", "PASS", "")


def breaks(expected: Expected) -> Iterator[Check]:
    raise RuntimeError("out of order")
    yield


def dies(expected: Expected) -> Iterator[Check]:
    os._exit(1)
    yield


def test_one_that_hangs_breaks_or_dies_costs_its_own_line() -> None:
    began = time.monotonic()
    looks = {"hangs": hangs, "breaks": breaks, "dies": dies, "well": well, "is_given_no_turn": is_given_no_turn}
    found = {check.name: check for check in run_checks(Expected(gpus=8), 1.0, looks)}
    assert time.monotonic() - began < 100.0, "it waits for nobody"
    assert found["well"] == Check("well", "PASS", "8 GPUs")
    assert found["hangs"].status == "FAIL"
    for name in ("breaks", "dies", "is_given_no_turn"):
        assert (found[name].status, found[name].looked) == ("WARN", False), "nothing is known: no finding comes of it"
    assert "no answer within 1 s" in found["hangs"].why
    assert "out of order" in found["breaks"].why
    assert all(check.advice for check in found.values() if check.status == "FAIL")


def test_this_machine_is_checked_in_less_than_five_seconds_of_its_own() -> None:
    names = {check.name for check in run_checks(NOTHING)}
    assert {"driver", "memory", "clock", "cgroup", "disk /"} <= names


def bus(folder: Path, name: str, vendor: str, class_: str, now: str, most: str) -> None:
    (folder / name).mkdir(parents=True)
    files = {"vendor": vendor, "class": class_, "current_link_width": now, "max_link_width": most}
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


def test_links_that_are_narrower_than_they_could_be(tmp_path: Path) -> None:
    bus(tmp_path, "0000:3b:00.0", "0x10de", "0x030200", "16", "16")
    bus(tmp_path, "0000:05:00.0", "0x8086", "0x010802", "1", "4")
    (found,) = checks.pcie(NOTHING, str(tmp_path))
    assert (found.status, found.why) == ("PASS", "all lanes of 1 GPUs are in use")
    bus(tmp_path, "0000:af:00.0", "0x10de", "0x030200", "8", "16")
    (found,) = checks.pcie(NOTHING, str(tmp_path))
    assert (found.status, found.why) == ("WARN", "0000:af:00.0 has 8 of 16 lanes")
    assert list(checks.pcie(NOTHING, str(tmp_path / "none"))) == [], "nothing is said of what is not there"


def test_memory_that_is_used_up_missing_or_broken(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"

    def found(total: int, free: int, expected: int = 0) -> dict[str, str]:
        info.write_text(f"MemTotal: {total * 1024} kB\nMemAvailable: {free * 1024} kB\n")
        told = checks.memory(Expected(memory_mib=expected), str(info), str(tmp_path / "mc"))
        return {check.name: check.status for check in told}

    assert found(1000, 500) == {"memory": "PASS"}
    assert found(1000, 500, 2000) == {"memory": "WARN"}
    assert found(1000, 10) == {"memory": "WARN"}
    (tmp_path / "mc" / "mc0").mkdir(parents=True)
    (tmp_path / "mc" / "mc0" / "ue_count").write_text("2\n")
    assert found(1000, 500) == {"memory": "PASS", "memory errors": "FAIL"}


def test_mounts_that_should_be_there(tmp_path: Path) -> None:
    mounts, table = tmp_path / "mounts", tmp_path / "fstab"
    mounts.write_text(f"tmpfs /run tmpfs rw 0 0\nstore:/a {tmp_path} nfs4 rw 0 0\n")
    table.write_text(
        f"# comment\nstore:/a {tmp_path} nfs4 rw 0 0\nstore:/b /b nfs rw 0 0\n"
        "store:/c /c nfs noauto 0 0\nx / ext4 rw 0 1\n"
    )
    looks = checks.all_checks(str(mounts), str(table))
    assert [name for name in looks if name.startswith("mount")] == [f"mount {tmp_path}", "mounts"]
    (found,) = looks[f"mount {tmp_path}"](NOTHING)
    assert found.status == "PASS"
    (found,) = looks["mounts"](NOTHING)
    assert (found.name, found.status) == ("mount /b", "FAIL")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert checks._writing(str(tmp_path)).status == "PASS"
    assert checks._writing(str(tmp_path / "gone")).status == "FAIL"
