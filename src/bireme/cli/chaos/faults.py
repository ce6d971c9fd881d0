"""The faults themselves: what each does to its target, how it is taken back, and by which signs it is seen.

`KINDS` is the list; `command` prepares one, which looks at everything that can be wrong with its target, then strikes.
Each sign is something that a healthy Bireme shows after the fault: `watching` waits for it.
Invariant: `prepare` changes nothing.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bireme.agent.system.processes import (
    ProcessIdentity,
    kill_tree,
    living_below,
    process_identity,
    signal_all,
    signal_tree,
)
from bireme.cli.chaos.cluster import ChaosCluster, Gpu, is_over
from bireme.cli.chaos.lasting import Cut, Undo
from bireme.commands.voice import CommandFailure
from bireme.core.faults.detection.xids import XidClass, class_of
from bireme.gather.gpus.kernel_log import event_of
from bireme.gather.owners import OwnedTask
from bireme.gather.rehearsal.scene import FaultKind, PlayedFault

Seen = Callable[[], str | None]
"""What a sign shows; None: not yet."""
_BLOCK = 1024 * 1024
_MARKS = (".metadata", "_CHECKPOINT_METADATA", "commit_success.txt", "latest", "latest_checkpointed_iteration.txt")
"""Files without which a checkpoint is not whole."""
_CUT_BYTES = 64 * 1024
_XID = re.compile(r"xid:(?P<code>\d{1,3})")


@dataclass(frozen=True, slots=True)
class Sign:
    """What should happen, and within which time."""

    what: str
    within_s: float
    seen: Seen


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault that is ready. `strike` makes it, until that time, and says how it is taken back; `held` are descriptors
    that are the fault while somebody has them."""

    what: str
    strike: Callable[[int, float], Undo]
    signs: tuple[Sign, ...] = ()
    held: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """`lasts_s`: without `--for`; 0: it is over at once. `words`: of its target."""

    name: str
    words: str
    does: str
    expects: str
    prepare: Callable[[ChaosCluster, str], Blow]
    lasts_s: float = field(default=0.0, kw_only=True)


# -- processes ------------------------------------------------------------------------------------------------------


def _kill(cluster: ChaosCluster, target: str) -> Blow:
    task = cluster.task(target)

    def strike(number: int, until: float) -> Undo:
        kill_tree(_alive(task), sessions=False)
        return Undo()

    return Blow(f"{_rank(task)} is killed (SIGKILL)", strike, (_ended_or_again(cluster, _job(task)),))


def _freeze(cluster: ChaosCluster, target: str) -> Blow:
    task = cluster.task(target)

    def strike(number: int, until: float) -> Undo:
        stopped = (*_alive(task), *living_below([task.pid]))
        signal_tree(_alive(task), signal.SIGSTOP)
        return Undo(stopped=tuple(stopped))

    job = _job(task)
    found = _finding(cluster, "hang", f"job {job}.", within_s=75.0)
    return Blow(f"{_rank(task)} is stopped (SIGSTOP)", strike, (found,))


def _node(cluster: ChaosCluster, target: str) -> Blow:
    jobs = cluster.node(target)["jobs"]
    agent = cluster.agent(target)

    def strike(number: int, until: float) -> Undo:
        os.kill(agent, signal.SIGKILL)
        return Undo()

    def is_back() -> str | None:
        state, flags = cluster.flags(target)
        back = not os.path.exists(f"/proc/{agent}") and state not in ("DOWN", "UNKNOWN")
        return f"{target} is {state}" if back and "NOT_RESPONDING" not in flags else None

    signs = [_ended_or_again(cluster, job) for job in jobs]
    return Blow(f"{target} dies with all that runs there", strike, (*signs, Sign(f"{target} is back", 60.0, is_back)))


