"""Thin commands and a daemon that is not to be trusted: which files it gets, what it can do to a terminal."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from bireme.cli import thin
from bireme.cli.named_files import may_be_read
from bireme.client.transport import Transport
from bireme.commands import parcels
from bireme.commands.submitting import submission
from bireme.commands.voice import CommandFailure, Voice

RUN = "import sys; from bireme.cli.thin import run_and_exit; run_and_exit(sys.argv.pop(1))"


START = [sys.executable, "-c", RUN]


class AnybodysDaemon:
    """Answers each request with the next of `answers`; what it was sent is in `heard`."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.heard: list[bytes] = []


def parcel(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@contextmanager
def anybodys_daemon(home: Path, *answers: bytes) -> Iterator[AnybodysDaemon]:
    daemon = AnybodysDaemon(*answers)
    (home / "run").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "run" / "api.sock"))
        listener.listen()

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if not (request := _request(connection)):
                        return
                    daemon.heard.append(request)
                    connection.sendall(daemon.answers.pop(0) if daemon.answers else b"")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield daemon
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(home / "run" / "api.sock"))
            thread.join()


def _request(connection: socket.socket) -> bytes:
    said = b""
    while b"\r\n\r\n" not in said:
        if not (data := connection.recv(1 << 16)):
            return b""
        said += data
    head, _, body = said.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0")
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIREME_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SLURM_HOSTFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


# -- files -----------------------------------------------------------------------------------------------------------

VARIABLES = ("/home/me/hosts", "/bin:/usr/bin")


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ("sbatch job.sh", "job.sh"),
        ("sbatch job.sh a b", "job.sh|/bin/job.sh|/usr/bin/job.sh|job.sh"),
        ("sbatch -N 1 job.sh", "job.sh"),
        ("sbatch -N1 -H job.sh", "job.sh"),
        ("sbatch -D /data job.sh", "/data/job.sh|job.sh|job.sh"),
        ("sbatch --chdir=/data ./job.sh", "/data/./job.sh|./job.sh"),
        ("sbatch -oout -N 1 : -N 2 job.sh", "job.sh"),
        ("sbatch --output out --wrap true --nodefile=nodes", "nodes"),
        ("sbatch --nodefile nodes job.sh", "nodes"),
        ("sbatch -F/tmp/nodes job.sh", "/tmp/nodes"),
        ("sbatch -w ./nodes job.sh", "./nodes"),
        ("sbatch --export-file=env job.sh", "env"),
        ("sbatch job.sh", "/home/me/hosts"),
        ("sbatch -N 1", ""),
        ("sbatch", ""),
        ("sbatch -HN2 --hol --parsable job.sh", "job.sh"),
        ("sbatch -vvHJ name -- job.sh", "job.sh"),
        ("sbatch --exclusive=user --nice job.sh a", "job.sh"),
        ("sbatch --container bundle job.sh", "job.sh"),
    ],
)
def test_what_the_words_name_is_read(line: str, places: str) -> None:
    command, *argv = line.split()
    assert may_be_read(command, argv, *VARIABLES, places.replace("|", "\0").encode())


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ("sbatch job.sh", "/etc/shadow|"),
        ("sbatch job.sh", "/etc/shadow"),
        ("sbatch job.sh", "/etc/job.sh|job.sh"),
        ("sbatch job.sh", "h"),
        ("sbatch job.sh", "secret/h|h"),
        ("sbatch job.sh", "b.sh"),
        ("sbatch job.sh", "job.sh|/etc/shadow"),
        ("sbatch job.sh secret", "secret"),
        ("sbatch -N 1 job.sh secret", "secret"),
        ("sbatch --nodes=1 job.sh secret", "secret"),
        ("sbatch -i secret job.sh", "secret"),
        ("sbatch -isecret --error=log job.sh", "secret"),
        ("sbatch --input=secret job.sh", "secret"),
        ("sbatch --comment=secret job.sh", "secret"),
        ("sbatch --nodefile=nodes job.sh", "/bin/nodes|nodes"),
        ("sbatch /etc/hostname", ""),
        ("sbatch job.sh", "|"),
        ("sbatch -H job.sh secret", "secret"),
        ("sbatch --hold job.sh secret", "secret"),
        ("sbatch -vH --parsable job.sh secret", "secret"),
        ("sbatch -N secret job.sh", "secret"),
        ("sbatch --comment secret job.sh", "secret"),
        ("sbatch -- job.sh secret", "secret"),
        ("sbatch --wrap true", ""),
        ("sbatch --wrap=true", ""),
        ("squeue", ""),
        ("squeue", "/etc/shadow|"),
        ("squeue -o /etc/shadow", "/etc/shadow"),
        ("scontrol show job 1", "1"),
        ("scontrol show hostnames", "/home/me/hosts"),
    ],
)
def test_nothing_else_is_read(line: str, places: str) -> None:
    command, *argv = line.split()
    assert not may_be_read(command, argv, *VARIABLES, places.replace("|", "\0").encode())


