"""The tasks of a node that is not Bireme's own: all processes, by their cgroups; Slurm's by slurmd where it has none.

`bireme node` has one of these where the embedded engine asks its agents. A task is named as the cluster names it
(`JOB.0.STEP.TASK` of Slurm's job, `pod-UID.0.-4.0` of a whole pod): which of the daemon's jobs that is, and which start
of it, the daemon knows.
Invariant: a process is a task's by the word of the kernel or of slurmd, never by its name, parent or environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from bireme.core.model.steps import EXTERN_STEP
from bireme.gather import processes
from bireme.gather.clusters.cgroups import OfPod, OfSlurm, owner_in
from bireme.gather.clusters.gres import gpu_files
from bireme.gather.clusters.kubelet import Kubelet
from bireme.gather.clusters.listpids import Listed, read_listpids
from bireme.gather.messages import Device, HeldDevice
from bireme.gather.owners import OwnedTask

log = logging.getLogger("bireme.gather")

POD = "pod-"
"""How the name of a pod begins where a job's number stands otherwise."""
_LISTED_S = 10.0
_FILES_S = 600.0
_LISTED_BYTES = 8 * 1024 * 1024
_STEPD = b"slurmstepd: ["

Named = tuple[str, int, int]
"""(job or pod, step, task)."""


class ClusterOwners:
    """Tasks of the node `node`. `shares_machine`: other slurmd run here too, so that Slurm is asked for this one's.
    `kubelet`: who says which pods have which GPUs, where the node is one of Kubernetes'."""

    def __init__(
        self,
        node: str,
        *,
        shares_machine: bool = False,
        proc: str = "/proc",
        scontrol: str = "",
        kubelet: Kubelet | None = None,
    ) -> None:
        self._node, self._shares, self._proc = node, shares_machine, proc
        self._scontrol = scontrol or shutil.which("scontrol") or ""
        self._slurmd = shutil.which("slurmd") or shutil.which("slurmd", path="/usr/sbin:/usr/local/sbin") or ""
        self._kubelet = kubelet
        self._files: list[str] = []
        self._files_at = -_FILES_S
        self._complained = ""

    @property
    def answer(self) -> bool:
        """A node of a cluster is never left alone: its gatherer goes on until its operator ends it."""
        return True

    async def tasks(self) -> Sequence[OwnedTask]:
        by_cgroup = await asyncio.to_thread(self._by_cgroup)
        if not any(name.isdigit() for name, _, _ in by_cgroup):
            for named, pids in (await self._by_slurm()).items():
                by_cgroup[named] = pids
        return [
            OwnedTask(self._node, f"{name}.0.{step}.{task}", pid=0, pids=tuple(sorted(pids)))
            for (name, step, task), pids in sorted(by_cgroup.items())
        ]

    def _by_cgroup(self) -> dict[Named, list[int]]:
        found: dict[Named, list[int]] = defaultdict(list)
        for pid in _pids(self._proc):
            owner = owner_in(_text(f"{self._proc}/{pid}/cgroup"))
            if isinstance(owner, OfPod):
                found[f"{POD}{owner.uid}", EXTERN_STEP, 0].append(pid)
            elif isinstance(owner, OfSlurm) and owner.node in ("", self._node):
                found[str(owner.job), owner.step, owner.task or 0].append(pid)
        return dict(found)

    # --- where Slurm makes no cgroups ----------------------------------------------------------------------

    async def _by_slurm(self) -> dict[Named, list[int]]:
        jobs = await asyncio.to_thread(self._jobs_with_steps) if self._scontrol else set()
        if not jobs:
            return {}
        listed: list[Listed] = []
        for words in [("listpids", str(job), self._node) for job in sorted(jobs)] if self._shares else [("listpids",)]:
            listed += read_listpids(await self._ask(self._scontrol, *words))
        return share_out(listed, self._parents(each.pid for each in listed))

    def _jobs_with_steps(self) -> set[int]:
        """Jobs of which a slurmstepd runs here: whom it is worth to ask for. Slurm says whether it is so."""
        found = set()
        for pid in _pids(self._proc):
            line = _text(f"{self._proc}/{pid}/cmdline").encode()
            if line.startswith(_STEPD):
                number = line[len(_STEPD) :].partition(b".")[0]
                found |= {int(number)} if number.isdigit() else set()
        return found

    async def slurm_files(self) -> list[str]:
        """The device files of Slurm's GPUs on this node, by their numbers; none: this is no node of Slurm's, or it
        cannot be known. Asked anew now and then: gres.conf may be another."""
        if self._slurmd and time.monotonic() - self._files_at >= _FILES_S:
            self._files_at = time.monotonic()
            self._files = gpu_files(await self._ask(self._slurmd, "-G", *(("-N", self._node) if self._shares else ())))
        return self._files

    async def held(self, devices: Sequence[Device]) -> list[HeldDevice]:
        return await self._kubelet.held(devices) if self._kubelet is not None else []

    async def _ask(self, program: str, *words: str) -> str:
        """What a command of Slurm's prints; nothing, with a line in the log, where it does not answer."""
        said, problem = b"", ""
        process = await asyncio.create_subprocess_exec(
            program, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, limit=_LISTED_BYTES,
        )  # fmt: skip
        assert process.stdout is not None, "a pipe was asked for"
        try:
            async with asyncio.timeout(_LISTED_S):
                while piece := await process.stdout.read(_LISTED_BYTES):
                    said += piece
                    if len(said) > _LISTED_BYTES:
                        raise OSError("its answer is too long")
                await process.wait()
        except (TimeoutError, OSError) as error:
            problem = str(error) or f"no answer in {_LISTED_S:g} s"
            said = b""
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if problem and problem != self._complained:
            log.warning("%s %s: %s", program, " ".join(words), problem)
        self._complained = problem
        return said.decode(errors="replace")

    def _parents(self, pids: Iterable[int]) -> dict[int, int]:
        looked = (processes.look(pid, self._proc) for pid in pids)
        return {process.pid: process.parent for process in looked if process is not None}


def share_out(listed: Iterable[Listed], parents: Mapping[int, int]) -> dict[Named, list[int]]:
    """A step's processes by its tasks: each is of the task above it, and of the first where none is. Pure."""
    steps: dict[tuple[int, int], list[Listed]] = defaultdict(list)
    for each in listed:
        steps[each.job, each.step].append(each)
    found: dict[Named, list[int]] = defaultdict(list)
    for (job, step), members in steps.items():
        roots = {each.pid: each.task for each in members if each.task is not None}
        first = min(roots.values(), default=0)
        for each in members:
            found[str(job), step, _task_above(each.pid, roots, parents, first)].append(each.pid)
    return dict(found)


def _task_above(pid: int, roots: Mapping[int, int], parents: Mapping[int, int], first: int) -> int:
    for _ in range(len(parents) + 1):
        if pid in roots:
            return roots[pid]
        if pid not in parents:
            return first
        pid = parents[pid]
    return first


def _pids(proc: str) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdigit()]


def _text(path: str) -> str:
    """Of a small file; empty: the process is gone."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(16 * 1024)
    return ""
