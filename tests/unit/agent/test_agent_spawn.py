"""Starting processes: what the child gets, what is left behind, what failure looks like."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import resource
import select
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.agent.starting.spawn import Birth, SpawnError, TaskFile, close_on_exec_from_here, spawn
from bireme.agent.starting.swift import spawn_swiftly
from bireme.agent.system.identity import Identity
from bireme.agent.system.output import OpenFileError, open_input, open_output, open_stream

NOBODY = Identity(65534, 65534, (65534,))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for others")
ENV = {"PATH": "/usr/bin:/bin"}
EVERY_PATH = pytest.mark.parametrize(
    "path", [{"sure": True}, {"sure": False}, {"swift": True}], ids=["shell", "exact", "swift"]
)
"""Whose program is sure to start may be begun by a shell, or swiftly by a keeper; all must mean the same."""
WAITING_PATH = pytest.mark.parametrize("path", [{"sure": True}, {"sure": False}], ids=["shell", "exact"])
"""Those that may be held up by a file."""


@pytest.fixture
def null_fd() -> Iterator[int]:
    fd = os.open("/dev/null", os.O_RDWR)
    yield fd
    os.close(fd)


def children() -> set[str]:
    """Pids of this process's children, dead ones too. Other tests of this process may have theirs."""
    threads = Path("/proc/self/task").iterdir()
    return {pid for thread in threads for pid in (thread / "children").read_text().split()}


