"""bireme diagnose: any log without a cluster, a job with one; text that fits, JSON that is complete, secrets kept."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli.main import main
from bireme.evidence import standing

Captured = pytest.CaptureFixture[str]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
KEYS = [
    "cause", "title", "summary", "confidence", "basis", "who", "is_hardware", "evidence", "actions", "others",
    "ruled_out", "collect", "problems",
]  # fmt: skip
QUOTED = ["text", "source", "file", "line", "time", "node", "rank", "device"]
SITE = """
[[cause]]
id = "site_mirror"
title = "The mirror is out"
who = "platform"
actions = ["ask for one"]

[[rule]]
id = "site-mirror"
cause = "site_mirror"
words = ["zeppelin"]
pattern = 'zeppelin mirror (?P<name>\\S+) is down'
meaning = "The mirror {name} is down."
examples = ["zeppelin mirror zm1 is down"]
"""


def diagnosed(capfd: Captured, *words: str) -> dict[str, Any]:
    assert main(["diagnose", "--json", *words]) == 0
    told: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert list(told) == KEYS
    assert all(list(line) == QUOTED for line in told["evidence"])
    return told


def test_a_log_without_a_cluster(home: Path, capfd: Captured) -> None:
    Path("rank_3.log").write_text(f"2026-11-15 06:50:15 {OOM} --token abcdef123456\n")
    told = diagnosed(capfd, "--file", "rank_3.log")
    assert (told["cause"], told["confidence"], told["who"]) == ("gpu_out_of_memory", "high", "you")
    (line,) = told["evidence"]
    assert (line["file"], line["line"], line["rank"]) == ("rank_3.log", 1, 3)
    assert line["time"] is not None
    assert "abcdef123456" not in json.dumps(told)


def test_text_fits_and_begins_with_the_cause(home: Path, capfd: Captured) -> None:
    Path("a.log").write_text(f"\x1b[31m{OOM} {'x' * 500}\n" * 9)
    assert main(["diagnose", "--file", "a.log"]) == 0
    said = capfd.readouterr().out
    lines = said.splitlines()
    assert lines[0].startswith("Out of GPU memory (sure")
    assert max(map(len, lines)) <= 80
    assert "a.log:1" in said
    assert "\x1b" not in said
    assert "and 4 more (--json)" in said


def test_nothing_known_is_an_answer_with_the_last_lines(home: Path, capfd: Captured) -> None:
    Path("a.log").write_text("all\nis\nwell\nhere\n")
    told = diagnosed(capfd, "--file", "a.log")
    assert (told["cause"], told["confidence"]) == ("unknown", "none")
    assert [line["text"] for line in told["evidence"]] == ["is", "well", "here"]
    assert told["collect"]
    assert main(["diagnose", "--file", "a.log"]) == 0
    assert capfd.readouterr().out.startswith("Not explained")


def test_standard_input_packed_too(home: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (OOM.encode(), gzip.compress(OOM.encode())):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        told = diagnosed(capfd, "--file", "-")
        assert told["cause"] == "gpu_out_of_memory"
        assert told["evidence"][0]["file"] == "(standard input)"


def test_only_the_kernels_log_is_the_kernels(home: Path, capfd: Captured) -> None:
    Path("k.log").write_text("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:71234kB\n")
    Path("a.log").write_text("fine\n")
    told = diagnosed(capfd, "--file", "a.log", "--kernel", "k.log")
    assert (told["cause"], told["evidence"][0]["source"]) == ("host_out_of_memory", "kernel")
    assert "kernel" not in {line["source"] for line in diagnosed(capfd, "--file", "k.log")["evidence"]}


def test_a_sites_rules(home: Path, capfd: Captured) -> None:
    Path("a.log").write_text("zeppelin mirror zm7 is down\n")
    folder = home / "rules.d"
    folder.mkdir(parents=True)
    (folder / "site.toml").write_text(SITE)
    assert diagnosed(capfd, "--file", "a.log")["summary"] == "The mirror zm7 is down."
    (folder / "broken.toml").write_text("[[rule]]\nid = 'x'\n")
    told = diagnosed(capfd, "--file", "a.log", "--rules", str(folder))
    assert told["cause"] == "site_mirror"
    assert "broken.toml is not used" in told["problems"][0]
    shutil.rmtree(folder)
    assert diagnosed(capfd, "--file", "a.log")["cause"] == "unknown"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which job?"),
        (["42", "--file", "a.log"], "not both"),
        (["--file", "absent.log"], "cannot read absent.log: No such file"),
        (["--file", "pipe"], "neither a file nor a folder"),
        (["--file", "-", "--kernel", "-"], "once"),
        (["--file", "a.log", "--rules", "absent"], "no folder"),
        (["--file", "a.log", "--stacks"], "running job"),
    ],
)
def test_bad_use(home: Path, capfd: Captured, words: list[str], said: str) -> None:
    Path("a.log").write_text("x")
    os.mkfifo("pipe")
    assert main(["diagnose", *words]) == 1
    assert said in capfd.readouterr().err


def evidence(**more: Any) -> dict[str, Any]:
    return {
        "job": "42", "job_id": 42, "name": "train", "user": "alice", "owner_uid": os.geteuid(), "state": "FAILED",
        "start": 1.0, "end": 2.0, "lines": [], "outputs": [], "absent": [], "left_out": 0, "now": 3.0,
    } | more  # fmt: skip


def test_a_job(daemon: FakeDaemon, capfd: Captured) -> None:
    log = Path("slurm-42.out").absolute()
    log.write_text(f"{OOM}\n")
    killed = {"text": "Memory cgroup out of memory: Killed process 1 (x)", "source": "kernel", "at": 1.5, "node": "n1"}
    outputs = [{"path": str(log), "stream": "out", "rank": 5, "node": "n1"}]
    daemon.routes["GET /v1/jobs/42/evidence"] = 200, evidence(outputs=outputs, absent=["Nothing is measured."])
    told = diagnosed(capfd, "42")
    assert (told["cause"], told["evidence"][0]["rank"]) == ("gpu_out_of_memory", 5)
    assert told["problems"] == ["Nothing is measured."]
    daemon.routes["GET /v1/jobs/42/evidence"] = 200, evidence(lines=[killed, {"text": 3}], left_out=4)
    told = diagnosed(capfd, "42")
    assert (told["cause"], told["evidence"][0]["node"]) == ("host_out_of_memory", "n1")
    assert "one of 5" in told["problems"][0]
    assert main(["diagnose", "42"]) == 0
    assert capfd.readouterr().out.startswith('Job 42 "train" of alice: FAILED\n\nOut of host memory')


def test_dumps_of_a_flight_recorder_beside_a_jobs_output(daemon: FakeDaemon, capfd: Captured) -> None:
    """Those of the job's owner that were written since it began; who did not arrive is said."""
    log = Path("slurm-42.out").absolute()
    log.write_text("step 1\n")
    outputs = [{"path": str(log), "stream": "out", "rank": None, "node": ""}]
    daemon.routes["GET /v1/jobs/42/evidence"] = 200, evidence(outputs=outputs)
    for rank in range(3):
        entries = [
            {"profiling_name": "nccl:all_reduce", "collective_seq_id": number, "state": state, "pg_id": 0,
             "process_group": ("0", "default_pg"), "input_sizes": [[8]]}
            for number, state in ((1, "completed"), (2, "started"))[: 1 + (rank != 1)]
        ]  # fmt: skip
        Path(f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps({"version": "2.4", "entries": entries}))
    told = diagnosed(capfd, "42")
    assert told["summary"] == "Rank 1 did not join collective 2 (all_reduce), for which ranks 0,2 waited."
    assert told["evidence"][0]["rank"] == 1
    for rank in range(3):
        os.utime(f"nccl_trace_rank_{rank}", (0, 0))
    assert diagnosed(capfd, "42")["cause"] == "unknown"


