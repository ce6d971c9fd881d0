"""Limits that bite: on whichever cgroup version this machine has, and only where it lets us."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import AgentProcess

from bireme.agent.confining.confinement import KINDS, Confinement, Limits, probe
from bireme.agent.confining.device_filter import DeviceId, deny_devices, device_program
from bireme.agent.confining.hierarchy import find_v1, find_v2
from bireme.agent.starting.spawn import Birth, spawn
from bireme.agent.system.capability import Capability

MIB = 1 << 20
FULL = DeviceId("c", 1, 7)  # /dev/full: always there, and nothing depends on it
ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def confinement() -> Iterator[Confinement]:
    opened, others = Confinement.open(f"bireme-test-{os.getpid()}"), children()
    yield opened
    for name in opened.existing():
        opened.group(name).kill()
        for pid in children() - others:
            os.waitpid(pid, 0)
        opened.group(name).remove()
    opened.close()


def require(confinement: Confinement, kind: str) -> None:
    if kind in confinement.refusals:
        pytest.skip(confinement.refusals[kind])


def children() -> set[int]:
    """Of this process, zombies too. Servers of other tests may be among them."""
    threads = Path("/proc/self/task").glob("*/children")
    return {int(pid) for thread in threads for pid in thread.read_text().split()}


def start(argv, stdin: int, stdout: int, stderr: int, group) -> int:
    join_files = group.join_files
    spawned = spawn(Birth(argv=argv, env=ENV, stdin=stdin, stdout=stdout, stderr=stderr, join_files=join_files))
    os.close(spawned.report_fd)
    return spawned.pid


def run_in(group, *argv: str) -> tuple[int, str]:
    """Wait status and output of a program in the group."""
    null, (read_fd, write_fd) = os.open("/dev/null", os.O_RDWR), os.pipe()
    pid = start(argv, null, write_fd, write_fd, group)
    os.close(write_fd)
    os.close(null)
    with open(read_fd, encoding="utf-8") as pipe:
        text = pipe.read()
    return os.waitpid(pid, 0)[1], text


def test_memory_limit_kills_and_is_told(confinement):
    require(confinement, "memory")
    confinement.create("job_1", Limits(memory_bytes=32 * MIB, swap_bytes=0))
    step = confinement.create("job_1/step_0", Limits())
    assert step.oom_kills() == 0
    # tail keeps the whole of an endless line in memory
    status, _ = run_in(step, "sh", "-c", "head -c 200M /dev/zero | tail")
    job = confinement.group("job_1")
    assert job.oom_kills() >= 1
    assert (job.memory_peak_bytes() or 32 * MIB) >= 16 * MIB
    assert os.waitstatus_to_exitcode(status) != 0
    assert job.remove()
    assert confinement.existing() == []


def test_enough_memory_is_no_oom(confinement):
    require(confinement, "memory")
    group = confinement.create("job_2", Limits(memory_bytes=64 * MIB, swap_bytes=0))
    assert run_in(group, "echo", "fine") == (0, "fine\n")
    assert group.oom_kills() == 0


def test_cpus(confinement):
    require(confinement, "cpus")
    one = max(os.sched_getaffinity(0))
    group = confinement.create("job_3", Limits(cpu_ids=(one,)))
    assert run_in(group, "grep", "Cpus_allowed_list", "/proc/self/status")[1].split()[1] == str(one)
    # What a task may set for itself stays within the group's CPUs.
    assert run_in(group, "taskset", "-c", "0-1023", "nproc")[1] == "1\n"


def test_denied_device_cannot_be_opened_and_others_can(confinement):
    require(confinement, "devices")
    group = confinement.create("job_4/step_0", Limits(denied_devices=(FULL,)))
    _, text = run_in(group, "sh", "-c", "head -c 1 /dev/zero | wc -c; head -c 1 /dev/full")
    assert text.startswith("1\n")
    assert "Operation not permitted" in text
    free = confinement.create("job_5", Limits())
    assert run_in(free, "sh", "-c", "head -c 1 /dev/full | wc -c") == (0, "1\n")


def test_limits_of_a_job_hold_in_its_steps(confinement):
    require(confinement, "devices")
    confinement.create("job_6", Limits(denied_devices=(FULL,)))
    step = confinement.create("job_6/step_1", Limits())
    assert "Operation not permitted" in run_in(step, "head", "-c", "1", "/dev/full")[1]


def test_kill_ends_everything_and_only_then_remove_works(confinement):
    if not confinement.enforced:
        pytest.skip("nothing can be confined here")
    group = confinement.create("job_7", Limits())
    null, (read_fd, write_fd) = os.open("/dev/null", os.O_RDWR), os.pipe()
    script = "setsid sleep 600 & sleep 600 & echo ready; exec sleep 600"
    argv = ["sh", "-c", script]
    leader = start(argv, null, write_fd, null, group)
    os.close(write_fd)
    assert os.read(read_fd, 10) == b"ready\n"
    assert len(group.pids()) == 3
    assert not group.remove()
    while not group.kill():  # False while one that was killed has not died yet
        os.sched_yield()
    assert os.read(read_fd, 10) == b"", "everybody who held the pipe is gone"
    assert os.waitpid(leader, 0)[1] == signal.SIGKILL
    os.close(read_fd)
    os.close(null)


def test_an_earlier_agents_groups_are_found(confinement):
    if not confinement.enforced:
        pytest.skip("nothing can be confined here")
    confinement.create("job_8", Limits())
    assert Confinement.open(confinement.name).existing() == ["job_8"]


def test_an_agent_that_ends_takes_its_own_folders_away(confinement, tmp_path):
    if not confinement.enforced:
        pytest.skip("nothing can be confined here")
    agent = AgentProcess(tmp_path, confine=dict.fromkeys(confinement.enforced, True))
    name = f"bireme-{zlib.crc32(os.fsencode(str(tmp_path))):08x}-n1"
    folders = {hierarchy.home / name for hierarchy in confinement.hierarchies.values()}
    assert all(folder.is_dir() for folder in folders)
    agent.close()
    assert not [folder for folder in folders if folder.exists()]


def test_create_again_is_harmless(confinement):
    require(confinement, "memory")
    for size in (64, 32, 128):
        confinement.create("job_9", Limits(memory_bytes=size * MIB, swap_bytes=0))
    assert confinement.group("job_9").oom_kills() == 0


def test_probe_says_for_each_kind_how_or_why_not():
    capabilities = probe()
    assert [c.name for c in capabilities] == [f"confine {kind}" for kind in KINDS]
    assert all(isinstance(c, Capability) and c.why for c in capabilities)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop from")
def test_without_root_everything_is_refused_in_words():
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(write_fd, "\n".join(f"{c.ok} {c.why}" for c in probe()).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, encoding="utf-8") as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(pid, 0)
    assert len(lines) == len(KINDS)
    assert all(line.startswith("False ") and len(line) > 20 for line in lines)


def test_unmounted_controllers_are_no_hierarchy():
    assert find_v1("no-such-controller") is None
    assert find_v2("no-such-controller") is None


# --- the BPF filter of cgroup v2, wherever a v2 tree is mounted ---------------------------------------------------


@pytest.fixture
def v2_group() -> Iterator[Path]:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    tree = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if tree is None:
        pytest.skip("no cgroup v2 tree is mounted")
    group = tree / f"bireme-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a cgroup: {error}")
    yield group
    group.rmdir()


def can_open(path: str, group: Path) -> int:
    """0, or the errno a process in the group gets."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            (group / "cgroup.procs").write_text("0")
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            code = error.errno or 255
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="device filters are root's")
def test_bpf_filter_denies_what_is_listed_and_nothing_else(v2_group):
    assert can_open("/dev/full", v2_group) == 0
    deny_devices(str(v2_group), [DeviceId("b", 1, 3), FULL, DeviceId("c", 195, 0)])
    assert can_open("/dev/full", v2_group) == errno.EPERM
    for path in ("/dev/null", "/dev/zero", "/dev/urandom"):
        assert can_open(path, v2_group) == 0
    deny_devices(str(v2_group), [DeviceId.of_file("/dev/zero")])
    assert can_open("/dev/full", v2_group) == errno.EPERM, "a second filter adds to the first"
    assert can_open("/dev/zero", v2_group) == errno.EPERM


def test_program_is_whole_instructions():
    assert len(device_program([])) == 6 * 8
    assert len(device_program([FULL, FULL])) == (6 + 2 * 5) * 8


def test_device_ids():
    assert DeviceId.of_file("/dev/full") == FULL
    assert str(FULL) == "c 1:7"
    with pytest.raises(ValueError, match="not a device file"):
        DeviceId.of_file("/etc/passwd")


def test_kernel_refusal_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match="bpf"):
        deny_devices(str(tmp_path), [FULL])  # no cgroup
    assert ctypes.get_errno() >= 0