def run(argv: list[str], null_fd: int, **options: object) -> tuple[int, str]:
    """Exit status and everything the program wrote to stdout and stderr, through a file as a batch script does."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        output = TaskFile("stdout", f"{folder}/out", "truncate")
        streams = {"stdin": TaskFile("stdin", "/dev/null", "read"), "stdout": output, "stderr": output}
        env, swift = options.pop("env", ENV), options.pop("swift", False)
        birth = Birth(argv=argv, env=env, **{**streams, **options})  # type: ignore[arg-type]
        pid = spawn_swiftly(birth) if swift else None
        status = finish(birth) if pid is None else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        path = Path(output.path)
        return status, path.read_text() if path.exists() else ""


def finish(birth: Birth) -> int:
    """Runs it to its end, by the shell where that suits and exactly where the shell gave up. Raises SpawnError."""
    for by_shell in (True, False):
        spawned = spawn(birth, by_shell=by_shell)
        while not spawned.read_report():
            select.select([spawned.report_fd], [], [])
        os.close(spawned.report_fd)
        status = os.waitstatus_to_exitcode(os.waitpid(spawned.pid, 0)[1])
        if failure := spawned.failure():
            raise failure
        if not spawned.shell_gave_up:
            return status
    raise AssertionError("the exact path never gives up")


@EVERY_PATH
def test_child_gets_arguments_environment_directory_umask_and_own_session(path, null_fd, tmp_path):
    script = 'echo "$1|$COLOR|$(pwd -P)|$(umask)"; ps -o sid= -p $$ | tr -d " "; echo $$'
    before = os.getcwd(), os.umask(0o022)
    status, text = run(
        ["bash", "-c", script, "bash", "a b"],
        null_fd,
        env={**ENV, "COLOR": "blue"},
        cwd=str(tmp_path),
        umask=0o077,
        **path,
    )
    first, session, pid = text.split("\n")[:3]
    assert status == 0
    assert first == f"a b|blue|{tmp_path.resolve()}|0077"
    assert session == pid
    assert (os.getcwd(), os.umask(before[1])) == (before[0], 0o022), "the agent's own state must be as before"


@EVERY_PATH
def test_missing_directory_falls_back_to_tmp_with_slurms_message(path, null_fd):
    _, text = run(["pwd"], null_fd, cwd="/no/such/directory", **path)
    assert text == (
        "slurmstepd: error: couldn't chdir to `/no/such/directory': No such file or directory:"
        " going to /tmp instead\n/tmp\n"
    )


@EVERY_PATH
def test_cpu_binding_is_the_childs_alone(path, null_fd):
    own = os.sched_getaffinity(0)
    one = min(own)
    _, text = run(["sh", "-c", "grep Cpus_allowed_list /proc/self/status"], null_fd, cpu_ids=frozenset([one]), **path)
    assert text.split() == ["Cpus_allowed_list:", str(one)]
    assert os.sched_getaffinity(0) == own


@EVERY_PATH
def test_impossible_cpus_are_an_error_and_leave_no_process(path, null_fd):
    before = children()
    with pytest.raises(SpawnError, match=r"CPUs 1000|could not set up"):
        run(["true"], null_fd, cpu_ids=frozenset([1000]), **path)
    assert children() <= before


@pytest.mark.parametrize(
    ("content", "mode", "number", "message"),
    [
        (None, 0, errno.ENOENT, "execve(): {path}: No such file or directory"),
        ("echo no interpreter\n", 0o755, errno.ENOEXEC, "execve(): {path}: Exec format error"),
        ("#!/bin/sh\n", 0o644, errno.EACCES, "execve(): {path}: Permission denied"),
        (
            "#!/no/interp\n",
            0o755,
            errno.ENOENT,
            "execve(): bad interpreter(/no/interp): No such file or directory",
        ),
    ],
)
def test_what_cannot_be_executed_is_told_in_slurms_words(content, mode, number, message, null_fd, tmp_path):
    before = children()
    program = tmp_path / "program"
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    with pytest.raises(SpawnError) as caught:
        run([str(program)], null_fd)
    assert str(caught.value) == message.format(path=program)
    assert (caught.value.stage, caught.value.errno, caught.value.exit_code) == ("execve", number, number)
    assert children() <= before


@EVERY_PATH
def test_program_is_searched_in_the_tasks_path(path, null_fd, tmp_path):
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    assert run(["only-here"], null_fd, env={"PATH": f"/nowhere:{tmp_path}:/bin"}, **path) == (0, "found\n")
    with pytest.raises(SpawnError, match="execve\\(\\): only-here: No such file"):
        run(["only-here"], null_fd)


@EVERY_PATH
def test_nul_byte_is_an_error_not_a_crash(path, null_fd):
    with pytest.raises(SpawnError):
        run(["echo", "a\0b"], null_fd, **path)


@EVERY_PATH
def test_ignored_and_blocked_signals_do_not_reach_the_child(path, null_fd):
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        _, text = run(["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"], null_fd, **path)
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    blocked, ignored = (int(word, 16) for word in text.split()[1::2])
    libc_internal = 1 << 31 | 1 << 32  # signals 32 and 33: no program can set them
    assert (blocked, ignored & ~libc_internal) == (0, 0)


@EVERY_PATH
def test_extra_descriptors_arrive_at_their_numbers_and_no_other(path, null_fd):
    close_on_exec_from_here()  # what the test run itself inherited, as an agent does when it starts
    read_fd, write_fd = os.pipe()
    script = "echo through >&9; ls /proc/self/fd | tr '\\n' ' '"
    _, text = run(["bash", "-c", script], null_fd, extra_fds={9: write_fd}, **path)
    os.close(write_fd)
    with open(read_fd, encoding="utf-8") as pipe:
        assert pipe.read() == "through\n"
    assert text.split() == ["0", "1", "2", "3", "9"]  # 3 is the listing's own directory


@EVERY_PATH
def test_descriptors_that_overwrite_each_other_are_kept_apart(path, null_fd, tmp_path):
    """Two of our descriptors change places on their way to the child."""
    paths = [tmp_path / "one", tmp_path / "two"]
    originals = [os.open(path, os.O_WRONLY | os.O_CREAT) for path in paths]
    one, two = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 50) for fd in originals)
    try:
        script = f"echo first >&{one}; echo second >&{two}"
        run(["bash", "-c", script], null_fd, extra_fds={one: two, two: one}, **path)
    finally:
        for fd in (one, two, *originals):
            os.close(fd)
    assert [path.read_text() for path in paths] == ["second\n", "first\n"]


def test_limits_that_equal_our_own_keep_the_fast_path_and_others_apply(null_fd):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert run(["bash", "-c", "ulimit -n"], null_fd, rlimits={resource.RLIMIT_NOFILE: (soft, hard)}) == (
        0,
        f"{soft}\n",
    )
    _, text = run(["bash", "-c", "ulimit -n; ulimit -Hn"], null_fd, rlimits={resource.RLIMIT_NOFILE: (64, 128)})
    assert text == "64\n128\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_niceness_applies(null_fd):
    _, text = run(["nice"], null_fd, nice=os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert int(text) == os.getpriority(os.PRIO_PROCESS, 0) + 3


def test_controlling_terminal(null_fd):
    ours, theirs = pty.openpty()
    birth = Birth(
        argv=["sh", "-c", "echo hello >/dev/tty"],
        env=ENV,
        stdin=theirs,
        stdout=null_fd,
        stderr=null_fd,
        controlling_tty=True,
    )
    pid = spawn(birth).pid
    os.close(theirs)
    assert os.read(ours, 100) == b"hello\r\n"
    assert os.waitpid(pid, 0)[1] == 0  # before the terminal hangs up on it
    os.close(ours)


def test_joins_files_before_running(null_fd, tmp_path):
    """A cgroup.procs file is entered by writing 0 into it; an ordinary file shows that this happens."""
    groups = [tmp_path / "one.procs", tmp_path / "two.procs"]
    for sure in (True, False):
        for group in groups:
            group.write_text("")
        run(["/bin/true"], null_fd, join_files=list(map(str, groups)), sure=sure)
        assert [group.read_text().strip() for group in groups] == ["0", "0"]
    with pytest.raises(SpawnError) as caught:
        run(["true"], null_fd, join_files=[str(tmp_path / "gone")])
    assert (caught.value.stage, caught.value.errno) == ("join cgroup", errno.ENOENT)


@needs_root
def test_task_of_another_user_has_all_of_their_ids_and_none_of_ours(null_fd):
    _, text = run(["grep", "-E", "^(Uid|Gid|Groups|CapEff|CapPrm)", "/proc/self/status"], null_fd, identity=NOBODY)
    fields = {line.split(":")[0]: line.split()[1:] for line in text.splitlines()}
    assert fields["Uid"] == fields["Gid"] == ["65534"] * 4
    assert fields["Groups"] == ["65534"]
    assert fields["CapEff"] == fields["CapPrm"] == ["0" * 16]


@needs_root
def test_directory_is_entered_with_the_users_rights(null_fd, tmp_path):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    _, text = run(["pwd"], null_fd, identity=NOBODY, cwd=str(private))
    assert "Permission denied: going to /tmp instead\n/tmp\n" in text


def test_other_identity_without_root_is_refused(null_fd):
    def attempt() -> bytes:
        try:
            run(["true"], null_fd, identity=Identity(12345, 12345, ()))
        except SpawnError as error:
            return f"{error.stage} {error.errno}".encode()
        return b"started"

    assert in_child_as_nobody(attempt) == f"change user {errno.EPERM}".encode()


# --- opening a task's files ---------------------------------------------------------------------------------


def test_output_truncates_or_appends(tmp_path):
    path = tmp_path / "out"
    for mode, text in (("truncate", b"one"), ("append", b"two"), ("truncate", b"3")):
        before = path.read_bytes() if path.exists() else b""
        fd = open_output(str(path), mode)  # type: ignore[arg-type]
        os.write(fd, text)
        assert not os.get_inheritable(fd)
        os.close(fd)
        assert path.read_bytes() == (before + text if mode == "append" else text)


def test_output_makes_its_folder(tmp_path):
    os.close(open_output(str(tmp_path / "logs" / "1" / "out"), "truncate", umask=0o027))
    assert stat.S_IMODE((tmp_path / "logs" / "1").stat().st_mode) == 0o750


def test_output_in_a_folder_that_is_left_to_others_says_which_file(tmp_path):
    with pytest.raises(OpenFileError) as caught:
        open_stream(str(tmp_path / "missing" / "out"), "truncate", stream="stdout", make_folders=False)
    assert str(caught.value) == f"Could not open stdout file {tmp_path}/missing/out: No such file or directory"
    assert caught.value.errno == errno.ENOENT
    assert not (tmp_path / "missing").exists()


def test_umask_of_the_job_decides_the_mode(tmp_path):
    os.close(open_output(str(tmp_path / "out"), "truncate", umask=0o027))
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_a_fifo_without_reader_does_not_block_a_daemon(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OpenFileError):
        open_output(str(tmp_path / "fifo"), "truncate")
    fd = open_input(str(tmp_path / "fifo"))
    assert os.get_blocking(fd)
    os.close(fd)


@WAITING_PATH
def test_a_fifo_is_waited_for_by_the_child_alone_and_sees_no_end_before_the_programs(path, null_fd, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    output = TaskFile("stdout", str(tmp_path / "fifo"), "truncate")
    stdin = TaskFile("stdin", "/dev/null", "read")
    birth = Birth(argv=["/bin/echo", "hello"], env=ENV, stdin=stdin, stdout=output, stderr=output, **path)
    spawned = spawn(birth)  # returns, though nobody reads
    with open(tmp_path / "fifo", encoding="utf-8") as reader:
        assert reader.read() == "hello\n"
    assert os.waitpid(spawned.pid, 0)[1] == 0
    os.close(spawned.report_fd)


@WAITING_PATH
def test_a_child_that_waits_holds_nothing_of_its_parents(path, tmp_path):
    """Another task's stdin would not end while it waits."""
    os.mkfifo(tmp_path / "fifo")
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    output = TaskFile("stdout", str(tmp_path / "fifo"), "truncate")
    birth = Birth(argv=["/bin/true"], env=ENV, stdin=output, stdout=output, stderr=output, **path)
    spawned = spawn(birth)
    os.close(write_fd)
    assert os.read(read_fd, 1) == b"", "the child has closed what is not its own"
    os.close(read_fd)
    os.kill(spawned.pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(spawned.pid, 0)[1]) == -signal.SIGTERM
    os.close(spawned.report_fd)


