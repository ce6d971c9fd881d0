"""One running process of a job: the batch script or a task of a step. How it ended and what it used, in the
words the daemon understands.

Called by `jobs` and `steps`. It does not start anything (`spawn`) nor wait (`loop`).

Invariant: final CPU times come from the kernel (wait4). Peaks are the larger of the kernel's figure, which knows
single processes only, and the samples, which add up a task's whole tree.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field, replace

from bireme.agent.keeping.keepers import Keeper
from bireme.agent.system.processes import ProcessEntry, ProcessIdentity, descendants, sample_usage
from bireme.agent.system.reaper import ReapedChild
from bireme.agent.system.usage import TaskUsage
from bireme.core.model.resources import ExitStatus, Usage

PID_VARIABLE = "SLURM_TASK_PID"
"""What a task reads its own pid from."""
_NOTHING = TaskUsage()


@dataclass(slots=True)
class Task:
    """A process that was started. `id` is its rank in its step; 0 for a batch script."""

    id: int
    pid: int
    keeper: Keeper
    """Below which it runs."""
    started_at: float = field(default_factory=time.time)
    sampled: TaskUsage = _NOTHING
    resident_kib: int = 0
    """What its tree had in memory when it was last looked at."""
    ended: ExitStatus | None = None
    used: Usage | None = None

    @property
    def process(self) -> ProcessIdentity:
        """For signals: read when needed; nobody once it ended."""
        return self.keeper.process_of(self.pid) or ProcessIdentity(self.pid, -1, "")

    @property
    def was_sampled(self) -> bool:
        return self.sampled is not _NOTHING

    def sample(self, table: dict[int, ProcessEntry]) -> None:
        now = sample_usage({self.pid} | descendants([self.pid], table))
        self.resident_kib = now.max_rss_kib
        self.sampled = now.peak_with(self.sampled)

    def finish(self, reaped: ReapedChild, node: str, out_of_memory: bool) -> None:
        self.ended = ExitStatus(reaped.status.code, reaped.status.signal, out_of_memory)
        self.used = self._usage(_without_inheritance(reaped.usage).peak_with(self.sampled), node)

    def live_usage(self, node: str) -> Usage:
        return self._usage(self.sampled, node)

    def _usage(self, used: TaskUsage, node: str) -> Usage:
        return Usage(
            user_cpu_s=used.user_cpu_s,
            system_cpu_s=used.system_cpu_s,
            max_rss_kib=used.max_rss_kib,
            max_rss_node=node,
            max_rss_task=self.id,
            max_vmsize_kib=used.max_vsize_kib,
            max_disk_read_bytes=used.read_bytes,
            max_disk_write_bytes=used.written_bytes,
            min_cpu_s=used.cpu_s,
            min_cpu_node=node,
            min_cpu_task=self.id,
            total_rss_kib=used.max_rss_kib,
            tasks=1,
        )


def _without_inheritance(used: TaskUsage) -> TaskUsage:
    """The kernel counts the agent's own size as the task's, from the instant between fork and exec.

    A peak no larger than that says nothing about the task: the samples speak, or nobody.
    """
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if used.max_rss_kib > own else replace(used, max_rss_kib=0)


def worst_status(statuses: list[ExitStatus]) -> ExitStatus:
    """Slurm's exit status of several tasks on a node: of one that a signal ended, else the highest exit code."""
    signalled = next((each.signal for each in statuses if each.signal), 0)
    code = 0 if signalled else max((each.code for each in statuses), default=0)
    return ExitStatus(code, signalled, any(each.out_of_memory for each in statuses))
