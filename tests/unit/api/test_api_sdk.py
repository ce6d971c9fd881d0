"""`bireme.Client` against the API in front of a small cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bireme
from bireme.api import routing
from bireme.core.jobs.keys import KEYS
from bireme.core.model.events import JobAllocated, JobCancelled, JobEnded, JobEnding, JobStarted
from bireme.core.model.jobs import JobSpec, Outcome
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare

Running = Any
SCRIPT = "#!/bin/sh\n#SBATCH --job-name=mine --ntasks=2\necho hello\n"


@pytest.fixture
def client(api: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with bireme.Client(api.home) as made:  # type: ignore[attr-defined]
        yield made


def run_to_end(api: Running, job_id: int, state: str, code: int = 0) -> None:
    share = NodeShare("n1", cpus=1, memory_mib=1, cpu_ids=(0,))
    api.happen(
        JobAllocated(job_id, Allocation(job_id, 1, "main", (share,))),
        JobStarted(job_id, 1, 1000.0),
        JobEnding(job_id, 1, Outcome(state, ExitStatus(code))),
        JobEnded(job_id, 1, 1001.0),
    )


def test_options_are_sbatchs_and_win_over_the_script(api: Running, client: Any) -> None:
    job = client.submit(SCRIPT, "arg", ntasks=1, time="1:00:00", hold=True, requeue=False, env={"A": "b"})
    spec = api.cluster.state.jobs[int(job.id)].spec
    assert (spec.name, spec.resources.ntasks, spec.time_limit_s, spec.hold) == ("mine", 1, 3600, True)
    assert spec.argv == ("arg",)
    assert b'"A":"b"' in api.cluster.store.get(spec.environment)
    assert job.state == "PENDING"


def test_what_is_submitted_again_is_read_again_where_anything_has_changed(
    api: Running, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal submissions are read once; nothing that they are read from may be overlooked."""

    def spec(*arguments: str, **options: Any) -> JobSpec:
        job = client.submit(SCRIPT, *arguments, **options)
        found: JobSpec = api.cluster.state.jobs[int(job.id)].spec
        return found

    first = spec()
    assert spec() == first
    assert len(api.cluster.state.jobs) == 2, "each has a key of its own"
    assert spec("word").argv == ("word",)
    monkeypatch.setenv("SBATCH_TIMELIMIT", "7")
    assert spec().time_limit_s == 420
    monkeypatch.setenv("ANY", "thing")
    assert b'"ANY":"thing"' in api.cluster.store.get(spec().environment)
    monkeypatch.chdir("/")
    assert spec().work_dir == "/"
    monkeypatch.setattr("bireme.client.sdk.time.time", lambda: 1_000_000.0)
    assert spec(begin="now+60").begin_at == 1_000_060.0
    monkeypatch.setattr("bireme.client.sdk.time.time", lambda: 2_000_000.0)
    assert spec(begin="now+60").begin_at == 2_000_060.0


