"""What a task used: the figures that travel from the agent to accounting and to `sstat`.

Pure values. They are filled in by `reaper` (exact, once, when the task ends) and by `processes` (sampled
while it runs); nothing here reads the kernel.

Invariant: adding two usages never loses a peak: times and bytes add up, high-water marks take the larger.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """The resources of one task, or of several tasks together."""

    user_cpu_s: float = 0.0
    system_cpu_s: float = 0.0
    max_rss_kib: int = 0
    max_vsize_kib: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    major_page_faults: int = 0

    @property
    def cpu_s(self) -> float:
        return self.user_cpu_s + self.system_cpu_s

    def plus(self, other: TaskUsage) -> TaskUsage:
        """The sum of two usages, as accounting adds up the tasks of a step."""
        return TaskUsage(
            user_cpu_s=self.user_cpu_s + other.user_cpu_s,
            system_cpu_s=self.system_cpu_s + other.system_cpu_s,
            max_rss_kib=max(self.max_rss_kib, other.max_rss_kib),
            max_vsize_kib=max(self.max_vsize_kib, other.max_vsize_kib),
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
            major_page_faults=self.major_page_faults + other.major_page_faults,
        )

    def peak_with(self, earlier: TaskUsage) -> TaskUsage:
        """This sample of a task joined with an earlier one of the same task: every figure its maximum.

        A sampled figure can fall when a child process ends and takes its numbers with it.
        """
        return TaskUsage(
            user_cpu_s=max(self.user_cpu_s, earlier.user_cpu_s),
            system_cpu_s=max(self.system_cpu_s, earlier.system_cpu_s),
            max_rss_kib=max(self.max_rss_kib, earlier.max_rss_kib),
            max_vsize_kib=max(self.max_vsize_kib, earlier.max_vsize_kib),
            read_bytes=max(self.read_bytes, earlier.read_bytes),
            written_bytes=max(self.written_bytes, earlier.written_bytes),
            major_page_faults=max(self.major_page_faults, earlier.major_page_faults),
        )
