"""Figures of a machine."""

from __future__ import annotations

from pathlib import Path

from bireme.core.telemetry.metrics import about
from bireme.gather.machine import machine_frame


def test_this_machine_has_all_figures() -> None:
    frame = machine_frame("here")
    known = {metric.name for metric in about("node")} - {"node_clock_offset"}
    assert set(frame.columns) == known
    assert 0 < (frame.columns["node_memory_used"][0] or 0) < (frame.columns["node_memory_total"][0] or 0)


def test_only_whole_disks_and_real_interfaces_count(tmp_path: Path) -> None:
    proc, blocks = tmp_path / "proc", tmp_path / "block"
    (proc / "net").mkdir(parents=True)
    for name in ("sda", "dm-0", "loop3"):
        (blocks / name).mkdir(parents=True)
    row = "{0} 1 0 {1} 0 1 0 {2} 0 0 0 0"
    disks = (("sda", 8, 16), ("sda1", 8, 16), ("dm-0", 8, 16), ("loop3", 100, 100))
    (proc / "diskstats").write_text("".join(f"8 0 {row.format(*disk)}\n" for disk in disks))
    head = "Inter-| Receive | Transmit\n face |bytes\n"
    (proc / "net/dev").write_text(head + " lo: 900 0 0 0 0 0 0 0 900 0\n eth0:100 0 0 0 0 0 0 0 200 0\n")
    columns = machine_frame("n1", proc, blocks).columns
    assert columns == {
        "node_network_received": [100],
        "node_network_sent": [200],
        "node_disk_read": [8 * 512],
        "node_disk_written": [16 * 512],
    }
