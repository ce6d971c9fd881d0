"""Keeping track of processes through /proc alone: trees, orphans, kills, samples.

The agent uses it where no cgroup may be had, and after a restart to find what an earlier agent started.
It reads /proc afresh at every call and caches nothing.

A pid alone is never enough to signal something remembered: pids are used again. What must outlive a moment
is a `ProcessIdentity`, and signals to one go through a pidfd whose start time was checked.

Invariant: no signal reaches a process other than the one meant. Not for accounting of the final figures:
`reaper` has them from the kernel.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from bireme.agent.system.usage import TaskUsage

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
_EXEC_LOOKS = 20
_EXEC_PAUSE_S = 0.001
_KILL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for all time: a pid, when it started, and in which boot of the machine."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One line of the process table."""

    pid: int
    ppid: int
    group: int
    session: int
    state: str
    threads: int
    start_ticks: int
    user_ticks: int
    system_ticks: int
    vsize_bytes: int
    rss_pages: int

    @property
    def is_dead(self) -> bool:
        """A process whose first thread ended looks like a zombie while its other threads run on."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks, boot_id())


@dataclass(frozen=True, slots=True)
class Stray:
    """A process that an earlier agent left, and the job marker it still carries."""

    process: ProcessIdentity
    marker: str


# --- reading -----------------------------------------------------------------------------------------------


def read_process(pid: int) -> ProcessEntry | None:
    """The process's entry, or None when there is no such process (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command name may hold spaces and parentheses: the fields start after the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessEntry(
        pid=pid,
        state=fields[0].decode(),
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        user_ticks=int(fields[11]) + int(fields[13]),  # its own and its waited-for children's
        system_ticks=int(fields[12]) + int(fields[14]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        vsize_bytes=int(fields[20]),
        rss_pages=int(fields[21]),
    )


def process_table() -> dict[int, ProcessEntry]:
    """Every process this one may see."""
    entries = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {entry.pid: entry for entry in entries if entry is not None}


def owned_by(uid: int) -> list[int]:
    """The pids of a user's processes that live."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        lines = dict(line.split(b":", 1) for line in _read(f"/proc/{pid}/status").splitlines() if b":" in line)
        if lines and int(lines[b"Uid"].split()[0]) == uid and lines[b"State"].split()[0] != b"Z":
            found.append(pid)
    return found


def command_words(pid: int) -> list[bytes]:
    """The words of its command line; none of a process that ended. Whoever runs it chose them."""
    return _read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def process_identity(pid: int) -> ProcessIdentity | None:
    """What to remember of a process; None when it is gone."""
    entry = read_process(pid)
    return entry.identity if entry is not None else None


def is_alive(process: ProcessIdentity) -> bool:
    """Whether this very process still runs; a zombie does not."""
    entry = read_process(process.pid)
    return entry is not None and not entry.is_dead and entry.identity == process


def environment_value(pid: int, variable: str) -> str | None:
    """A variable of the environment the process was started with; None when absent or not readable."""
    block = _environment(pid)
    prefix = f"{variable}=".encode()
    for item in block.split(b"\0"):
        if item.startswith(prefix):
            return item[len(prefix) :].decode(errors="replace")
    return None


def _environment(pid: int) -> bytes:
    """In the middle of an exec a process has none for a moment: a living one is looked at again."""
    for _ in range(_EXEC_LOOKS):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                block = file.read()
        except OSError:
            return b""
        if block:
            return block
        entry = read_process(pid)
        if entry is None or entry.is_dead:
            return b""
        time.sleep(_EXEC_PAUSE_S)
    return b""


# --- finding -----------------------------------------------------------------------------------------------


def descendants(root_pids: Iterable[int], table: dict[int, ProcessEntry] | None = None) -> set[int]:
    """The processes below the roots, the roots left out. Dead ones are followed but not returned."""
    table = process_table() if table is None else table
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in table.values():
        children[entry.ppid].append(entry.pid)
    found: set[int] = set()
    waiting = list(root_pids)
    while waiting:
        for child in children[waiting.pop()]:
            if child not in found:
                found.add(child)
                waiting.append(child)
    return {pid for pid in found if not table[pid].is_dead}


def living_below(pids: Iterable[int]) -> set[ProcessIdentity]:
    """Every living process below these, by one look at the process table."""
    pids = list(pids)
    assert all(pid > 1 for pid in pids), "below the first process is the whole machine"
    table = process_table()
    return {table[pid].identity for pid in descendants(pids, table)}


def own_children() -> set[int]:
    """The children of this process, zombies too. Nearly free when there is none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    try:
        return {pid for thread in os.listdir("/proc/self/task") for pid in _children_of_thread(thread)}
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN: look at everybody's parent
        agent = os.getpid()
        return {int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(int(name)) == agent}


def parent_of(pid: int) -> int:
    """The parent alone, in a third of the time that `read_process` takes; 0 when the process is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return 0
    try:
        text = os.read(fd, 512)
    except OSError:  # it ended between the two calls
        return 0
    finally:
        os.close(fd)
    return int(text[text.rindex(b")") + 2 :].split(None, 2)[1])


def newest_pid() -> int:
    """The pid that was given out last. They are given out in order, and start over at the end."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[-1])