def _network(cluster: ChaosCluster, target: str) -> Blow:
    cluster.node(target)
    agent = process_identity(cluster.agent(target))

    def strike(number: int, until: float) -> Undo:
        stopped = () if agent is None else (agent,)
        signal_all(stopped, signal.SIGSTOP)
        return Undo(stopped=stopped)

    def is_silent() -> str | None:
        state, flags = cluster.flags(target)
        return f"{target} is {state}*" if "NOT_RESPONDING" in flags or state == "DOWN" else None

    return Blow(
        f"{target} cannot be reached; what runs there runs on",
        strike,
        (Sign(f"{target} does not respond, and gets no new work", 120.0, is_silent),),
    )


def _alive(task: OwnedTask) -> tuple[ProcessIdentity, ...]:
    found = process_identity(task.pid)
    return () if found is None else (found,)


def _rank(task: OwnedTask) -> str:
    job, _, step, rank = task.id.split(".")
    of_step = f"rank {rank} of step {step}" if int(step) >= 0 else "the script"
    return f"{of_step} of job {job} on {task.node} (pid {task.pid})"


def _job(task: OwnedTask) -> int:
    return int(task.id.split(".")[0])


# -- the kernel and played GPUs -------------------------------------------------------------------------------------


def _kernel(cluster: ChaosCluster, target: str) -> Blow:
    cluster.check_played()
    node, _, line = target.partition(" ")
    cluster.node(node)
    if not line.isprintable() or event_of(line, 0.0) is None:
        raise CommandFailure(
            f"no gatherer would tell of {line!r}: it is none of the kernel's words on faults",
            hint='as in: bireme chaos kernel "n1 mlx5_0: Link is Down"',
        )

    def strike(number: int, until: float) -> Undo:
        cluster.scene.tell(node, line)
        return Undo()

    sign = Sign(f"a finding about {node}, if a detector knows the line", 30.0, lambda: _any_about(cluster, node, line))
    return Blow(f"the kernel of {node} says: {line}", strike, (sign,))


def _xid(cluster: ChaosCluster, target: str) -> Blow:
    where, _, said = target.partition(" ")
    gpu = cluster.gpu(where)
    parts = _XID.fullmatch(said or "xid:79")
    if parts is None:
        raise CommandFailure(f"{said!r} is no Xid: write NODE:gpuN xid:CODE, as n1:gpu2 xid:48")
    code = int(parts["code"])

    def strike(number: int, until: float) -> Undo:
        _tell_xid(cluster, gpu, code)
        return Undo()

    return Blow(f"the driver of {where} tells Xid {code}", strike, _xid_signs(cluster, where, code))


def _tell_xid(cluster: ChaosCluster, gpu: Gpu, code: int) -> None:
    domain, rest = gpu.bus.split(":", 1)
    bus = f"{domain}:{rest.partition('.')[0]}"
    cluster.scene.tell(gpu.node, f"NVRM: Xid (PCI:{bus}): {code}, pid=<unknown>, name=<unknown>, in a rehearsal")


def _xid_signs(cluster: ChaosCluster, where: str, code: int) -> tuple[Sign, ...]:
    kind = class_of(code)
    if kind in (XidClass.NOTHING, XidClass.APPLICATION):
        return ()
    signs = (_finding(cluster, "xid", where, within_s=15.0),)
    return signs if kind is XidClass.NOTICE else (*signs, *_fenced(cluster, where))


def _played(kind: FaultKind, what: str, detector: str, within_s: float) -> Callable[[ChaosCluster, str], Blow]:
    def prepare(cluster: ChaosCluster, target: str) -> Blow:
        gpu = cluster.gpu(target)

        def strike(number: int, until: float) -> Undo:
            cluster.scene.begin(str(number), PlayedFault(kind, gpu.node, gpu.number, until))
            if kind == "lost":
                _tell_xid(cluster, gpu, 79)
            return Undo(scene=str(cluster.scene.folder))

        signs: tuple[Sign, ...] = (_finding(cluster, detector, target, within_s),)
        if kind != "throttle":
            signs += _fenced(cluster, target)
        return Blow(f"{target} {what}", strike, signs)

    return prepare


# -- disks, ports, checkpoints --------------------------------------------------------------------------------------