def test_a_file_and_a_command_can_be_submitted(api: Running, client: Any, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    by_path = client.submit(tmp_path / "train.sh")
    by_words = client.submit(["echo", "a b"], job_name="words")
    assert by_path.record()["command"] == str(tmp_path / "train.sh")
    script = api.cluster.store.get(api.cluster.state.jobs[int(by_words.id)].spec.script)
    assert b"echo 'a b'" in script


def test_a_refusal_is_slurms(client: Any) -> None:
    with pytest.raises(bireme.ApiError, match="Invalid partition name specified"):  # type: ignore[attr-defined]
        client.submit(SCRIPT, partition="nowhere")


def test_many_are_submitted_in_order(api: Running, client: Any) -> None:
    jobs = [SCRIPT, (SCRIPT, {"job_name": "own"}), (SCRIPT, {"partition": "nowhere"})] + [SCRIPT] * 1_500
    made = client.submit_many(jobs, hold=True)
    assert [str(one) for one in (made[0], made[1], made[3], made[-1])] == ["1", "2", "3", "1502"]
    assert str(made[2]) == "Invalid partition name specified"
    assert [api.cluster.state.jobs[n].spec.name for n in (1, 2, 3)] == ["mine", "own", "mine"]
    assert all(job.spec.environment and job.spec.script for job in api.cluster.state.jobs.values())


def test_many_that_are_too_much_for_one_request_are_sent_in_several(
    api: Running, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is decoded on the loop in one piece, and so may not have more than a script and much beside."""
    monkeypatch.setattr(routing, "MOST_BESIDE", 0)
    settings = replace(api.cluster.state.config.settings, max_script_bytes=100_000)
    api.cluster.state.config = replace(api.cluster.state.config, settings=settings)
    jobs = [(SCRIPT, {"job_name": f"job{n}", "env": {"LARGE": str(n) * 20_000}}) for n in range(40)]
    made = client.submit_many(jobs, hold=True)
    assert [str(one) for one in made] == [str(n + 1) for n in range(40)]
    assert api.cluster.state.jobs[40].spec.name == "job39"
    with pytest.raises(bireme.ApiError) as refused:  # type: ignore[attr-defined]
        client.submit(SCRIPT, env={"LARGE": "x" * 300_000})
    assert refused.value.status == 413


def test_waiting_and_failing(api: Running, client: Any) -> None:
    good, bad = client.submit(SCRIPT), client.submit(SCRIPT)
    with pytest.raises(TimeoutError):
        good.wait(0)
    run_to_end(api, 1, "COMPLETED")
    run_to_end(api, 2, "FAILED", 3)
    assert good.wait(10, check=True)["state"] == "COMPLETED"
    assert bad.wait(10)["exit_code"] == 3
    with pytest.raises(bireme.JobFailed, match=r"job 2 ended as FAILED \(exit code 3:0\)"):  # type: ignore[attr-defined]
        bad.wait(10, check=True)


def test_logs_are_the_lines_of_the_output_file(api: Running, client: Any, tmp_path: Path) -> None:
    job = client.submit(SCRIPT, output="out-%j.txt")
    (tmp_path / "out-1.txt").write_text("one\ntwo\nthree")
    assert list(job.logs()) == ["one", "two", "three"]
    run_to_end(api, 1, "COMPLETED")
    assert list(job.logs(follow=True)) == ["one", "two", "three"]


def test_jobs_are_changed_and_queried(api: Running, client: Any) -> None:
    job = client.submit(SCRIPT)
    job.hold()
    assert job.record()["held_by"] == "admin"
    job.release()
    client.update(job, comment="x")
    assert [record["comment"] for record in client.jobs(name="mine")] == ["x"]
    assert [event["kind"] for event in job.story()] == ["JobSubmitted", "JobHeld", "JobReleased", "JobUpdated"]
    job.cancel()
    assert job.state == "CANCELLED"
    assert [node["name"] for node in client.nodes("n2")] == ["n2"]
    assert [one["name"] for one in client.partitions()] == ["main", "small"]
    assert client.ping()["cluster"] == "tiny"


def test_events_are_followed(api: Running, client: Any) -> None:
    client.submit(SCRIPT)
    events = client.events(after=3)
    assert next(events)["kind"] == "JobSubmitted"
    api.happen(JobCancelled(1, Outcome("CANCELLED")))
    assert next(events)["kind"] == "JobCancelled"
    events.close()


def test_unavailable(tmp_path: Path) -> None:
    with pytest.raises(bireme.BiremeUnavailable, match="start it with: bireme up"):  # type: ignore[attr-defined]
        bireme.Client(str(tmp_path)).jobs()  # type: ignore[attr-defined]


def test_a_submission_that_the_daemon_has_read_is_the_same_each_time_with_a_key_of_its_own(
    api: Running, client: Any
) -> None:
    jobs = [int(client.submit(SCRIPT).id) for _ in range(3)]
    specs = [api.cluster.state.jobs[job].spec for job in jobs]
    assert jobs == [1, 2, 3]
    assert specs[0] == specs[1] == specs[2]
    assert api.cluster.store.get(specs[2].script) == SCRIPT.encode()
    assert len(KEYS.of(api.cluster.state)) == 3


def test_what_the_daemon_has_read_is_read_again_under_another_configuration(api: Running, client: Any) -> None:
    client.submit(SCRIPT)
    settings = replace(api.cluster.state.config.settings, max_script_bytes=len(SCRIPT) - 1)
    api.cluster.state.config = replace(api.cluster.state.config, settings=settings)
    with pytest.raises(bireme.ApiError, match="parameter too long"):  # type: ignore[attr-defined]
        client.submit(SCRIPT)
