"""Detectors over what is told once: Xids by class, and lines of the kernel's."""

from __future__ import annotations

import pytest

from bireme.core.faults.detection import xids
from bireme.core.faults.detection.kernel_lines import Heard, heard, judge
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.faults.detection.told import Told
from bireme.core.faults.detection.xids import XidClass, class_of
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Trouble

GPU = Place(node="n1", gpu=2, uuid="GPU-2")
JOB = Place(job_id=42, generation=1, rank=3)


def xid(code: int, *, of_job: bool = True) -> Trouble | None:
    told = Told(at=1000.0, node="n1", kind="xid", uuid="GPU-2", code=code, pid=4711, text="name=python3, whatever")
    return xids.judge(told, GPU, JOB if of_job else None)


@pytest.mark.parametrize("code", [48, 64, 95, 79, 74, 62, 119, 120, 140, 143, 109])
def test_an_xid_of_the_hardware_is_the_gpus_and_lasts(code: int) -> None:
    trouble = xid(code)
    assert trouble is not None
    assert (trouble.place, trouble.gravity, trouble.lasts, trouble.who) == (GPU, Gravity.BROKEN, True, "platform")
    assert trouble.quotes[0].text == f"Xid {code}, pid=4711, name=python3, whatever"
    assert f"(Xid {code})" in trouble.title


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_xid_of_a_program_is_the_jobs_and_keeps_nobody_off_the_gpu(code: int) -> None:
    trouble = xid(code)
    assert trouble is not None
    assert (trouble.place, trouble.gravity, trouble.who) == (JOB, Gravity.NOTE, "you")
    assert xid(code, of_job=False) is None, "of a program that is nobody's job nothing is found"


@pytest.mark.parametrize("code", [63, 92, 94])
def test_a_notice_is_no_more_than_that(code: int) -> None:
    trouble = xid(code)
    assert trouble is not None
    assert (trouble.gravity, trouble.lasts) == (Gravity.NOTE, False)


@pytest.mark.parametrize("code", [106, 107, 154, 159, 999, 0])
def test_an_xid_that_says_nothing_by_itself(code: int) -> None:
    assert xid(code) is None


def test_causes() -> None:
    causes = {code: found.cause for code in (48, 74, 79, 119) if (found := xid(code))}
    assert causes == {48: "gpu_ecc_error", 74: "nvlink_error", 79: "gpu_fell_off_bus", 119: "gpu_fault"}


FATAL = frozenset({
    46, 48, 54, 62, 64, 74, 78, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 144, 145, 146, 147, 148, 149, 150, 151,
    155, 156, 158, 160, 162,
})  # fmt: skip
"""As NVIDIA's catalogue ("XID Errors") and open monitors that read it call them."""


def test_what_the_catalogue_calls_fatal_breaks_a_gpu_and_nothing_else_does_but_by_name() -> None:
    broken = {code for code in range(1000) if class_of(code) in (XidClass.GPU, XidClass.MEMORY, XidClass.NODE)}
    assert FATAL - broken == {156, 162}, "a row that was retired, and a power cap that holds again, are no fault"
    assert broken - FATAL == {157, 161, 167, 171, 172}, "retirements that failed, PCIe, and memory: not in all lists"


# --- lines of the kernel ---------------------------------------------------------------------------------------------


def after(*lines: tuple[float, str]) -> Heard:
    known = Heard()
    for at, text in lines:
        known = heard(known, Told(at=at, node="n1", kind="kernel", text=text))
    return known


def seen(known: Heard, now: float) -> dict[str, Trouble]:
    found = judge("n1", known, Thresholds(), 0.0, now)
    return {each.trouble.detector: each.trouble for each in found if isinstance(each, o.TroubleSeen)}


DOWN, UP = "mlx5_core 0000:41:00.0 ib0: Link down", "mlx5_core 0000:41:00.0 ib0: Link up"


def test_a_link_that_is_down_for_ten_seconds() -> None:
    known = after((1000.0, DOWN))
    assert seen(known, 1005.0) == {}, "a switch may blink"
    found = seen(known, 1010.0)
    assert found["nic"].gravity is Gravity.BROKEN, "collectives go over it"
    assert found["nic"].quotes[0].text == DOWN
    assert seen(after((1000.0, DOWN), (1004.0, UP)), 1010.0) == {}
    assert seen(after((1000.0, "igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down")), 1010.0)["nic"].gravity is (
        Gravity.DEGRADED
    )
    assert seen(after((1000.0, "veth1a2b: Link down")), 2000.0) == {}, "a container's"


def test_a_link_that_goes_up_and_down() -> None:
    twice = [(1000.0, DOWN), (1005.0, UP), (1100.0, DOWN), (1105.0, UP)]
    assert seen(after(*twice), 1200.0) == {}
    known = after(*twice, (1200.0, DOWN), (1205.0, UP))
    assert seen(known, 1206.0).keys() == {"nic.flaps"}
    assert seen(known, 1206.0 + 1_800.0) == {}, "calm for half an hour"
    slowly = [(1000.0 + 500.0 * n, DOWN if n % 2 == 0 else UP) for n in range(6)]
    assert seen(after(*slowly), 3600.0) == {}


def test_a_file_server_that_is_away_and_comes_back() -> None:
    away = (1000.0, "nfs: server store1 not responding, still trying")
    assert seen(after(away), 1059.0) == {}
    assert seen(after(away), 1060.0)["filesystem"].cause == "storage_stale"
    assert seen(after(away, (1061.0, "nfs: server store1 OK")), 1100.0) == {}
    assert "filesystem" in seen(after(away, (1061.0, "nfs: server store2 OK")), 1100.0), "another one is back"


def test_a_file_system_that_cannot_be_written_lasts() -> None:
    found = seen(after((1000.0, "EXT4-fs (sda1): Remounting filesystem read-only")), 1000.0)["filesystem"]
    assert (found.gravity, found.lasts, found.cause) == (Gravity.BROKEN, True, "disk_read_only")


def test_programs_that_hang_in_the_kernel_for_as_long_as_it_says_so() -> None:
    known = after((1000.0, "INFO: task python3:4711 blocked for more than 120 seconds."))
    assert seen(known, 1001.0).keys() == {"filesystem.hung"}
    assert seen(known, 1301.0) == {}


def test_what_is_over_is_said_where_it_was_heard_and_not_by_a_daemon_that_has_just_begun() -> None:
    def gone(known: Heard, since: float, now: float) -> set[str]:
        told = judge("n1", known, Thresholds(), since, now)
        return {each.detector for each in told if isinstance(each, o.TroubleGone)}

    assert gone(Heard(), 1000.0, 1010.0) == set()
    assert gone(after((1000.0, DOWN), (1004.0, UP)), 1000.0, 1010.0) == {"nic"}
    assert gone(Heard(), 1000.0, 1400.0) == {"filesystem.hung"}, "the kernel says it every two minutes"
    assert gone(Heard(), 1000.0, 2800.0) == {"filesystem.hung", "nic.flaps"}


def test_other_lines_change_nothing() -> None:
    assert after((1000.0, "oom-kill: constraint=CONSTRAINT_MEMCG"), (1001.0, "usb 1-1: new device")) == Heard()