@EVERY_PATH
def test_a_file_that_cannot_be_opened_is_named(path, null_fd, tmp_path):
    wrong = TaskFile("stderr", str(tmp_path), "append")
    with pytest.raises(SpawnError) as caught:
        run(["/bin/true"], null_fd, stderr=wrong, **path)
    assert str(caught.value) == f"Could not open stderr file {tmp_path}: Is a directory"
    assert caught.value.stage == "open files"


@EVERY_PATH
def test_variables_that_a_shell_keeps_for_itself_are_the_submitters(path, null_fd, tmp_path):
    for given in ({}, {"PWD": "/somewhere", "OLDPWD": "/before"}):
        _, text = run(["/usr/bin/env"], null_fd, env={**ENV, **given}, cwd=str(tmp_path), **path)
        shown = dict(line.split("=", 1) for line in text.splitlines())
        assert shown == {**ENV, **given}


@needs_root
def test_root_opens_files_with_the_users_rights_only(null_fd, tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    os.chown(theirs, NOBODY.uid, NOBODY.gid)
    ours.mkdir(mode=0o700)
    run(["true"], null_fd, stdout=TaskFile("stdout", str(theirs / "out"), "truncate"), identity=NOBODY)
    assert (theirs / "out").stat().st_uid == NOBODY.uid
    with pytest.raises(SpawnError, match="Permission denied"):
        run(["true"], null_fd, stdout=TaskFile("stdout", str(ours / "out"), "truncate"), identity=NOBODY)


def in_child_as_nobody(action) -> bytes:
    """The bytes the action returns when run without privileges, in a child of its own."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            os.write(write_fd, action())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return result


@EVERY_PATH
def test_a_child_may_be_told_its_own_pid(path, null_fd):
    _, text = run(["bash", "-c", 'echo "$SLURM_TASK_PID $$"'], null_fd, pid_variable="SLURM_TASK_PID", **path)
    told, own = text.split()
    assert told == own


@EVERY_PATH
def test_variables_that_no_shell_would_name_reach_the_child_whichever_path_it_takes(path, null_fd):
    odd = {"BASH_FUNC_module%%": "() { echo loaded; }", "a.b": "1"}
    status, text = run(["bash", "-c", "module; env"], null_fd, env={**ENV, **odd}, pid_variable="ME", **path)
    assert status == 0
    assert text.startswith("loaded\n")
    assert "\na.b=1\n" in text