def _disk(cluster: ChaosCluster, target: str) -> Blow:
    folder = Path(target)
    if not folder.is_dir() or folder.stat().st_uid != os.geteuid():
        raise CommandFailure(f"{target} is no folder of yours")
    if folder.stat().st_dev in {os.stat(place).st_dev for place in ("/", "/tmp", cluster.paths.home)}:
        raise CommandFailure(
            f"{target} is on the file system of this machine, or of the cluster's home: others would stand still too",
            hint="give the rehearsal a small one of its own (mount -t tmpfs -o size=64m none FOLDER) and fill that",
        )

    def strike(number: int, until: float) -> Undo:
        file = folder / f".bireme-chaos-{number}"
        _fill(file)
        return Undo(filled=str(file))

    def is_full() -> str | None:
        room = os.statvfs(folder)
        return f"{room.f_bavail * room.f_frsize} bytes are free" if room.f_bavail == 0 else None

    return Blow(f"the file system of {target} is full", strike, (Sign("nothing is free there", 5.0, is_full),))


def _fill(file: Path) -> None:
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for size in (_BLOCK, 4096, 1):
            try:
                while os.write(opened, b"\1" * size):
                    pass
            except OSError:
                continue
    finally:
        os.close(opened)


def _port(cluster: ChaosCluster, target: str) -> Blow:
    if not target.isascii() or not target.isdigit() or not 0 < int(target) < 65536:
        raise CommandFailure(f"{target!r} is no port: that of MASTER_PORT, as 29500")
    taken = socket.socket()
    try:
        taken.bind(("0.0.0.0", int(target)))
        taken.listen()
    except OSError as error:
        taken.close()
        raise CommandFailure(f"port {target} cannot be taken: {error.strerror}") from error

    def is_taken() -> str | None:
        with socket.socket() as other:
            try:
                other.bind(("0.0.0.0", int(target)))
            except OSError as error:
                return str(error.strerror)
        return None

    what = f"port {target} of this machine, and of all virtual nodes on it, is taken"
    sign = Sign("nobody else can have it", 5.0, is_taken)
    return Blow(what, lambda number, until: Undo(), (sign,), held=(taken.detach(),))


def _checkpoint(cluster: ChaosCluster, target: str) -> Blow:
    job = cluster.job(target)
    found = job.get("checkpoint")
    if found is None:
        raise CommandFailure(f"no whole checkpoint of job {target} is known: bireme checkpoint --show {target}")
    file = _to_cut(Path(found["path"]))
    kept = Path(cluster.paths.chaos)

    def strike(number: int, until: float) -> Undo:
        return Undo(cut=_cut(file, kept / f"{number}.kept"))

    def is_passed_over() -> str | None:
        now = cluster.now_of(job["job_id"]).get("checkpoint")
        if now is None:
            return "none is whole"
        return f"{now['path']} is taken" if now["path"] != found["path"] else None

    sign = Sign(f"{found['path']} is not taken any more", 90.0, is_passed_over)
    return Blow(f"{file} is cut short", strike, (sign,))


def _to_cut(path: Path) -> Path:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    files = [each for each in files if each.stat().st_uid == os.geteuid() and each.stat().st_size]
    if not files:
        raise CommandFailure(f"{path}: nothing of yours is there that could be damaged")
    marks = [each for each in files if each.name in _MARKS]
    return marks[0] if marks else max(files, key=lambda each: each.stat().st_size)


