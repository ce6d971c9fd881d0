"""Commands that the daemon answers: the text and the exit code are those of the command that runs near, to the byte."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
import termios
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.api.conftest import Running

from bireme.api.errands import Errands, Stay, Told
from bireme.api.routes import commands
from bireme.api.serving.peers import Peer
from bireme.cli import main, thin
from bireme.client.transport import ApiError
from bireme.commands import parcels, reports
from bireme.commands.surroundings import around
from bireme.core.model.refusals import Caller

Said = tuple[int | None, str, str]

ALIKE = (
    "squeue", "squeue -h -o %i|%j|%T", "squeue -l -h", "squeue -O jobid,name:30", "squeue -j 1", "squeue -j 77",
    "squeue -j 1,77", "squeue -o %i%!%Z", "squeue --json -j 2", "squeue --yaml -j 2", "squeue --me -h",
    "squeue -u nobody-has-this-name", "squeue -s", "squeue -S x", "squeue --unknown", "squeue word", "squeue --help",
    "squeue --usage", "squeue -o %j -l", "squeue -w n1", "squeue -w n9", "squeue -M all", "squeue -M nowhere",
    "squeue -t all -r", "squeue -t nonsense", "squeue -o %65535j%65535j -j 1",
    "sinfo", "sinfo -N -l -h", "sinfo -R", "sinfo -T", "sinfo -O nodelist", "sinfo --json", "sinfo -p nowhere",
    "sacct -j 1", "sacct -j 1 -p", "sacct -X -n", "sacct -j x", "sacct -e", "sacct -j 1 -o jobid,nothing",
    "sacct -S nonsense", "sacct -j 1 --json", "sacct -B -j 1",
    "scontrol show job 1", "scontrol -o show job", "scontrol show job 77", "scontrol show job x",
    "scontrol show nodes", "scontrol show node n1,n9", "scontrol show partition", "scontrol show res", "scontrol show",
    "scontrol show nothing", "scontrol nothing", "scontrol --json show job 1", "scontrol show step",
    "scontrol show topology", "scontrol show assoc_mgr", "scontrol show lic", "scontrol -h", "scontrol show aliases",
    "scontrol show hostnames n[1-3]", "scontrol ping", "scontrol show config",
    "scancel", "scancel 77", "scancel -v 77", "scancel x", "scancel --bad", "scancel --help", "scancel -u nobody-here",
    "scancel -t nonsense -u root", "scancel -s NONE 1", "scancel 1_[x]", "scancel -M nowhere 1", "scancel -v -n none",
    "sbatch --bad", "sbatch --help", "sbatch nothere.sh", "sbatch .", "sbatch empty.sh", "sbatch --wrap true word",
    "sbatch -p nowhere train.sh", "sbatch -N x train.sh", "sbatch --export-file=nothere train.sh", "sbatch -vv --bad",
    "sbatch --nodefile=nothere train.sh", "sbatch nul.sh", "sbatch bad.sh", "sbatch --usage",
    "sprio", "sprio -j 1", "sshare", "sshare -a -l", "sshare -e", "sstat -j 1", "sstat", "sstat -e",
)  # fmt: skip
NEAR = (
    "squeue --iterate 5", "squeue -j 1_[0-4000000]", "squeue -o %65535j", "squeue -w n[1-60000]", "scontrol",
    "squeue -h -o %65535j", f"squeue -S {'i' * 40}", f"squeue -j {'1,' * 600}1", "sinfo -h -o %65535N",
    "sacct -n -o jobid%65535", f"sacct -P --delimiter={'x' * 99}", f"squeue -n {'x' * 20_000}", "sshare -o user%65535",
    "scontrol show hostnames n[1-3]", "scontrol ping", "scontrol wait_job 1", "scontrol write batch_script 1 -",
    "scontrol requeue 1", "scontrol listpids", "squeue --version", "srun true",
    "sbatch --export=NONE --wrap true", "sbatch --array=0-30000 --wrap true",
    "scancel -i 1", "squeue -w n[1-000000000000000000065536]", "sacct -N n[000000000000000000000001-65536]",
    f"squeue -u {','.join(f'nobody{number}' for number in range(300))}",
)  # fmt: skip


@pytest.fixture
def far(api: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """What the daemon says of a command line; None as the exit code where it has to run near."""
    monkeypatch.setenv("BIREME_HOME", api.home)
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SQUEUE_", "SINFO_", "SACCT_", "BIREME_JOB")):
            monkeypatch.delenv(name)

    def ask(line: str) -> Said:
        command, *argv = line.split()
        capfd.readouterr()
        code = thin.ask(command, argv)
        return (code, *capfd.readouterr())

    return ask


@pytest.fixture
def near(far: Callable[..., Said], capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(line: str) -> Said:
        command, *argv = line.split()
        capfd.readouterr()
        code = main.run(command, argv)
        return (code, *capfd.readouterr())

    return run


@pytest.fixture
def jobs(api: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#SBATCH -J from-file\ntrue\n")
    (tmp_path / "bad.sh").write_text("#!/bin/sh\n#SBATCH --nonsense\n")
    (tmp_path / "empty.sh").touch()
    (tmp_path / "nul.sh").write_bytes(b"#!/bin/sh\n\0\n")
    monkeypatch.chdir(tmp_path)
    for name in ("train", "\x1b[31mred\nline"):
        api.transport.post("/v1/jobs", {"spec": {"name": name, "script": ""}, "script": "#!/bin/sh\necho secret\n"})


@pytest.mark.usefixtures("jobs")
def test_the_daemon_says_what_the_command_says_near(far: Callable[..., Said], near: Callable[..., Said]) -> None:
    other = []
    for line in ALIKE:
        told = far(line)
        if told[0] is not None and told != near(line):
            other.append(line)
    assert other == []


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("line", NEAR)
def test_what_is_near_the_terminal_or_too_large_is_sent_back(far: Callable[..., Said], line: str) -> None:
    assert far(line) == (None, "", "")


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("line", ["squeue --json", "squeue --yaml", "sacct -a -S 1970-01-01 --json",
                                  "scontrol --json show job"])  # fmt: skip
def test_many_jobs_as_json_are_sent_back_before_they_are_made(
    far: Callable[..., Said], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_SHAPES", 1)
    assert far(line) == (None, "", "")


@pytest.mark.usefixtures("jobs")
def test_what_is_ordinary_is_answered_by_the_daemon(far: Callable[..., Said]) -> None:
    """Else the other tests would compare nothing."""
    sent_back = {line for line in ALIKE if far(line)[0] is None}
    assert sent_back == {"scontrol show hostnames n[1-3]", "scontrol ping", "squeue -o %65535j%65535j -j 1"}


@pytest.mark.parametrize("line", ["squeue -j {0}", "scontrol show job {0}", "sacct -j {0}", "squeue -j 1_{0}",
                                  "squeue -u {0}", "scancel -u {0}", "scancel {0}", "sstat -j {0}"])  # fmt: skip
def test_numbers_that_nobody_has_are_no_mishap(
    far: Callable[..., Said], near: Callable[..., Said], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = line.format("9" * 5000)
    assert far(asked) == near(asked)
    assert caplog.text == ""


def test_variables_that_are_no_numbers_count_for_nothing(
    far: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_BITSTR_LEN", "9" * 5000)
    monkeypatch.setenv("SLURM_EXIT_ERROR", "9" * 5000)
    assert far("squeue -h") == (0, "", "")
    assert far("scancel")[0] == 1


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("form", ["%3000000d", "%250Y" * 3200, "%c" * 80, "%_999d"])
@pytest.mark.parametrize("line", ["squeue -h -o %.20V", "sacct -n -P -o submit", "scontrol show job 1", "sinfo -R -h"])
def test_a_time_format_that_makes_much_text_is_sent_back(
    far: Callable[..., Said], line: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", form)
    assert far(line) == (None, "", "")


@pytest.mark.usefixtures("jobs")
def test_an_ordinary_time_format_is_not(
    far: Callable[..., Said], near: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%Y %02d %H:%M is a quarter past")
    assert far("squeue -h -o %V") == near("squeue -h -o %V")
    assert far("squeue -h -o %V")[1].count("is a quarter past") == 2


@pytest.mark.parametrize("line", ["squeue -h -o {0}", "sacct -a -n -P -S 1970-01-01 -o {1}"])
def test_values_that_are_asked_for_often_make_no_endless_line(
    api: Running, far: Callable[..., Said], line: str
) -> None:
    """No column cuts them: a thousand times the comment of a job is megabytes a line."""
    api.transport.post("/v1/jobs", {"spec": {"comment": "x" * 1000, "script": ""}, "script": "#!/bin/sh\n"})
    shown = far(line.format("%k" * 10, ",".join(["comment"] * 10)))
    assert shown[1].count("x") == 10_000
    assert far(line.format("%k" * 500, ",".join(["comment"] * 500))) == (None, "", "")


@pytest.mark.usefixtures("jobs")
def test_variables_count_as_they_do_near(
    far: Callable[..., Said], near: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i is %T")
    monkeypatch.setenv("SQUEUE_SORT", "-i")
    assert far("squeue -h") == near("squeue -h") == (0, "2 is PENDING\n1 is PENDING\n", "")


def test_the_daemon_is_told_the_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    assert b"TZ=" not in thin._said("squeue", ["-l"])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert b"TZ=Asia/Tokyo" in thin._said("squeue", ["-l"])


def test_the_daemon_sends_back_who_has_another_local_time(api: Running) -> None:
    sent = parcels.pack("v", b"TZ=Asia/Tokyo")
    answer = api.transport.request("POST", "/v1/commands/squeue", body=sent).body
    assert parcels.unpack(answer) == [(parcels.NEAR, b"")]


def test_who_can_wait_for_a_job_is_told_for_which_and_who_cannot_waits_near(api: Running) -> None:
    sent = b"".join(parcels.pack("a", word) for word in (b"--wait", b"--wrap=true")) + parcels.pack("d", b"/tmp")
    answer = api.transport.request("POST", "/v1/commands/sbatch", body=sent).body
    assert parcels.unpack(answer) == [(parcels.NEAR, b"")]
    assert api.transport.get("/v1/jobs")["jobs"] == []
    answer = api.transport.request("POST", "/v1/commands/sbatch", params={"waits": "yes"}, body=sent).body
    assert parcels.unpack(answer) == [
        (parcels.OUTPUT, b"Submitted batch job 1\n"), (parcels.AWAITED, b"1"), (parcels.EXIT, b"0")
    ]  # fmt: skip


@pytest.mark.usefixtures("jobs")
def test_a_change_is_made_once_and_by_its_caller(api: Running, far: Callable[..., Said]) -> None:
    assert far("scontrol hold 1") == (0, "", "")
    story = api.transport.get("/v1/jobs/1/story")["events"]
    held = [event for event in story if event["kind"] == "JobHeld"]
    assert [event["cause"] for event in held] == [f"uid {os.getuid()} scontrol"]
    code, _, errors = far("scontrol hold 77")
    assert (code, errors.splitlines()[0]) == (1, "Invalid job id specified for job 77")


@pytest.mark.parametrize(
    "body", [b"x", b"a 5\nab", b"aa 1\nx", b"a -1\n", b"z 0\n", b"a " + b"9" * 40 + b"\n", b"\xff", b"a 0\n" * 9000]
)
def test_what_is_no_parcel_is_refused(api: Running, body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        api.transport.request("POST", "/v1/commands/squeue", body=body)
    assert refused.value.status == 400


def test_there_are_no_other_commands(api: Running) -> None:
    with pytest.raises(ApiError) as refused:
        api.transport.request("POST", "/v1/commands/srun", body=b"")
    assert refused.value.status == 404


def test_a_command_that_fails_in_the_daemon_is_sent_back(
    far: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(argv: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setitem(commands.COMMANDS, "squeue", broken)
    assert far("squeue secret") == (None, "", "")
    assert "squeue failed" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.usefixtures("jobs")
def test_a_script_of_option_lines_is_not_read_to_its_end(
    far: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line would be an object of its own, in a daemon that serves nobody else meanwhile."""
    read = 0

    class Pattern:
        def finditer(self, script: bytes) -> Iterator[re.Match[bytes]]:
            nonlocal read
            for line in commands_pattern.finditer(script):
                read += 1
                yield line

    commands_pattern = commands.OPTION_LINES
    monkeypatch.setattr(commands, "OPTION_LINES", Pattern())
    (tmp_path / "long.sh").write_bytes(b"#!/bin/sh\n" + b"#A \n" * 1_000_000)
    assert far("sbatch long.sh") == (None, "", "")
    assert 0 < read <= commands.MOST_WORDS


