"""Lines of the kernel's log about GPUs, as a real driver (580.159, H200) and its documentation write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bireme.gather.gpus.kernel_log import KernelLog, event_of
from bireme.gather.gpus.source import GpuEvent
from bireme.gather.gpus.xids import SAME_WITHIN_S, Xids

ASSERT = "NVRM: Xid (PCI:0000:00:06): 43, pid=521, name=python3, channel 0x0000000a"
FAULT = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=547, name=oob, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS"
    " GPC1 GPCCLIENT_T1_4 faulted @ 0x8398_27e00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)


@pytest.mark.parametrize(
    ("line", "code", "bus", "pid", "text"),
    [
        (ASSERT, 43, "0000:00:06.0", 521, "name=python3, channel 0x0000000a"),
        (FAULT, 31, "0000:00:06.0", 547, "name=oob, channel 0x0000000a, intr 00000000. MMU Fault"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 79, "0000:3b:00.0", 0, "GPU has fallen off"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen", 79, "0000:3b:00.0", 0, ""),
        (
            "NVRM: Xid (PCI:0000:C1:00.0): 63, pid=1, Row Remapper: New row marked",
            63,
            "0000:c1:00.0",
            1,
            "Row Remapper",
        ),
    ],
)
def test_xid_lines(line: str, code: int, bus: str, pid: int, text: str) -> None:
    event = event_of(line, 7.0)
    assert event is not None
    assert (event.kind, event.code, event.pci_bus_id, event.pid, event.at) == ("xid", code, bus, pid, 7.0)
    assert text in event.text


def test_errors_of_a_switch() -> None:
    event = event_of("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Non-fatal, Link 46 sourcetrack timeout", 1.0)
    assert event is not None
    assert (event.kind, event.code, event.pci_bus_id) == ("sxid", 24007, "0000:c1:00.0")
    assert event.text.startswith("Non-fatal, Link 46")


def test_other_lines_are_no_events() -> None:
    assert event_of("NVRM: GPU at PCI:0000:00:06: GPU-e465b65a-7f49-b3bb-da9e-6e1b2c45c77d", 1.0) is None
    assert event_of("usb 1-1: new high-speed USB device", 1.0) is None


@pytest.mark.parametrize(
    ("line", "pid"),
    [
        ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, UID:1000", 4711),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task=python3,pid=12,uid=0", 12),
        ("python3[8231]: segfault at 0 ip 00007f error 4 in libfoo.so[7f+1000]", 8231),
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", 0),
        ("mlx5_core 0000:5e:00.0 ib0: Link down", 0),
        ("nfs: server storage1 not responding, still trying", 0),
        ("EXT4-fs error (device sda1): ext4_find_entry:1455: reading directory lblock 0", 0),
        ("INFO: task python3:99 blocked for more than 120 seconds.", 99),
        ("mce: [Hardware Error]: Machine check events logged", 0),
    ],
)
def test_other_faults_are_told_in_the_kernels_words(line: str, pid: int) -> None:
    event = event_of(line, 3.0)
    assert event is not None
    assert (event.kind, event.pid, event.text, event.at) == ("kernel", pid, line, 3.0)


def test_what_a_program_wrote_into_the_log_is_not_told(tmp_path: Path) -> None:
    """The kernel marks it with who wrote it (facility 1, `user`); its own lines are of facility 0."""
    file = tmp_path / "kmsg"
    file.write_text("")
    log = KernelLog(str(file), wall=lambda: 1000.0, clock=lambda: 60.0)
    file.write_text(f"12,360,56000000,-;{ASSERT}\n")
    assert log.read() == []
    log.close()


def test_a_flood_of_one_fault_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corrected = b"4,1,1,-;pcieport 0000:00:01.0: AER: Corrected error received"
    records = [*[corrected] * 300, f"4,2,2,-;{ASSERT}".encode()]
    log = KernelLog(str(tmp_path / "none"))
    monkeypatch.setattr(log, "_next", lambda: records.pop(0) if records else None)
    events = log.read()
    assert [event.kind for event in events] == ["kernel"] * 50 + ["xid"]


def test_only_new_lines_are_told_and_dated_by_the_kernel(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    file.write_text(f"4,359,55000000,-;{FAULT}\n")
    log = KernelLog(str(file), wall=lambda: 1000.0, clock=lambda: 60.0)
    assert log.read() == []
    with file.open("a") as end:
        end.write(f"4,360,56000000,-;{ASSERT}\n SUBSYSTEM=pci\n")
    (event,) = log.read()
    assert (event.code, event.pid, event.at) == (43, 521, 996.0)
    assert log.read() == []
    log.close()


def test_a_log_that_may_not_be_read_has_no_lines(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert "No such file" in log.problem
    assert log.read() == []


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log may not be read here")
def test_the_real_log_is_read_without_waiting() -> None:
    log = KernelLog()
    log.read()
    log.close()


def nvml(at: float, code: int = 43) -> GpuEvent:
    return GpuEvent(at, "xid", code, uuid="GPU-0", pci_bus_id="0000:00:06.0")


def kernel(at: float, code: int = 43, pid: int = 521) -> GpuEvent:
    return GpuEvent(at, "xid", code, pci_bus_id="0000:00:06.0", pid=pid, text="words")


def test_what_both_tell_is_one_error() -> None:
    (event,) = Xids().merge([nvml(10.0)], [kernel(10.4)], 11.0)
    assert (event.at, event.uuid, event.pid, event.text) == (10.0, "GPU-0", 521, "words")


def test_two_errors_that_both_tell_are_two() -> None:
    found = Xids().merge([nvml(10.0), nvml(10.1)], [kernel(10.0, pid=1), kernel(10.1, pid=2)], 11.0)
    assert [event.pid for event in found] == [1, 2]


@pytest.mark.parametrize("first", ["nvml", "kernel"])
def test_the_second_telling_may_come_a_round_later(first: str) -> None:
    xids = Xids()
    one, other = ([nvml(10.0)], []), ([], [kernel(10.0)])
    rounds = [one, other] if first == "nvml" else [other, one]
    assert len(xids.merge(*rounds[0], 11.0)) == 1
    assert xids.merge(*rounds[1], 12.0) == []
    assert len(xids.merge([nvml(12.5)], [], 13.0)) == 1, "another error of the same number"


def test_an_old_telling_is_another_error() -> None:
    xids = Xids()
    xids.merge([nvml(10.0)], [], 11.0)
    later = 10.0 + 2 * SAME_WITHIN_S
    assert len(xids.merge([], [kernel(later)], later + 1)) == 1


def test_different_numbers_are_different_errors() -> None:
    assert [event.code for event in Xids().merge([nvml(10.0, 31)], [kernel(10.1, 43)], 11.0)] == [31, 43]
