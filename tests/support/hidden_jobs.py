"""Jobs whose processes hide, on a cluster that tracks them in a given way. For the tests of tracking.

Every hidden process keeps a lock (`hiding`): whether one is left is whether the lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import ROOT, Cluster, virtual_nodes
from tests.support.hiding import WAYS

from bireme.client.sdk import Client

ENDS = {
    "scancel": "CANCELLED",
    "requeue": "COMPLETED",
    "limit": "TIMEOUT",
    "step": "COMPLETED",
    "script": "COMPLETED",
}
"""How the hidden process's job ends (or, for `step`, only its step), and what it is then."""
BUSY = ("fork_chain", "at_exec")
"""The ways that keep a CPU busy: their tasks are held until they are looked at, so that the others do not wait behind
ten endless loops."""
CONF = virtual_nodes(1, 8, cpus=256, settings="UnkillableStepTimeout=120").replace("KillWait=2", "KillWait=1")
MODES = ("root, cgroup v2", "root, cgroup v1", "root, no cgroup", "user, no cgroup")
V2_TREES = [
    line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if line.split()[2] == "cgroup2"
]


def cluster_of(mode: str, settings: str = "") -> Cluster:
    """A cluster whose agents track in this way, or a skip that says why there is none here."""
    if os.geteuid() != 0:
        if mode != "user, no cgroup":
            pytest.skip("needs root")
        owner = None
    else:
        owner = "nobody" if mode.startswith("user") else None
    tracking = "proctrack/linuxproc" if "no cgroup" in mode else "proctrack/cgroup"
    made = Cluster(CONF + f"\nProctrackType={tracking}\n{settings}\n", owner)
    if mode == "root, cgroup v2" and not V2_TREES:
        pytest.skip("no cgroup v2 tree is mounted")
    if mode == "root, cgroup v1":
        if " freezer " not in Path("/proc/mounts").read_text().replace(",", " "):
            pytest.skip("no cgroup v1 tree with the freezer is mounted")
        made.up_in = ["unshare", "--mount", "sh", "-c", f'umount {" ".join(V2_TREES)} && exec "$@"', "sh"]
    shutil.copy(ROOT / "tests" / "support" / "hiding.py", made.work)
    return made


SCRIPT = """\
case=$SLURM_ARRAY_TASK_ID
read -r way end < <(sed -n "$((case + 1))p" cases)
lock() { exec 9>>$case.lock; flock -n 9 || touch $case.twice; }
if [ "$end" = step ]; then
  srun -n1 bash -c "exec 9>>$case.lock; flock -n 9 && PYTHON hiding.py $way $case.hidden"
  flock -n $case.lock true || touch $case.outlived
  exit 0
fi
lock
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
PYTHON hiding.py $way $case.hidden
[ "$end" = script ] || sleep 3600
"""


class Hidden:
    """A cluster on which every way of hiding was tried, once for each kind of end: tasks of two arrays."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        ways = [way for way in WAYS if way != "namespace" or may_make_namespaces(cluster)]
        self.cases = [(way, end) for way in ways for end in ENDS]
        (cluster.work / "cases").write_text("".join(f"{way} {end}\n" for way, end in self.cases))
        python = cluster.python if cluster.owner else sys.executable
        script = cluster.script(SCRIPT.replace("PYTHON", python), "hide.sh")
        quiet = [case for case, (way, _) in enumerate(self.cases) if way not in BUSY]
        busy = [case for case, (way, _) in enumerate(self.cases) if way in BUSY]
        self.quiet, self.busy = self.submit(script, quiet), self.submit(script, busy, "--hold")

    def submit(self, script: Path, cases: list[int], *options: str) -> str:
        tasks = f"--array={','.join(map(str, cases))}"
        return self.cluster.sbatch("-n1", "--mem=10", "-t", "30", "-o", "%a.out", tasks, *options, str(script))

    def file(self, way: str, end: str, kind: str) -> Path:
        return self.cluster.work / f"{self.cases.index((way, end))}.{kind}"

    def task(self, way: str, end: str) -> str:
        return f"{self.busy if way in BUSY else self.quiet}_{self.cases.index((way, end))}"

    def finish(self, way: str, end: str) -> dict[str, Any]:
        """Has the task end in this way; its record then."""
        hidden, task = self.file(way, end, "hidden"), self.task(way, end)
        if way in BUSY:
            self.cluster.run("scontrol", "release", task)
        if end not in ("script", "step"):
            self.cluster.until(lambda: hidden.exists() or self.file(way, end, "twice").exists(), 90)
        if end == "scancel":
            self.cluster.run("scancel", task)
        elif end == "requeue":
            self.cluster.run("scontrol", "requeue", task)
        elif end == "limit":
            with Client(str(self.cluster.home)) as client:
                client.update(task, time_limit_s=1)
        return self.cluster.wait(task, 90)

    def check(self, way: str, end: str, state: str) -> None:
        """Ends the task; the moment the cluster says that it is over, nothing of it is left."""
        if (way, end) not in self.cases:
            pytest.skip("this user may not make a pid namespace here")
        ended = self.finish(way, end)
        said = self.file(way, end, "out").read_text()
        assert is_free(self.file(way, end, "lock")), f"it outlived its job: {said}"
        assert self.file(way, end, "hidden").exists(), f"it did not hide: {said}"
        assert not self.file(way, end, "twice").exists(), f"it ran twice at once: {said}"
        assert not self.file(way, end, "outlived").exists(), f"it outlived its step: {said}"
        assert ended["state"] == state, said


def may_make_namespaces(cluster: Cluster) -> bool:
    own_user = [] if os.geteuid() == 0 and cluster.owner is None else ["--user"]
    return cluster.run("unshare", *own_user, "--pid", "--fork", "true", check=False).returncode == 0


def is_free(path: Path) -> bool:
    """Whether nobody has the lock: then no process that ever inherited it is left."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
