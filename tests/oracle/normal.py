"""What must not be compared: ids, times, host names, folders. Each is replaced by a word that says what it was.

Pure text in, text out. Invariant: two texts that differ in anything else still differ afterwards.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

FIRST_JOB_ID = 70001
"""Where the ids of both systems begin: no other number in a text looks like one."""

_ID = re.compile(r"(?<![1-9.])7[0-4]\d{3}(?!\d)")
_STEPD = re.compile(r"\bslurmstepd-\w+:")
"""How a slurmstepd calls itself where several slurmd share a machine."""
_ON_NODE = re.compile(r"(?<= ON )[nc]\d(?= CANCELLED AT )|(?<=srun: error: )[nc]\d(?=: task )")
"""Cases run beside each other: who got which node is chance."""
_STAMP = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\b")
_SHORT_STAMP = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} +\d+ \d\d:\d\d(?::\d\d 20\d\d)?")
_EPOCH = re.compile(r"\b1[78]\d{8}(?:\.\d+)?\b")
_ELAPSED = re.compile(r"(?<![\d:.-])(?:00:)?[0-5]?\d:[0-5]\d(?![\d:])")
_SCHEDULER = re.compile(r"\bSched(?:Main|Backfill)\b")
"""Which of Slurm's two schedulers came by first."""
PASSING = frozenset({"Scheduler", "CPULoad", "FreeMem"})
"""Values of `scontrol show` that are another at every look."""
_HIDDEN_VARIABLES = re.compile(
    r"SLURM_(SRUN_COMM_PORT|SRUN_COMM_HOST|LAUNCH_NODE_IPADDR|STEP_LAUNCHER_PORT|STEP_LAUNCHER_HOST|TASK_PID|CONF"
    r"|JOB_START_TIME|JOB_END_TIME|JOB_SLUID|WORKING_CLUSTER)|SLURMD_DEBUG"
)
"""Their values are addresses, process ids, times, and what the daemons log."""


ADDED = (
    "SLURM_JOB_EXCLUSIVE", "SLURM_JOB_GROUP", "SLURM_JOB_OVERSUBSCRIBE", "SLURM_OOM_KILL_STEP", "SLURM_TRES_BIND",
    "SLURM_TRES_PER_TASK",
)  # fmt: skip
"""Variables that 22.05 has not and 26.05 has."""
DROPPED = ("SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0", "SLURM_NODE_ALIASES")
"""Variables that 22.05 has and 26.05 has not. Bireme sets both kinds, so that scripts of either release find theirs;
with a release that has no such variable, it is not compared."""


_BUSY_STEP = re.compile(r"srun: (?:Job \S+ step creation .*disabled, retrying.*|Step created for .*)\n")
"""Slurm has not yet cleared the step before: another time it has."""


class Names:
    """The names of one system that mean the same on the other.

    `texts`: all that a case said, to number its jobs. `release`: of the Slurm that Bireme is compared with.
    """

    def __init__(self, folders: Iterable[str], texts: Iterable[str], release: tuple[int, int]) -> None:
        self._unknown = (*(ADDED if release <= (22, 5) else ()), *(DROPPED if release >= (26, 5) else ()))
        self._folders = sorted(folders, key=len, reverse=True)
        self._host = re.compile(rf"\b{re.escape(socket.gethostname().partition('.')[0])}\b")
        ids = sorted({number for text in texts for number in _ID.findall(text)}, key=int)
        self._ids = {number: f"<job{place}>" for place, number in enumerate(ids, 1)}

    def text(self, text: str) -> str:
        """Ids, times, folders and this host's name."""
        for folder in self._folders:
            text = text.replace(folder, "<folder>")
        text = _ID.sub(lambda found: self._ids.get(found[0], found[0]), text)
        text = _BUSY_STEP.sub("", text)
        text = _STEPD.sub("slurmstepd:", text)
        text = _ON_NODE.sub("<node>", text)
        text = _STAMP.sub("<time>", text)
        text = _SHORT_STAMP.sub("<time>", text)
        text = _EPOCH.sub("<epoch>", text)
        text = _SCHEDULER.sub("<scheduler>", text)
        return self._host.sub("<host>", text)

    def environment(self, dump: str) -> dict[str, str]:
        """The variables of a NUL-separated dump that a job manager sets."""
        given = dict(entry.partition("=")[::2] for entry in dump.split("\0") if "=" in entry)
        wanted = sorted(name for name in given if _is_set_for_jobs(name) and not name.startswith(self._unknown))
        return {name: self.text(given[name]) for name in wanted}


def elapsed(text: str) -> str:
    """Durations under an hour: they depend on when one looked."""
    return _ELAPSED.sub("<elapsed>", text)


def _is_set_for_jobs(name: str) -> bool:
    wanted = name.startswith(("SLURM", "SBATCH", "SRUN", "CUDA_", "GPU_DEVICE", "ROCR_", "ZE_", "PMI", "TMPDIR"))
    return wanted and not _HIDDEN_VARIABLES.fullmatch(name)
