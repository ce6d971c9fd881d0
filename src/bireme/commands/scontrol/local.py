"""What scontrol answers without a daemon, near who asks: hostlists, error numbers, processes of this machine.

`scontrol show hostnames` runs in half of all batch scripts, on every node: it must work when nothing else does.
"""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from bireme.commands import reports
from bireme.commands.paths import path_of
from bireme.commands.scontrol.session import Session
from bireme.commands.surroundings import around
from bireme.core.model.refusals import Why
from bireme.slurm.hostlist import compress, compress_sorted, expand


def show_hostnames(session: Session, words: list[str]) -> int:
    """One name a line; without an argument, those of $SLURM_JOB_NODELIST."""
    variables = reports.environment()
    text = ",".join(words) or variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST") or ""
    if not text:
        reports.tell("scontrol: error: host list is empty")
        return 0  # as Slurm does
    reports.show(expand(_from_file(text)))
    return 0


def show_hostlist(session: Session, words: list[str]) -> int:
    reports.say(compress(expand(_hosts(words))))
    return 0


def show_hostlist_sorted(session: Session, words: list[str]) -> int:
    reports.say(compress_sorted(expand(_hosts(words))))
    return 0


def _hosts(words: list[str]) -> str:
    if not words:
        raise reports.CommandError("invalid encode argument")
    return _from_file(",".join(words))


def _from_file(text: str) -> str:
    """A path (it begins with a slash, or is - for standard input) stands for the names in the file."""
    around().only_near()
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("/"):
        return text
    try:
        with open(text, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise reports.CommandError(f"scontrol: error: {text}: {error.strerror}") from None


def show_daemons(session: Session, words: list[str]) -> int:
    """What should run here. Scripts look for slurmd to learn whether a machine is a node."""
    reports.say("slurmctld slurmd")
    return 0


def errnumstr(session: Session, words: list[str]) -> int:
    """The text of a Slurm error number."""
    if not words or not words[0].removeprefix("-").isdecimal():
        raise reports.CommandError(
            "numeric arguments required for keyword:errnumstr" if words else "too few arguments for keyword:errnumstr"
        )

    number = int(words[0])
    texts = {why.value.errno: why.value.text for why in Why}
    reports.say(texts.get(number) or os.strerror(number))
    return 0


class _Process(NamedTuple):
    pid: int
    job: str
    step: str
    local: str
    rank: str


def _processes() -> Iterator[_Process]:
    """Processes of this cluster's jobs on this machine that this user may look at, by the variables they were started
    with. There may be several clusters; where nobody says which one is asked, it is all of them."""
    asked = reports.environment().get("BIREME_HOME", "")
    home = os.path.realpath(asked).encode(errors="surrogateescape") if asked else b""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                pairs = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
        except OSError:
            continue  # it ended, or is somebody else's
        if b"BIREME_JOB" not in pairs or b"SLURM_JOB_ID" not in pairs:
            continue
        if home and os.path.realpath(pairs.get(b"BIREME_HOME", home)) != home:
            continue
        in_task = b"SLURM_PROCID" in pairs and b"SLURM_STEP_ID" in pairs
        yield _Process(
            int(entry),
            pairs[b"SLURM_JOB_ID"].decode(),
            pairs[b"SLURM_STEP_ID"].decode() if in_task else "batch",
            pairs[b"SLURM_LOCALID"].decode() if in_task and b"SLURM_LOCALID" in pairs else "0",
            pairs[b"SLURM_PROCID"].decode() if in_task else "0",
        )


def list_pids(session: Session, words: list[str]) -> int:
    """`listpids [JOB[.STEP]] [NODE]`: processes of jobs on this machine."""
    job, _, step = (words[0] if words and words[0] != "*" else "").partition(".")
    found = [each for each in _processes() if (not job or each.job == job) and (not step or each.step == step)]
    if not found and job:
        raise reports.CommandError(f"scontrol: error: Job step {words[0]} does not exist on this node.")
    reports.say(f"{'PID':<8} {'JOBID':<8} {'STEPID':<8} {'LOCALID':<7} {'GLOBALID':<8}")
    for each in found:
        reports.say(f"{each.pid:<8} {each.job:<8} {each.step:<8} {each.local:<7} {each.rank:<8}")
    return 0


def pid_info(session: Session, words: list[str]) -> int:
    """`pidinfo PID`: the job of a process and when it ends."""
    if len(words) != 1 or not words[0].isdecimal():
        raise reports.CommandError("missing argument for keyword:pidinfo")
    process = next((each for each in _processes() if each.pid == int(words[0])), None)
    if process is None:
        raise reports.CommandError("Failed to locate job for requested pid")
    answer = session.get(path_of("jobs", process.job), "slurm_load_jobs error")
    end = answer["jobs"][0].get("end_time")
    ends = f"ends at {time.ctime(end)}" if end else "has no time limit"
    reports.say(f"Slurm JobId={process.job} {ends}")
    return 0


def getent(session: Session, words: list[str]) -> int:
    """`getent NODE`: Slurm asks nss_slurm on that node; here every node shares this machine's users."""
    entry = pwd.getpwuid(reports.my_uid())
    reports.say(f"{entry.pw_name}:x:{entry.pw_uid}:{entry.pw_gid}:{entry.pw_gecos}:{entry.pw_dir}:{entry.pw_shell}")
    return 0