def test_an_operator_does_not_read_what_is_not_the_owners(daemon: FakeDaemon, capfd: Captured) -> None:
    log = Path("slurm-42.out").absolute()
    log.write_text(f"{OOM}\n")
    outputs = [{"path": str(log), "stream": "out", "rank": None, "node": ""}]
    daemon.routes["GET /v1/jobs/42/evidence"] = 200, evidence(outputs=outputs, owner_uid=os.geteuid() + 1)
    told = diagnosed(capfd, "42")
    assert told["cause"] == "unknown"
    assert "not a file of the job's owner" in told["problems"][0]


def test_who_may_not_open_the_output_is_told_what_the_owners_process_read(
    daemon: FakeDaemon, capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the daemon refuses that too, what is known without the output is told."""

    monkeypatch.setattr("bireme.cli.diagnosing.command._is_forbidden", lambda path: path.startswith("/home/alice/"))
    outputs = [{"path": "/home/alice/slurm-42.out", "stream": "out", "rank": None, "node": ""}]
    daemon.routes["GET /v1/jobs/42/evidence"] = 200, evidence(outputs=outputs)
    answer = {name: [] for name in KEYS} | {"cause": "nan_loss", "title": "NaN", "summary": "Loss is NaN.",
              "confidence": "high", "basis": "a line names it", "who": "you"}  # fmt: skip
    daemon.routes["GET /v1/jobs/42/diagnosis"] = 200, {"job": "42", **answer, "now": 3.0}
    assert diagnosed(capfd, "42") == answer
    daemon.refuse("GET /v1/jobs/42/diagnosis", "Access/permission denied", "ESLURM_ACCESS_DENIED", 403)
    told = diagnosed(capfd, "42")
    assert told["cause"] == "unknown"
    assert told["actions"] == ["look at the end of its output: bireme logs -n 50 42"]


def test_no_such_job_and_one_that_waits(daemon: FakeDaemon, capfd: Captured) -> None:
    daemon.refuse("GET /v1/jobs/42/evidence", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", 404)
    assert main(["diagnose", "42"]) == 1
    assert "there is no job 42" in capfd.readouterr().err
    daemon.routes["GET /v1/jobs/42/evidence"] = 200, evidence(state="PENDING")
    assert main(["diagnose", "42"]) == 1
    assert "bireme why 42" in capfd.readouterr().err


def test_stacks_of_a_running_job(daemon: FakeDaemon, capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes are found by their variables; py-spy is asked where there is one, else it is said how to get it."""
    job = os.getpid()
    daemon.routes[f"GET /v1/jobs/{job}/evidence"] = 200, evidence(job=str(job), job_id=job, state="RUNNING")
    code = "import sys; print(flush=True); sys.stdin.read()"
    monkeypatch.setenv("PATH", str(Path().absolute()))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "SLURM_JOB_ID": str(job), "SLURM_PROCID": "2", "SLURMD_NODENAME": "n1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        with monkeypatch.context() as without:
            without.setattr(standing, "py_spy", lambda: None)
            told = diagnosed(capfd, "--stacks", str(job))
        assert "pip install py-spy" in told["problems"][0]
        spy = Path("py-spy")
        spy.write_text(f"#!{sys.executable}\nprint('Thread 1 (idle): \"MainThread\"\\n    read (data.py:12)\\n')\n")
        spy.chmod(0o700)
        told = diagnosed(capfd, "--stacks", str(job))
        assert told["problems"] == []
        process.communicate()
    assert f"no process of job {job}" in diagnosed(capfd, "--stacks", str(job))["problems"][0]