@pytest.mark.parametrize("command", sorted(thin.ANSWERED))
def test_a_daemon_gets_no_file_that_was_not_named(command: str, home: Path) -> None:
    secret = home.parent / "secret"
    secret.write_text("my secret")
    wanted = parcel(parcels.pack(parcels.WANTED, os.fsencode(secret) + b"\0"))
    with anybodys_daemon(home, wanted, wanted) as daemon:
        assert thin.ask(command, ["show", "job"]) is None
    assert len(daemon.heard) == 1
    assert b"my secret" not in b"".join(daemon.heard)


def test_a_command_waits_in_the_row_of_those_who_connect(tmp_path: Path) -> None:
    """With a time limit of Python's own, the kernel refuses whoever does not find the row short."""
    path = str(tmp_path / "api.sock")
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        listener.bind(path)
        listener.listen(0)
        with suppress(BlockingIOError):  # until the row is full
            while True:
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(path)
        own = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting = threading.Thread(target=thin._join_row, args=(own, path))
        waiting.start()
        listener.accept()[0].close()
        waiting.join(60)
        assert own.getpeername() == path


# -- changes ---------------------------------------------------------------------------------------------------------

HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n" + parcels.pack(parcels.OUTPUT, b"some of it")
FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}"
FULL = b"HTTP/1.1 507 Insufficient Storage\r\ncontent-length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}"
CROWDED = b"HTTP/1.1 503 Too many connections\r\ncontent-length: 2\r\n\r\n{}"
NO_PARCEL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
NO_EXIT = parcel(parcels.pack(parcels.OUTPUT, b"text"))
ODD_EXIT = parcel(parcels.pack(parcels.EXIT, b"x"))


