"""serve, services, service, and why of a service: what is sent, and what is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli import why
from bireme.cli.main import run
from bireme.cli.serving import serve, service, services
from bireme.cli.serving.pages import event_line
from bireme.cli.serving.tails import last_lines
from bireme.core.model.serving.events import SERVICE_EVENTS

SCRIPT = "#!/bin/bash\n#SBATCH --gpus=1\n#BIREME --replicas=0-4 --health=/h\nexec server\n"
NOW = 10_000.0
MADE = {"name": "chat", "revision": 1, "url": "http://127.0.0.1:8600/chat/", "updates": 0, "canary_percent": None,
        "notices": []}  # fmt: skip


def replica(number: int, **more: Any) -> dict[str, Any]:
    told = {
        "number": number, "revision": 1, "job_id": 40 + number, "job_state": "RUNNING", "node": "n1",
        "port": 20000 + number, "state": "ready", "health": "ready", "since": NOW - 60, "made_at": NOW - 90, "why": "",
        "draining_since": None, "std_out": "", "std_err": "",
    }  # fmt: skip
    return {**told, **more}


def record(**more: Any) -> dict[str, Any]:
    revision = {
        "number": 1, "phase": "serving", "by": "ann", "at": NOW - 3600, "settled_at": NOW - 3500, "why": "",
        "replicas": 1, "ready": 1, "canary_percent": None,
    }  # fmt: skip
    told = {
        "name": "chat", "user_name": "ann", "user_id": os.geteuid(), "account": "", "state": "READY",
        "url": "http://127.0.0.1:8600/chat/", "wanted": 1, "wanted_why": "3 requests in flight", "fixed": False,
        "replicas_min": 0, "replicas_max": 4, "ready": 1, "revision": 1, "serving": 1, "revisions": [revision],
        "replicas": [replica(1)], "reasons": [], "crashes": [], "keys": 0, "made_at": NOW - 3600,
    }  # fmt: skip
    return {**told, **more}


def shows(daemon: FakeDaemon, told: dict[str, Any], router_problem: str = "") -> None:
    daemon.routes["GET /v1/ping"] = (200, {"router": {"problem": router_problem} if router_problem else {}})
    daemon.routes["GET /v1/services/chat"] = (200, {"service": told, "now": NOW})
    daemon.routes["GET /v1/services"] = (200, {"services": [told], "now": NOW})


# -- serve -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(daemon: FakeDaemon) -> Path:
    daemon.routes["POST /v1/services"] = (200, MADE)
    path = Path("chat.sh")
    path.write_text(SCRIPT)
    return path


def test_serve_sends_what_it_understood_and_says_where_it_is(
    daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert serve.main(["chat.sh", "--drain", "5s", "--mem=2G", "one", "--", "--two"]) == 0
    (body,) = daemon.bodies("POST /v1/services")
    assert body["spec"]["name"] == "chat"
    assert body["spec"]["scaling"] == {"replicas_min": 0, "replicas_max": 4}
    assert body["spec"]["drain_s"] == 5.0
    assert body["spec"]["job"]["argv"] == ["one", "--two"]
    assert "owner" not in body["spec"]["job"]
    assert body["script"] == SCRIPT
    assert body["idempotency_key"]
    assert capfd.readouterr().out == (
        "Service chat: revision 1 is made.\n"
        "  address  http://127.0.0.1:8600/chat/\n"
        "  see      bireme service show chat\n"
    )


def test_an_update_says_what_it_takes_the_place_of(
    daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.routes["POST /v1/services"] = (200, MADE | {"revision": 4, "url": "", "updates": 3})
    assert serve.main(["chat.sh"]) == 0
    told = capfd.readouterr().out
    assert "revision 4 takes the place of revision 3." in told
    assert "known when its router has started: bireme service show chat" in told
    daemon.routes["POST /v1/services"] = (200, MADE | {"revision": 4, "updates": 3, "canary_percent": 10})
    assert serve.main(["chat.sh", "--canary=10%"]) == 0
    told = capfd.readouterr().out
    assert "revision 4 has 10% of the requests, beside revision 3." in told
    assert "bireme service promote chat, or: bireme service rollback chat" in told


def test_serve_waits_and_tells_what_for(daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reasons = [{"kind": "loading", "text": "Replica 1 (job 41) runs and is not ready yet.", "replica": 1,
                "job_id": 41, "since": NOW, "until": None}]  # fmt: skip
    answers = [
        {"done": False, "failure": "", "service": record(state="LOADING", ready=0, reasons=reasons)},
        {"done": True, "failure": "", "service": record()},
    ]
    daemon.routes["GET /v1/services/chat/wait"] = lambda _: (200, answers.pop(0))
    assert serve.main(["chat.sh", "--wait"]) == 0
    told = capfd.readouterr().err
    assert "bireme serve: 0 of 1 ready: Replica 1 (job 41) runs and is not ready yet.\n" in told
    assert told.endswith("bireme serve: 1 of 1 ready\n")


def test_serve_fails_with_a_revision_that_was_given_up(
    daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (first,) = record()["revisions"]
    failed = {**first, "number": 2, "phase": "failed", "why": "no replica got ready in 60 s"}
    service_now = record(revisions=[first, failed])
    told = {"done": True, "failure": f"revision 2 was given up: {failed['why']}", "service": service_now}
    daemon.routes["GET /v1/services/chat/wait"] = (200, told)
    assert serve.main(["chat.sh", "--wait"]) == 1
    assert capfd.readouterr().err.splitlines() == [
        "bireme serve: error: revision 2 was given up: no replica got ready in 60 s",
        "bireme serve: revision 1 goes on serving; see: bireme service show chat",
    ]


def test_serve_fails_with_a_first_revision_that_crashes_and_shows_its_last_lines(
    daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = Path("out").absolute()
    out.write_text("loading\nRuntimeError: \x1b[2Jno model\n")
    crash = {"replica": 2, "revision": 1, "job_id": 42, "at": NOW, "exit_code": 3, "exit_signal": 0, "why": "it ended"}
    rolling = {**record()["revisions"][0], "phase": "rolling", "settled_at": None}
    crashing = record(state="CRASHING", ready=0, serving=0, replicas=[], crashes=[crash], revisions=[rolling])
    told = {"done": True, "failure": "revision 1 does not get ready: replica 2 crashed: it ended", "service": crashing}
    daemon.routes["GET /v1/services/chat/wait"] = (200, told)
    daemon.routes["GET /v1/jobs/42"] = (200, {"jobs": [{"job_id": 42, "std_out": str(out), "std_err": ""}]})
    assert serve.main(["chat.sh", "--wait"]) == 1
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "bireme serve: error: revision 1 does not get ready: replica 2 crashed: it ended"
    assert said[1] == f"The last lines of replica 2 (job 42), {out}:"
    assert said[2] == "  | loading"
    assert "RuntimeError" in said[3]
    assert "\x1b" not in said[3]
    assert said[-1].endswith("ever less often, until you serve a better script or: bireme service stop chat")


def test_what_is_not_applied_is_said(daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.routes["POST /v1/services"] = (200, MADE | {"notices": ["--canary=10% is not applied: none serves yet"]})
    assert serve.main(["chat.sh", "--canary=10%"]) == 0
    assert "bireme serve: --canary=10% is not applied: none serves yet\n" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["chat.sh", "--replicas", "4-1"], "1-4 would work"),
        (["chat.sh", "--replcas", "4"], "did you mean --replicas?"),
        (["chat.sh", "--replica", "4"], "there is no flag --replica; did you mean --replicas?"),
        (["nosuch.sh"], "Unable to open file nosuch.sh"),
        (["--replicas", "2"], "name the script that is to stay up"),
    ],
)
def test_bad_words_are_told_and_nothing_is_sent(
    daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert serve.main(words) != 0
    assert says in capfd.readouterr().err
    assert not daemon.requests


def test_a_refusal_is_told_with_its_hint(daemon: FakeDaemon, script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = {"message": "Access/permission denied", "code": "ESLURM_ACCESS_DENIED", "hint": "service chat is bob's"}
    daemon.routes["POST /v1/services"] = (403, {"error": error})
    assert serve.main(["chat.sh"]) == 1
    told = capfd.readouterr().err
    assert "the service was not made: Access/permission denied" in told
    assert "service chat is bob's" in told


@pytest.mark.parametrize("words", [[], ["--help"], ["chat.sh", "--help"]])
def test_help_needs_no_daemon(home: Path, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert serve.main(words) == 0
    assert "--target-concurrency" in capfd.readouterr().out


# -- looking -----------------------------------------------------------------------------------------------------------


def test_services_and_show_say_why_none_can_be_reached(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    shows(daemon, record(), router_problem="127.0.0.1:8600 is taken by another program")
    assert run("services", []) == 0
    said = capfd.readouterr().out
    assert "None of them can be reached: 127.0.0.1:8600 is taken by another program; see: bireme doctor" in said
    assert service.main(["show", "chat"]) == 0
    assert "which cannot be reached: 127.0.0.1:8600 is taken by another program" in capfd.readouterr().out


def test_services_are_a_line_each(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    shows(daemon, record())
    assert run("services", []) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME  USER  STATE  READY  BOUNDS  REVISION  ADDRESS",
        "chat  ann   READY  1/1    0-4     1         http://127.0.0.1:8600/chat/",
    ]
    assert services.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "chat"
    daemon.routes["GET /v1/services"] = (200, {"services": []})
    assert services.main([]) == 0
    assert "there are no services" in capsys.readouterr().out


def test_show_tells_why_it_loads_with_the_last_line_of_its_log(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").write_text("begin\nshards: 10%\rshards: 45%\n\n")
    reasons = [{"kind": "loading", "text": "Replica 1 (job 41) runs and is not ready yet.", "replica": 1, "job_id": 41,
                "since": NOW - 80, "until": None}]  # fmt: skip
    loading = replica(1, state="loading", health="loading", std_out=str(Path("out").absolute()))
    shows(daemon, record(state="LOADING", ready=0, reasons=reasons, replicas=[loading]))
    assert service.main(["show", "chat"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Service chat of ann: LOADING, 0 of 1 ready\n")
    assert "1 wanted (asked for: 0 to 4): 3 requests in flight" in told
    flat = " ".join(told.split())
    assert 'not ready yet. That was 00:01:20 ago. Its last line: "shards: 45%"' in flat
    assert "1 1 41 RUNNING loading 00:01:00 n1 20001" in flat


def test_show_tells_of_a_crash_with_its_code_and_last_lines(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").write_text("".join(f"line {number}\n" for number in range(100)) + "RuntimeError: \x1b[2Jno model\n")
    crash = {"replica": 1, "revision": 1, "job_id": 41, "at": NOW - 5, "exit_code": 3, "exit_signal": 0,
             "why": "it ended by itself with exit code 3"}  # fmt: skip
    out = str(Path("out").absolute())
    daemon.routes["GET /v1/jobs/41"] = (200, {"jobs": [{"job_id": 41, "std_out": out, "std_err": out}]})
    shows(daemon, record(state="CRASHING", ready=0, crashes=[crash], replicas=[]))
    assert service.main(["show", "chat"]) == 0
    told = capsys.readouterr().out
    assert "replica 1 (revision 1, job 41) 00:00:05 ago: it ended by itself with exit code 3\n" in told
    assert "  | line 99\n" in told
    assert "line 95" not in told
    assert "\x1b" not in told
    assert why.main(["chat"]) == 0
    assert "  | line 99\n" in capsys.readouterr().out


def test_a_replica_that_was_ended_for_its_probe_has_no_exit_code_to_tell(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"replica": 1, "revision": 1, "job_id": 0, "at": NOW - 5, "exit_code": 0, "exit_signal": 0}
    dead, failed = "it is dead: startup probe: no answer within 1 s", "it could not be started"
    crashes = [ended | {"why": dead}, ended | {"why": failed, "exit_code": 3}]
    shows(daemon, record(state="CRASHING", ready=0, crashes=crashes, replicas=[]))
    assert service.main(["show", "chat"]) == 0
    told = capsys.readouterr().out
    assert f"{dead}\n" in told
    assert f"{failed} (exit code 3)\n" in told


def test_show_as_json_has_what_tools_need(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    shows(daemon, record())
    assert service.main(["show", "chat", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"url", "wanted", "ready", "revision", "replicas", "reasons"} <= told.keys()


def test_why_of_a_service_says_of_the_first_replica_that_waits_what_is_scarce(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = [
        {"kind": "waiting", "text": f"Replica {number} waits.", "replica": number, "job_id": 40 + number,
         "since": None, "until": None} for number in (2, 3)
    ]  # fmt: skip
    spare = [{"what": "CPUs", "free": 0, "of": 2}, {"what": "MiB", "free": 512, "of": 1024}]
    room = {"partition": "main", "needs": "1 node, 1 CPU", "nodes_needed": 1, "nodes_now": 0, "fits_now": False,
            "nodes_long_enough": 0, "reserved": [], "spare": spare}  # fmt: skip
    block = {"reason": "Resources", "text": "", "facts": [["partition", "main"]]}
    expected = {"start": None, "certainty": "blocked", "nodes": [], "slots_before": 0, "waits_for": []}
    waiting = {"expected": expected, "blocks": [block], "rooms": [room], "sent_back": None, "places": [],
               "priorities": []}  # fmt: skip
    job = {"job": "42", "job_id": 42, "name": "chat", "user": "ann", "state": "PENDING", "waiting": waiting}
    daemon.routes["GET /v1/jobs/42/why"] = (200, {"now": NOW, "jobs": [job]})
    shows(daemon, record(state="WAITING", wanted=3, reasons=reasons))
    assert why.main(["chat", "--quick"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "needs 1 node, 1 CPU; no node of main has that free now (on one node at most 0 of 2 CPUs, 512 of" in told
    assert why.main(["chat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waiting"]["jobs"][0]["job"] == "42"
    daemon.routes["GET /v1/jobs/42/why"] = (404, {"error": {"message": "Invalid job id specified",
                                                            "code": "ESLURM_INVALID_JOB_ID"}})  # fmt: skip
    assert why.main(["chat"]) == 0, "it waits no more"


def test_why_of_a_service_that_has_all_it_wants(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    shows(daemon, record())
    assert why.main(["chat"]) == 0
    assert "none: it has all that it wants" in capsys.readouterr().out
    assert why.main(["--json", "chat"]) == 0
    assert json.loads(capsys.readouterr().out)["reasons"] == []


def test_a_file_that_cannot_be_read_has_no_lines(tmp_path: Path) -> None:
    me = os.geteuid()
    assert last_lines(str(tmp_path / "none"), me, 3) == []
    assert last_lines(str(tmp_path), me, 3) == []
    os.mkfifo(tmp_path / "pipe")
    assert last_lines(str(tmp_path / "pipe"), me, 3) == []
    (tmp_path / "long").write_bytes(b"x" * 1_000_000)
    assert [len(line) for line in last_lines(str(tmp_path / "long"), me, 1)] == [200]
    assert last_lines(str(tmp_path / "long"), me + 1, 1) == [], "a link of the owner's to what is not theirs"


def test_logs_of_all_replicas_and_of_one_that_crashed(
    daemon: FakeDaemon, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("a", "b", "c"):
        Path(name).write_text(f"of {name}\n")
    paths = [str(Path(name).absolute()) for name in ("a", "b", "c")]
    living = [replica(number, std_out=path) for number, path in enumerate(paths[:2], start=2)]
    over = [{"replica": 1, "revision": 1, "job_id": 41, "at": NOW - 5, "why": "it ended with exit code 3"}]
    daemon.routes["GET /v1/services/chat/logs"] = (
        200,
        {"replicas": living, "over": over, "now": NOW, "user_id": os.geteuid()},
    )
    daemon.routes["GET /v1/jobs/41"] = (
        200,
        {"jobs": [{"job_id": 41, "user_id": os.geteuid(), "std_out": paths[2], "std_err": ""}]},
    )
    assert service.main(["logs", "chat"]) == 0
    assert capfdbinary.readouterr().out == (
        f"==> replica 2: {paths[0]} <==\nof a\n\n==> replica 3: {paths[1]} <==\nof b\n".encode()
    )
    assert service.main(["logs", "chat", "-r", "1"]) == 0
    assert capfdbinary.readouterr().out == b"of c\n"
    assert service.main(["logs", "chat", "-r", "9"]) == 1
    capfdbinary.readouterr()
    daemon.routes["GET /v1/services/chat/logs"] = (
        200,
        {"replicas": [], "over": over, "now": NOW, "user_id": os.geteuid()},
    )
    assert service.main(["logs", "chat"]) == 0
    whose = "replica 1 (job 41), over 00:00:05 ago: it ended with exit code 3"
    assert capfdbinary.readouterr().out == f"==> {whose}: {paths[2]} <==\nof c\n".encode()
    daemon.routes["GET /v1/services/chat/logs"] = (
        200,
        {"replicas": [], "over": [], "now": NOW, "user_id": os.geteuid()},
    )
    assert service.main(["logs", "chat"]) == 0
    assert b"nothing was written yet; see: bireme service show chat" in capfdbinary.readouterr().err


# -- changing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "route", "body"),
    [
        (["scale", "chat", "3"], "scale", {"replicas": 3}),
        (["scale", "chat", "auto"], "scale", {"replicas": None}),
        (["stop", "chat"], "stop", {}),
        (["restart", "chat"], "restart", {}),
        (["rollback", "chat"], "rollback", {"to": None}),
        (["rollback", "chat", "2"], "rollback", {"to": 2}),
        (["promote", "chat"], "promote", {}),
        (["canary", "chat", "25%"], "canary", {"percent": 25}),
    ],
)
def test_a_verb_is_a_request(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], words: list[str], route: str, body: dict[str, Any]
) -> None:
    daemon.routes[f"POST /v1/services/chat/{route}"] = (200, {"service": record()})
    assert service.main(words) == 0
    assert daemon.bodies(f"POST /v1/services/chat/{route}") == [body]
    assert capsys.readouterr().out == "Service chat: READY, 1 of 1 ready, revision 1\n"


@pytest.mark.parametrize(
    "words",
    [
        ["scale", "chat", "1.5"],
        ["scale", "chat", "many"],
        ["show", "../etc"],
        ["show", "a b"],
        ["show", "v1"],
        ["canary", "chat", "most"],
    ],
)
def test_words_that_make_no_sense_ask_for_nothing(daemon: FakeDaemon, words: list[str]) -> None:
    assert service.main(words) != 0
    assert not daemon.requests


@pytest.mark.parametrize("flag", ["--per-minute", "--at-once"])
@pytest.mark.parametrize("value", ["0", "-5", "many", "1.5"])
def test_a_limit_of_a_key_that_is_none_is_told_by_its_flag(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    with pytest.raises(SystemExit):
        service.main(["key", "add", "chat", f"{flag}={value}"])
    assert f"argument {flag}: '{value}': a whole number of at least 1 is meant" in capfd.readouterr().err
    assert not daemon.requests


def test_a_key_is_printed_alone(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.routes["POST /v1/services/chat/keys"] = (200, {"id": "abcd", "key": "bireme-x"})
    assert service.main(["key", "add", "chat", "--per-minute", "60", "--note", "web"]) == 0
    told = capfd.readouterr()
    assert told.out == "bireme-x\n"
    assert "shown this once" in told.err
    assert daemon.bodies("POST /v1/services/chat/keys")[0]["requests_per_minute"] == 60
    key = {"id": "abcd", "note": "web", "requests_per_minute": 60, "max_concurrency": None, "made_by": "ann",
           "made_at": NOW}  # fmt: skip
    daemon.routes["GET /v1/services/chat/keys"] = (200, {"keys": [key]})
    assert service.main(["key", "list", "chat"]) == 0
    assert "abcd" in capfd.readouterr().out
    daemon.routes["POST /v1/services/chat/keys/abcd/revoke"] = (200, {"service": record()})
    assert service.main(["key", "revoke", "chat", "abcd"]) == 0
    assert not capfd.readouterr().err
    daemon.routes["GET /v1/services/chat/keys"] = (200, {"keys": []})
    assert service.main(["key", "revoke", "chat", "abcd"]) == 0
    assert "no key any more" in capfd.readouterr().err, "without one it is open to its machine: not in silence"


def test_every_event_has_its_words() -> None:
    """A kind of event that is new must be told in words too."""
    unworded = []
    for kind in SERVICE_EVENTS:
        data = {"number": 1, "by": "ann", "wanted": 2, "why": "so", "key": {"id": "k"}, "key_id": "k", "replica": 1,
                "percent": 9, "revision": 1, "job_id": 3, "port": 4, "health": "ready",
                "back_off": {"why": "x", "since": 1.0, "until": 2.0}}  # fmt: skip
        line = event_line({"at": NOW, "kind": kind.__name__, "data": data}, lambda _: "then")
        if line == f"then  {kind.__name__}":
            unworded.append(kind.__name__)
    assert not unworded