def _children_of_thread(thread: str) -> list[int]:
    with open(f"/proc/self/task/{thread}/children", "rb") as file:
        return list(map(int, file.read().split()))


def find_marked(variable: str, value: str | None = None) -> list[Stray]:
    """Every process on the machine that carries the marker, whoever its parent is.

    How a restarted agent finds what an earlier one left. Reads every environment: not for a hot loop. An
    agent without root must look before it enters its node: from inside one user namespace the kernel shows
    no environment of a process in another, though both are the same user's.
    """
    found = []
    for entry in process_table().values():
        if entry.is_dead or not entry.vsize_bytes:  # a thread of the kernel's: it has no environment
            continue
        marker = environment_value(entry.pid, variable)
        if marker is not None and value in (None, marker):
            found.append(Stray(entry.identity, marker))
    return found


# --- signalling --------------------------------------------------------------------------------------------


def send_signal(process: ProcessIdentity, signal_number: int) -> bool:
    """Signal this very process; False when it has ended or may not be signalled."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The descriptor pins whoever has the pid now; after that, its identity cannot change under us.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(pidfd, signal_number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def signal_all(processes: Iterable[ProcessIdentity], signal_number: int) -> int:
    """Signal each once, the oldest first; returns how many were reached.

    A shell whose child dies of the signal before it is reached itself would go on to its next command.
    """
    oldest_first = sorted(processes, key=lambda process: (process.start_ticks, process.pid))
    return sum(send_signal(process, signal_number) for process in oldest_first)


def signal_tree(roots: Iterable[ProcessIdentity], signal_number: int) -> int:
    """Signal the roots and all below them once, the oldest first; returns how many were reached."""
    return signal_all(_living_tree(roots), signal_number)


def kill_tree(roots: Iterable[ProcessIdentity], *, sessions: bool = True) -> bool:
    """SIGKILL the roots, all below them and (with `sessions`) all in the roots' sessions.

    Repeats while new ones appear, since a process may fork between our look and our blow. True when nothing
    of the tree was left at the end; False when something stays (it cannot be killed, or forks too fast).
    The dead stay zombies until their parent waits for them.
    """
    roots = list(roots)
    doomed = set(roots)
    for _ in range(_KILL_ROUNDS):
        alive = _living_tree(doomed, roots if sessions else ())
        if not alive:
            return True
        doomed |= alive
        signal_all(alive, signal.SIGKILL)
    return False


def _living_tree(
    roots: Iterable[ProcessIdentity], session_leaders: Iterable[ProcessIdentity] = ()
) -> set[ProcessIdentity]:
    table = process_table()
    true_roots = [root for root in roots if root.pid in table and table[root.pid].identity == root]
    pids = {root.pid for root in true_roots} | descendants((root.pid for root in true_roots), table)
    for leader in session_leaders:
        pids |= _session_members(leader, table)
    pids.discard(os.getpid())
    return {table[pid].identity for pid in pids if not table[pid].is_dead}


def _session_members(leader: ProcessIdentity, table: dict[int, ProcessEntry]) -> set[int]:
    """The processes in the session this leader opened.

    While the leader is in the table the session number is proof. Once it is gone the number may, in theory,
    have been used again, so that only orphans which the kernel handed to this agent count.
    """
    members = {entry.pid for entry in table.values() if entry.session == leader.pid}
    if not members:
        return members
    if leader.pid in table:
        return members if table[leader.pid].identity == leader else set()
    return members & descendants([os.getpid()], table)


# --- sampling ----------------------------------------------------------------------------------------------


def sample_usage(pids: Iterable[int]) -> TaskUsage:
    """What these processes use together right now; those that have ended count nothing.

    Here `max_rss_kib` and `max_vsize_kib` are the sums of this moment: join samples with `peak_with`.
    """
    user = system = vsize_bytes = rss_pages = read = written = 0
    for pid in pids:
        entry = read_process(pid)
        if entry is None or entry.is_dead:
            continue
        user += entry.user_ticks
        system += entry.system_ticks
        vsize_bytes += entry.vsize_bytes
        rss_pages += entry.rss_pages
        io = _read_io(pid)
        read += io.get("rchar", 0)
        written += io.get("wchar", 0)
    return TaskUsage(
        user_cpu_s=user / _TICKS_PER_S,
        system_cpu_s=system / _TICKS_PER_S,
        max_rss_kib=rss_pages * _PAGE_KIB,
        max_vsize_kib=vsize_bytes // 1024,
        read_bytes=read,
        written_bytes=written,
    )


def _read_io(pid: int) -> dict[str, int]:
    try:
        with open(f"/proc/{pid}/io", encoding="utf-8") as file:
            return {name: int(value) for name, value in (line.split(":") for line in file)}
    except OSError:  # gone, or not ours to look at
        return {}


@cache
def boot_id() -> str:
    """Which boot of the machine this is."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