def _cut(file: Path, kept: Path) -> Cut:
    """Its end is kept apart; of a file without which nothing is whole all of it."""
    state = file.stat()
    is_mark = file.name in _MARKS
    size = 0 if is_mark else max(state.st_size - _CUT_BYTES, state.st_size // 2)
    with file.open("rb") as opened:
        opened.seek(size)
        kept.touch(mode=0o600)
        kept.write_bytes(opened.read())
    if is_mark:
        file.unlink()
    else:
        os.truncate(file, size)
    return Cut(str(file), str(kept), size, state.st_mode & 0o777, was_removed=is_mark)


# -- signs ----------------------------------------------------------------------------------------------------------


def _ended_or_again(cluster: ChaosCluster, job: int) -> Sign:
    before = cluster.now_of(job)["restarts"]

    def seen() -> str | None:
        now = cluster.now_of(job)
        if now["restarts"] > before:
            return f"it is {now['state']}, start {now['restarts'] + 1}"
        return f"it is {now['state']}" if is_over(now["state"]) else None

    return Sign(f"job {job} ends as failed, or is started again where it asked for that", 60.0, seen)


def _finding(cluster: ChaosCluster, detector: str, place: str, within_s: float) -> Sign:
    known = {each["id"] for each in cluster.findings()}

    def seen() -> str | None:
        for each in cluster.findings():
            if (
                each["detector"].split(".")[0] == detector
                and each["place"].startswith(place)
                and each["id"] not in known
            ):
                return f"finding {each['id']}: {each['title']}"
        return None

    return Sign(f"a finding of {detector} about {place.removesuffix('.')}", within_s, seen)


def _any_about(cluster: ChaosCluster, node: str, line: str) -> str | None:
    for each in cluster.findings():
        if each["node"] == node and any(line[:100] in quote["text"] for quote in each["evidence"]):
            return f"finding {each['id']}: {each['title']}"
    return None


def _fenced(cluster: ChaosCluster, where: str) -> tuple[Sign, ...]:
    if cluster.mode not in ("auto", "act"):
        return ()
    node = where.partition(":")[0]

    def seen() -> str | None:
        return next((fence for fence in cluster.fences() if fence in (where, node)), None)

    return (Sign(f"{where} is fenced", 20.0, seen),)


KINDS = (
    Kind("kill", "JOB[.STEP.RANK]", "kills a rank of a job",
         "the job fails, or runs again from its checkpoint, where its other ranks notice (srun -K)", _kill),
    Kind("freeze", "JOB[.STEP.RANK]", "stops a rank: it is there, and does nothing",
         "a finding of hang within a minute, where GPUs are measured; then a restart", _freeze, lasts_s=300.0),
    Kind("node", "NODE", "kills a node with all that runs there", "its jobs are queued again; it is back in seconds",
         _node),
    Kind("network", "NODE", "cuts a node off; what runs there runs on",
         "NOT_RESPONDING within 80 s, no new work; after SlurmdTimeout its jobs run elsewhere",
         _network, lasts_s=180.0),
    Kind("kernel", '"NODE LINE"', "has a node's kernel say a line (rehearsals)", "a finding, if a detector knows it",
         _kernel),
    Kind("xid", '"NODE:gpuN [xid:CODE]"', "has a GPU's driver tell an Xid, 79 without a number (rehearsals)",
         "a finding within a second; the GPU is fenced, if the Xid is no program's", _xid),
    Kind("throttle", "NODE:gpuN", "has a busy GPU get hot and slow (rehearsals)",
         "a finding of throttle after throttle_s, if three of its model are busy",
         _played("throttle", "is hot", "throttle", 90.0), lasts_s=300.0),
    Kind("lost", "NODE:gpuN", "takes a GPU off the bus (rehearsals)", "findings of xid and off_the_bus; it is fenced",
         _played("lost", "falls off the bus", "off_the_bus", 30.0), lasts_s=300.0),
    Kind("ecc", "NODE:gpuN", "has a GPU meet a memory error (rehearsals)",
         "a finding of ecc in one round; it is fenced",
         _played("ecc", "meets an uncorrected memory error", "ecc", 30.0), lasts_s=300.0),
    Kind("disk", "FOLDER", "fills the file system of a folder", "what writes there fails, diagnosed as storage_full",
         _disk, lasts_s=60.0),
    Kind("port", "PORT", "takes the port of a rendezvous (MASTER_PORT)", "jobs that want it fail, as port_in_use",
         _port, lasts_s=60.0),
    Kind("checkpoint", "JOB", "cuts the newest checkpoint of a job short", "the one before it is taken",
         _checkpoint, lasts_s=300.0),
)  # fmt: skip