@pytest.mark.parametrize("command", ["scontrol", "scancel"])
@pytest.mark.parametrize("answer", [b"", HALF, FAILED, FULL, NO_PARCEL, NO_EXIT, ODD_EXIT, parcel()])
def test_a_change_that_may_have_been_made_is_not_made_again(
    home: Path, command: str, answer: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with anybodys_daemon(home, answer) as daemon:
        assert thin.ask(command, ["hold", "1"]) == 1
    assert len(daemon.heard) == 1
    assert "look whether it was done" in capfd.readouterr().err


@pytest.mark.parametrize("answer", [REFUSED, CROWDED, parcel(parcels.pack(parcels.NEAR, b""))])
def test_a_change_that_was_not_made_is_made_near(home: Path, answer: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with anybodys_daemon(home, answer):
        assert thin.ask("scontrol", ["hold", "1"]) is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("answer", [b"", HALF, FAILED, NO_PARCEL, NO_EXIT, ODD_EXIT, parcel()])
@pytest.mark.parametrize("command", ["squeue", "sbatch"])
def test_who_only_looks_or_has_a_key_asks_again_near(home: Path, command: str, answer: bytes) -> None:
    with anybodys_daemon(home, answer):
        assert thin.ask(command, ["--wrap=true"]) is None


def test_sbatch_waits_by_itself_for_a_job_that_the_daemon_has_taken_and_ends_as_it_does(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = (
        parcels.pack(parcels.OUTPUT, b"7\n"),
        parcels.pack(parcels.AWAITED, b"7"),
        parcels.pack(parcels.EXIT, b"0"),
    )
    ended = json.dumps({"done": True, "jobs": [{"state": "COMPLETED"}, {"state": "FAILED", "exit_code": 3}]}).encode()
    with anybodys_daemon(home, parcel(*taken), parcel(ended)) as daemon:
        assert thin.ask("sbatch", ["--wait", "--parsable", "--wrap=true"]) == 3
    assert capfd.readouterr() == ("7\n", "")
    assert [request.split(b"?")[0] for request in daemon.heard] == [b"POST /v1/commands/sbatch", b"GET /v1/jobs/7/wait"]


# -- terminals -------------------------------------------------------------------------------------------------------


def test_what_a_daemon_says_gives_a_terminal_no_orders(home: Path) -> None:
    said = "blå \x1b[31m\x9b1m".encode() + b" \x9b2J \xe9\n"
    answer = parcel(
        parcels.pack(parcels.OUTPUT, said), parcels.pack(parcels.ERROR, said), parcels.pack(parcels.EXIT, b"3")
    )
    terminal, inside = os.openpty()
    with anybodys_daemon(home, answer):
        done = subprocess.run([*START, "squeue"], stdout=inside, stderr=inside)
    os.close(inside)
    shown = b""
    with suppress(OSError):  # EIO: nobody holds the other end, and all was read
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    assert done.returncode == 3
    assert shown == 2 * ("blå \\u001b[31m\\u009b1m".encode() + b" \\x9b2J \xe9\r\n")


def test_what_goes_into_a_file_is_what_was_said(home: Path) -> None:
    said = b"\x1b[31m \x9b\n"
    with anybodys_daemon(home, parcel(parcels.pack(parcels.OUTPUT, said), parcels.pack(parcels.EXIT, b"0"))):
        done = subprocess.run([*START, "squeue"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, b"")


# -- closed streams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["squeue", "sbatch --wrap true", "scontrol show job 1"])
@pytest.mark.parametrize("closed", [(1,), (0, 1), (1, 2), (0, 1, 2)])
def test_closed_streams_are_no_mishap_and_the_daemon_hears_nothing_of_them(
    home: Path, command: str, closed: tuple[int, ...]
) -> None:
    """As with Slurm's commands; the socket must not get the number of one, and what is written to it."""
    answer = parcel(parcels.pack(parcels.OUTPUT, b"text\n"), parcels.pack(parcels.EXIT, b"3"))
    shut = " ".join(f"{number}>&-" for number in closed)
    with anybodys_daemon(home, answer) as daemon:
        done = subprocess.run(["sh", "-c", f'exec "$@" {shut}', "sh", *START, *command.split()], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    assert len(daemon.heard) == 1
    assert b"text" not in daemon.heard[0]


@pytest.mark.parametrize("command", ["squeue", "sbatch", "srun true", "sacctmgr -n show user", "squeue --version"])
def test_closed_streams_are_no_mishap_near_either(home: Path, command: str) -> None:
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *START, *command.split()], stderr=subprocess.PIPE
    ) as process:
        _, told = process.communicate()
    assert b"Traceback" not in told
    assert process.returncode == (0 if "--version" in command else 1)


# -- a daemon that ends before it answers ----------------------------------------------------------------------------


def test_a_submission_whose_answer_was_lost_is_sent_again_under_the_same_key(home: Path) -> None:
    content = b'{"job_id":7}'
    accepted = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(content), content)
    with anybodys_daemon(home, b"", accepted) as daemon:
        words = [*START, "sbatch", "--wrap", "true"]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 7\n"), done.stderr
    assert "ended before it answered; the same job is sent again" in done.stderr
    first, again = daemon.heard
    key = json.loads(again.partition(b"\r\n\r\n")[2])["idempotency_key"].encode()
    assert key in first


def test_a_submission_that_cannot_be_sent_again_is_in_doubt(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_AGAIN_S", 0.0)
    transport = Transport(str(home))
    transport.asked_before = True
    with pytest.raises(CommandFailure) as failure:
        submission.submit(transport, {"spec": {}}, "Batch job submission failed", Voice("sbatch"))
    assert "ended before it answered: look whether it was done" in failure.value.hint