@pytest.mark.usefixtures("jobs")
def test_a_script_that_is_too_large_is_refused_before_it_is_read(
    api: Running, far: Callable[..., Said], near: Callable[..., Said], tmp_path: Path
) -> None:
    config = api.cluster.state.config
    api.cluster.state.config = replace(config, settings=replace(config.settings, max_script_bytes=1000))
    (tmp_path / "large.sh").write_bytes(b"#!/bin/sh\n" + b"#A \n" * (commands.MOST_BESIDE // 4 + 1000))
    assert far("sbatch large.sh") == (None, "", "")
    assert near("sbatch large.sh")[0] == 1
    with pytest.raises(ApiError) as refused:
        api.transport.request("POST", "/v1/commands/sbatch", body=b"a 0\n" * (commands.MOST_BESIDE // 4 + 1000))
    assert refused.value.status == 413
    assert api.cluster.state.next_job_id == 3, "nothing was submitted"


TYPED = ("1/hold-open", "1/wait", "1/wait?timeout=60", "../events", "1/../../events", "1%2Fhold-open")


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("line", ["scontrol update JobId={0} TimeLimit=+5", "scontrol hold {0}",
                                  "scontrol -M tiny hold {0}", "scontrol requeue incomplete {0}", "scancel {0}",
                                  "scontrol delete reservation={0}",
                                  "scontrol update PartitionName={0} State=UP"])  # fmt: skip
def test_what_is_typed_never_becomes_another_route(
    api: Running, far: Callable[..., Said], near: Callable[..., Said], line: str
) -> None:
    for typed in TYPED:
        told, alone = far(line.format(typed)), near(line.format(typed))
        assert told in (alone, (None, "", ""))
        code, _, errors = alone
        assert code == 1
        assert "nvalid" in errors, errors
    assert api.transport.get("/v1/ping")["cluster"] == "tiny"


@pytest.mark.usefixtures("jobs")
def test_no_route_waits_for_a_command(api: Running) -> None:
    """Every route, asked from within, has been answered when its caller goes; those that wait are refused at once."""

    async def ask(method: str, path: str) -> int:
        gone = asyncio.Event()

        peer = Peer(uid=0, gid=0, pid=1)
        outer = SimpleNamespace(scope={"bireme.peer": peer})
        asked = commands.Asked(outer, method, path, {"timeout": 60}, b"{}", "scontrol", gone.is_set)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(0.05, gone.set)
        await asked.put_to(api.app)
        return asked.status

    waiting, answered = set(), set()
    for route in api.app.routes:
        for method in route.methods & {"GET", "POST"}:
            path = route.path.format(
                job=1, step=0, name="main", namespace="default", pod="p", command="squeue", service="chat", key="k",
                finding=1, healing=1, node="n1",
            )  # fmt: skip
            status = asyncio.run_coroutine_threadsafe(ask(method, path), api.loop).result(30)
            (waiting if status == 400 and method == "GET" else answered).add(route.path)
    assert waiting == {
        "/v1/changes",
        "/v1/events",
        "/v1/jobs/{job}/wait",
        "/v1/jobs/{job}/hold-open",
        "/v1/services/{service}/wait",
    }
    assert len(answered) > 30


@contextmanager
def piped(*pieces: bytes) -> Iterator[str]:
    """The name of a pipe, as `<(...)` makes one, into which each piece is written when the one before was taken."""
    read, write = os.pipe()
    over = threading.Event()

    def feed() -> None:
        for piece in pieces:
            os.write(write, piece)
            while not over.is_set() and array("i", fcntl.ioctl(read, termios.FIONREAD, bytes(4)))[0]:
                time.sleep(0.0005)
        os.close(write)

    thread = threading.Thread(target=feed)
    thread.start()
    yield f"/dev/fd/{read}"
    over.set()
    thread.join()
    os.close(read)


def test_a_script_from_a_pipe_is_stored_whole_however_it_comes(api: Running, far: Callable[..., Said]) -> None:
    lines = [b"#!/bin/sh\n", *(b"echo %d\n" % number for number in range(400))]
    with piped(*lines) as name:
        assert far(f"sbatch {name}")[0] == 0
    assert api.transport.get_bytes("/v1/jobs/1/script") == b"".join(lines)


def test_a_script_from_a_pipe_is_there_when_the_command_is_sent_back(
    far: Callable[..., Said], near: Callable[..., Said]
) -> None:
    with piped(b"#!/bin/sh\n#SBATCH --array=0-30000\n") as name:
        assert far(f"sbatch {name}")[0] is None
        code, _, said = near(f"sbatch {name}")
    assert (code, "Invalid job array specification" in said) == (1, True), said


def test_a_lone_byte_that_a_terminal_would_obey_is_shown(
    api: Running, far: Callable[..., Said], near: Callable[..., Said]
) -> None:
    """0x9b is ESC [ in one byte to a terminal of eight bits; within a letter of UTF-8 it is part of that."""
    name = os.fsdecode(b"\x9b31m\xe9 \xc3\x9b")
    api.transport.post("/v1/jobs", {"spec": {"name": name, "script": ""}, "script": "#!/bin/sh\n"})
    code, said, _ = near("squeue -h -o %j")
    assert (code, said) == (0, "\\x9b31m\ufffd \u00db\n")  # what is no text otherwise is itself
    assert far("squeue -h -o %j")[:2] == (code, said)


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A daemon that reads requests and goes without an answer; what was sent to it."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("BIREME_HOME", str(tmp_path))
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "run" / "api.sock"))
        listener.listen()

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    heard.append(connection.recv(65536))
                if heard[-1] == b"":
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(tmp_path / "run" / "api.sock"))
        thread.join()


def test_a_change_whose_answer_was_lost_is_not_sent_again(deaf: list[bytes], capfd: pytest.CaptureFixture[str]) -> None:
    assert thin.ask("scontrol", ["hold", "1"]) == 1
    assert "look whether it was done" in capfd.readouterr().err
    assert len(deaf) == 1


def test_who_only_looks_looks_again_near(deaf: list[bytes], capfd: pytest.CaptureFixture[str]) -> None:
    assert thin.ask("squeue", []) is None
    assert capfd.readouterr() == ("", "")


def test_a_reader_who_went_away_is_no_error(far: Callable[..., Said], api: Running) -> None:
    read, write = os.pipe()
    os.close(read)
    kept = os.dup(1)
    try:
        os.dup2(write, 1)
        assert thin.ask("squeue", []) == 0
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(write)


# -- asked by many ---------------------------------------------------------------------------------------------------


class Crowd:
    """Callers who ask `Errands` for the same at the same time, and how often it was worked for."""

    def __init__(self, *, personal: bool) -> None:
        self.version = 1
        self.worked = 0
        self._personal = personal
        self.errands = Errands(lambda: self.version)

    def work(self, stay: Stay) -> Told:
        self.worked += 1
        return Told(b"%d" % self.worked, self._personal)

    async def ask(self, *uids: int) -> list[bytes]:
        told = await asyncio.gather(*(self.errands.look("squeue", uid, self.work) for uid in uids))
        return [each.content for each in told]


def test_what_many_ask_for_is_printed_once() -> None:
    async def look() -> None:
        crowd = Crowd(personal=False)
        assert await crowd.ask(1, 2, 3) == [b"1", b"1", b"1"]
        crowd.version = 2  # something has changed
        assert await crowd.ask(1, 2) == [b"2", b"2"]

    asyncio.run(look())


def test_what_depends_on_who_asks_is_printed_for_each() -> None:
    async def look() -> None:
        crowd = Crowd(personal=True)
        assert sorted(await crowd.ask(1, 2, 1)) == [b"1", b"1", b"2"]

    asyncio.run(look())


@pytest.mark.usefixtures("jobs")
def test_a_command_that_looks_at_who_asks_is_theirs_alone(api: Running) -> None:
    def told(line: str) -> Told:
        request = SimpleNamespace(path_params={"command": "squeue"}, app=None, scope={"query_string": b""})
        parts = [("a", word.encode()) for word in line.split()]
        caller = Caller(uid=7, gid=7, user="seven", admin=False)
        errand = commands.Errand(request, caller, parts, api.loop)  # type: ignore[arg-type]

        def looking(argv: list[str]) -> int:
            return int(bool(argv) and around().uid != 7)

        return errand.run(looking, Stay(lambda: False))

    assert not told("").personal
    assert told("--me").personal
