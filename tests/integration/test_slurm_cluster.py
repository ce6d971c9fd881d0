"""The real Slurm that tests compare with: it starts, several stand beside each other, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.slurm_cluster import Layout, missing, running
from tests.slurm_cluster.guard import descendants
from tests.slurm_cluster.layout import Ports
from tests.slurm_cluster.processes import free_ports

ROOT = Path(__file__).parents[2]
ONE_NODE = "NodeName=n1 CPUs=4 RealMemory=1000 Gres=gpu:2\nPartitionName=main Nodes=n1 Default=YES\n"
WITHOUT_GPUS = "".join(
    line for line in Layout().settings.splitlines(True) if not line.startswith("AccountingStorageTRES")
)
SMALL = Layout(nodes=ONE_NODE, settings=WITHOUT_GPUS, accounting=False)
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")

A_RUN_THAT_DIES = """\
import os, sys
from tests.integration.test_slurm_cluster import SMALL
from tests.slurm_cluster import running
with running(SMALL) as slurm:
    slurm.call("sbatch", "--wrap", "exec sleep 1000")
    slurm.until(lambda: slurm.call("squeue", "-h", "-t", "R"), "the job runs")
    print(slurm.guard.pid, slurm.folder, flush=True)
    sys.stdin.read()
"""


def until(is_so, patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@needs_slurm
def test_eight_nodes_with_gpus_and_accounting() -> None:
    with running() as slurm:
        nodes = slurm.call("sinfo", "-h", "-N", "-p", "all", "-o", "%N %G").splitlines()
        assert len(nodes) == 8
        assert "n1 gpu:a100:4" in nodes
        said = slurm.call("srun", "-N2", "--gpus-per-node=2", "printenv", "SLURM_NODEID", "CUDA_VISIBLE_DEVICES")
        assert sorted(said.split()) == ["0", "0,1", "0,1", "1"]
        slurm.until(lambda: "COMPLETED" in slurm.call("sacct", "-n", "-X", "-o", "state"), "the job is in the history")


@needs_slurm
def test_slurmrestd_answers_who_has_a_token() -> None:
    with running() as slurm:
        address, token = slurm.start_rest(), slurm.call("scontrol", "token").partition("=")[2]
        described = urllib.request.Request(f"http://{address}/openapi/v3", headers=_headers(token))
        with urllib.request.urlopen(described, timeout=20) as answer:
            paths = json.load(answer)["paths"]
        assert any(path.endswith(("/jobs/", "/jobs")) for path in paths)


def _headers(token: str) -> dict[str, str]:
    return {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": token}


@needs_slurm
def test_two_stand_beside_each_other_and_leave_nothing() -> None:
    with running(SMALL) as one, running(SMALL) as other:
        assert one.ports != other.ports
        assert one.call("sbatch", "--parsable", "--wrap", "exec sleep 1000") == "1"
        assert other.call("squeue", "-h") == ""
        guards = [one.guard.pid, other.guard.pid]
        assert all(descendants(pid) for pid in guards)
    assert not one.folder.exists()
    assert not other.folder.exists()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in guards)


@needs_slurm
def test_a_killed_test_run_leaves_nothing() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", A_RUN_THAT_DIES], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    guard, folder = run.stdout.readline().split()
    started = descendants(int(guard))
    assert started
    run.send_signal(signal.SIGKILL)
    run.wait()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in (int(guard), *started)))
    assert not Path(folder).exists()


def test_a_setting_replaces_the_one_of_that_name() -> None:
    changed = SMALL.having(KillWait=9, PreemptType="preempt/qos").settings
    assert changed.count("KillWait=") == 1
    assert "KillWait=9\nPreemptType=preempt/qos\n" in changed
    assert SMALL.settings == WITHOUT_GPUS


def test_the_layouts_word_wins_over_the_daemons_default(tmp_path: Path) -> None:
    conf = SMALL.having(SlurmdDebug="quiet").slurm_conf(tmp_path, Ports(20000), tokens=False)
    assert [line for line in conf.splitlines() if line.startswith("SlurmdDebug=")] == ["SlurmdDebug=quiet"]


def test_devices_are_numbered_through_the_types_of_a_node(tmp_path: Path) -> None:
    layout = Layout(nodes="NodeName=n[1-2] Gres=gpu:a100:2,gpu:h100:1\n")
    assert layout.gres_conf(tmp_path).splitlines() == [
        f"NodeName=n[1-2] Name=gpu Type=a100 File={tmp_path}/dev/nvidia[0-1]",
        f"NodeName=n[1-2] Name=gpu Type=h100 File={tmp_path}/dev/nvidia[2-2]",
    ]


def test_blocks_of_ports_do_not_overlap() -> None:
    with free_ports(11) as one, free_ports(11) as other:
        assert abs(one.first - other.first) >= 11
