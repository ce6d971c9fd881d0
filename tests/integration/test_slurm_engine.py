"""Bireme attached to a real Slurm: one queue for both, the submitter's identity, and silence that loses nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.slurm_attached import Attached, attached, skip_in_chroot

from bireme.client.sdk import Client
from bireme.client.transport import ApiError

OTHER = "nobody"


@pytest.fixture(scope="module")
def both() -> Iterator[Attached]:
    with attached(for_everyone=True) as bireme:
        yield bireme


def squeue(both: Attached, job: str, what: str = "%T") -> str:
    return both.run("squeue", "-h", "-j", job, "-o", what, check=False).stdout.strip()


def until(both: Attached, job: str, *states: str) -> None:
    both.slurm.until(lambda: squeue(both, job, "%T") in states, f"job {job} is {states}")


def test_the_cluster_is_slurms(both: Attached) -> None:
    how = ("sinfo", "-h", "-o", "%P %D %t %N")
    assert sorted(both.run(*how).stdout.split("\n")) == sorted([*both.slurm.call(*how).split("\n"), ""])
    assert "slurm engine" in both.bireme("status").stdout


def test_a_job_has_one_number_in_both(both: Attached) -> None:
    ours = both.sbatch("--wrap", "sleep 100", "-J", "through-bireme", "--comment", "a word")
    theirs = both.slurm.call("sbatch", "--parsable", "--wrap", "sleep 100", "-J", "direct")
    assert both.slurm.call("squeue", "-h", "-j", ours, "-o", "%j") == "through-bireme"
    until(both, theirs, "RUNNING")
    assert squeue(both, theirs, "%j") == "direct"
    shown = both.run("scontrol", "show", "job", ours).stdout
    assert "Comment=a word\n" in shown.replace("Comment=a word ", "Comment=a word\n"), shown
    for job in (ours, theirs):
        both.run("scancel", job)
        both.slurm.until(lambda job=job: squeue(both, job) == "", f"job {job} is gone")
    assert both.run("sacct", "-nXP", "-j", f"{ours},{theirs}", "-o", "State").stdout.count("CANCELLED by 0") == 2


def test_an_image_is_refused_where_slurm_has_no_pyxis(both: Attached) -> None:
    refused = both.run("sbatch", "--container-image=ubuntu", "--wrap", "true", check=False)
    assert refused.returncode == 1
    assert "install Pyxis and Enroot on its nodes" in refused.stderr, refused.stderr


def test_slurm_refuses_in_its_own_words(both: Attached) -> None:
    done = both.run("sbatch", "-p", "nowhere", "--wrap", "true", check=False)
    theirs = both.slurm.run("sbatch", "-p", "nowhere", "--wrap", "true", check=False)
    assert (done.returncode, done.stderr) == (theirs.returncode, theirs.stderr)
    assert "Invalid job id specified" in both.run("scontrol", "hold", "999999", check=False).stderr


def test_jobs_run_as_their_submitter_with_his_environment(both: Attached) -> None:
    skip_in_chroot("only root can enter it")
    script = "#!/bin/bash\nid -un\necho $COLOUR\numask\ncommand -v srun\necho $# $2\necho ${BIREME_HOME:-none}\n"
    path = both.work / "who.sh"
    path.write_text(script)
    path.chmod(0o755)
    folder = both.work / "theirs"
    folder.mkdir()
    folder.chmod(0o777)
    job = both.run(
        "sbatch", "--parsable", "-o", "out", str(path), "a", "b c", user=OTHER, cwd=folder, env={"COLOUR": "blue"}
    ).stdout.strip()
    both.slurm.until(lambda: squeue(both, job) == "", "its end")
    assert (folder / "out").read_text().split("\n")[:3] == [OTHER, "blue", "0022"]
    assert (folder / "out").read_text().split("\n")[3:6] == [f"{_srun(both)}", "2 b c", "none"]
    assert both.run("sacct", "-nXP", "-j", job, "-o", "User,State").stdout.strip() == f"{OTHER}|COMPLETED"


def _srun(both: Attached) -> str:
    return both.slurm.slurm.program("srun")


def test_srun_and_salloc_are_slurms_own(both: Attached) -> None:
    skip_in_chroot("what srun starts looks for programs there")
    said = both.run("srun", "-n2", "bash", "-c", "echo $SLURM_PROCID $SLURM_JOB_ID").stdout.split()
    assert sorted(said[::2]) == ["0", "1"]
    told = ("sacct", "-nXP", "-j", said[1], "-o", "State")  # srun returns before slurmdbd has heard of the end
    both.slurm.until(lambda: both.run(*told).stdout.strip() == "COMPLETED", "its end in the accounting")
    inside = both.run("salloc", "-n1", "bash", "-c", "command -v srun; srun echo within").stdout.split()
    assert inside == [_srun(both), "within"]


def test_running_steps_are_shown(both: Attached) -> None:
    job = both.sbatch("-n2", "-o", "/dev/null", "--wrap", "srun -J inner sleep 300")
    how = ("squeue", "-h", "-s", "-j", job, "-o", "%i %j")
    both.slurm.until(lambda: f"{job}.0 inner" in both.run(*how).stdout, "its step is shown")
    both.run("scancel", job)
    both.slurm.until(lambda: squeue(both, job) == "", "its end")


def test_a_step_of_slurms_is_joined_by_slurms_own_sattach(both: Attached) -> None:
    skip_in_chroot("its output would have to find the way out")
    step = "srun bash -c 'until [ -e leave ]; do echo within; sleep 0.2; done'"
    job = both.sbatch("-o", "/dev/null", "--wrap", step, cwd=both.work)
    both.slurm.until(lambda: f"{job}.0" in both.run("squeue", "-h", "-s", "-j", job, "-o", "%i").stdout, "its step")
    argv = [str(both.home / "bin" / "sattach"), f"{job}.0"]
    with subprocess.Popen(argv, env=both.env, stdout=subprocess.PIPE, text=True) as joined:
        assert joined.stdout is not None
        assert joined.stdout.readline() == "within\n"
        (both.work / "leave").touch()
        joined.communicate(timeout=60)
    both.slurm.until(lambda: squeue(both, job) == "", "its end")


def test_nobody_orders_anothers_jobs(both: Attached) -> None:
    skip_in_chroot("only root can enter it")
    job = both.sbatch("--hold", "--wrap", "true")
    refused = both.run("scancel", job, user=OTHER, check=False)
    assert "Access/permission denied" in refused.stderr
    assert squeue(both, job) == "PENDING"
    both.run("scancel", job)


def test_orders_reach_slurm(both: Attached) -> None:
    job = both.sbatch("--hold", "--wrap", "sleep 300", "-t", "10")
    assert squeue(both, job, "%r") == "JobHeldUser"
    both.run("scontrol", "update", f"JobId={job}", "TimeLimit=20", "Name=renamed")
    assert both.slurm.call("squeue", "-h", "-j", job, "-o", "%j %l") == "renamed 20:00"
    assert squeue(both, job, "%j %l") == "renamed 20:00"
    both.run("scontrol", "release", job)
    until(both, job, "RUNNING")
    both.run("scontrol", "suspend", job)
    until(both, job, "SUSPENDED")
    both.run("scontrol", "resume", job)
    until(both, job, "RUNNING")
    both.run("scancel", job)
    both.slurm.until(lambda: squeue(both, job) == "", "its end")


def test_a_node_is_drained_through_bireme(both: Attached) -> None:
    both.run("scontrol", "update", "NodeName=c2", "State=DRAIN", "Reason=bad disk")
    assert both.slurm.call("sinfo", "-h", "-n", "c2", "-o", "%t %E") == "drain bad disk"
    assert both.run("sinfo", "-h", "-n", "c2", "-o", "%t %E").stdout.split("\n")[0] == "drain bad disk"
    both.run("scontrol", "update", "NodeName=c2", "State=RESUME")
    both.slurm.until(lambda: "idle" in both.run("sinfo", "-h", "-n", "c2", "-o", "%t").stdout, "it is back")


def test_what_slurm_keeps_is_asked_of_slurms_own_commands(both: Attached) -> None:
    both.run("sacctmgr", "-i", "add", "account", "optics")
    for words in (["sacctmgr", "-nP", "show", "account", "format=account"], ["sshare", "-a", "-P"], ["sprio", "-w"]):
        ours, theirs = both.run(*words, check=False), both.slurm.run(*words, check=False)
        assert (ours.stdout, ours.stderr, ours.returncode) == (theirs.stdout, theirs.stderr, theirs.returncode)
    assert "optics" in both.run("sacctmgr", "-nP", "show", "account", "format=account").stdout.split()
    order = ("ReservationName=kept", "StartTime=now+1hour", "Duration=60", "Nodes=c1", "Users=root")
    both.run("scontrol", "create", "reservation", *order)
    assert "ReservationName=kept" in both.run("scontrol", "show", "reservation").stdout
    assert "kept" in both.run("sinfo", "-h", "-T").stdout
    both.run("scontrol", "delete", "ReservationName=kept")
    both.run("scontrol", "update", "PartitionName=cpu", "State=DOWN")
    assert both.slurm.call("sinfo", "-h", "-p", "cpu", "-o", "%a") == "down"
    both.run("scontrol", "update", "PartitionName=cpu", "State=UP")


def test_the_api_says_whose_book_it_is(both: Attached) -> None:
    with Client(str(both.home)) as client, pytest.raises(ApiError) as refused:
        client.transport.get("/v1/accounting/shares")
    assert refused.value.code == "ESLURM_OWN_COMMAND"
    assert "its own commands" in refused.value.hint


def test_why_speaks_of_slurms_queue(both: Attached) -> None:
    first = both.sbatch("-N6", "--exclusive", "-t", "5", "--wrap", "sleep 300", "-J", "first")
    until(both, first, "RUNNING")
    second = both.sbatch("-N6", "--exclusive", "-t", "5", "--wrap", "true", "-J", "second")
    both.slurm.until(lambda: squeue(both, second, "%r") == "Resources", "Slurm has looked at it")
    said = both.bireme("why", second).stdout
    assert "Resources" in said, said
    assert first in said, f"which job frees what it waits for: {said}"
    assert "n[1-6]" in said, said
    both.bireme("snapshot", str(both.work / "queue.snapshot"))
    planned = both.bireme("plan", str(both.work / "queue.snapshot")).stdout
    assert second in planned, f"what was mirrored can be planned again elsewhere: {planned}"
    tried = both.bireme("whatif", "--add-nodes", "6x4:a100 partition=gpu").stdout
    assert "sooner" in tried, f"with six more nodes it need not wait: {tried}"
    assert first in both.bireme("top", "--once").stdout
    for job in (first, second):
        both.run("scancel", job)


def test_why_of_a_job_of_plain_sbatch_says_what_would_help(both: Attached) -> None:
    """Submitted past Bireme: nobody here has its script, and what would start it sooner is found all the same."""
    first = both.sbatch("-N5", "--exclusive", "-t", "5", "--wrap", "sleep 300", "-J", "first")
    until(both, first, "RUNNING")
    waits = both.slurm.call("sbatch", "--parsable", "-N4", "--exclusive", "-t", "5", "--wrap", "true").strip()
    both.slurm.until(lambda: squeue(both, waits, "%r") == "Resources", "the mirror has it, and Slurm's reason")
    said = both.bireme("why", waits).stdout
    assert "no change that was tried" not in said, said
    assert "on 1 node: now" in said, said
    both.run("scancel", first, waits)


def test_why_believes_slurm_about_what_is_not_mirrored(both: Attached) -> None:
    """A reservation that is to come: the mirror sees free nodes, and Slurm knows better."""
    slurm = both.slurm
    when = ("starttime=now+10minutes", "duration=60", "nodes=ALL", "users=daemon")
    slurm.call("scontrol", "create", "reservation", "reservationname=soon", *when)
    try:
        waits = slurm.call("sbatch", "--parsable", "-N1", "-t", "30", "--wrap", "true").strip()
        slurm.until(lambda: squeue(both, waits, "%S") not in ("", "N/A"), "Slurm's StartTime is mirrored", timeout=120)
        said = both.bireme("why", waits).stdout
        assert "00:00:00" not in said, said
        assert "That is when Slurm expects it to start" in said, said
        both.run("scancel", waits)
    finally:
        slurm.call("scontrol", "delete", "reservationname=soon")


def test_a_database_that_is_away_delays_nothing_but_the_history(both: Attached) -> None:
    both.slurm.stop_daemon("slurmdbd")
    try:
        both.slurm.until(lambda: "slurmdbd" in both.bireme("status").stdout, "it is told", timeout=200)
        job = both.slurm.call("sbatch", "--parsable", "--wrap", "sleep 300").strip()
        until(both, job, "RUNNING")
        status = both.bireme("status").stdout
        assert "seen: queue" in status, status
        both.run("scancel", job)
    finally:
        both.slurm.start_daemon("slurmdbd")
    both.slurm.until(lambda: "slurmdbd" not in both.bireme("status").stdout, "it answers again", timeout=200)


def test_silence_is_told_and_nothing_is_lost(both: Attached) -> None:
    """slurmctld is away: what was known is shown, a submission is refused with the reason; then all goes on."""
    before = both.sbatch("--wrap", "sleep 300", "-J", "before")
    until(both, before, "RUNNING")
    both.slurm.stop_daemon("slurmctld")
    try:
        both.slurm.until(lambda: "Problem" in both.bireme("status").stdout, "it is told")
        assert "slurmctld does not answer" in both.bireme("status").stdout
        assert squeue(both, before) == "RUNNING"
        both.slurm.until(lambda: "the queue of Slurm as it was" in both.run("squeue").stderr, "how old it is, is told")
        refused = both.run("sbatch", "--wrap", "true", check=False, timeout=200)
        assert refused.returncode
        assert "slurmctld does not answer" in refused.stderr or "Unable to contact" in refused.stderr, refused.stderr
    finally:
        both.slurm.start_daemon("slurmctld", "slurmctld", "-D", "-f", str(both.conf_file))
    both.slurm.until(lambda: "Problem" not in both.bireme("status").stdout, "it follows again", timeout=120)
    after = both.sbatch("--wrap", "true", "-J", "after")
    both.slurm.until(lambda: squeue(both, after) == "", "the end of the next job")
    assert squeue(both, before) == "RUNNING"
    assert both.slurm.call("squeue", "-h", "-o", "%j").split().count("before") == 1
    both.run("scancel", before)


def test_a_submission_that_is_repeated_is_found_again(both: Attached) -> None:
    """The daemon dies after Slurm accepted a job and before anybody was told: the client's retry finds it."""
    spec = {"spec": {"name": "once", "work_dir": str(both.work)}, "script": "#!/bin/sh\nsleep 300\n"}
    body = {**spec, "environment": {"PATH": os.environ["PATH"]}, "idempotency_key": "the same"}
    with Client(str(both.home)) as client:
        first = client.transport.post("/v1/jobs", body)["job_id"]
    both.kill_daemon()
    for path in (*both.home.glob("journal.*"), both.home / "run" / "engine"):
        path.unlink()  # nothing of it was recorded, and nothing tells of an earlier start
    both.up()
    with Client(str(both.home)) as client:
        assert client.transport.get("/v1/ping")["engine"].startswith("slurm")
        assert client.transport.post("/v1/jobs", body)["job_id"] == first
        assert client.transport.post("/v1/jobs", {**body, "idempotency_key": "another"})["job_id"] != first
    assert both.slurm.call("squeue", "-h", "-n", "once", "-o", "%i").split().count(str(first)) == 1
    both.slurm.call("scancel", "-n", "once")


def test_unreadable_answers_are_told_and_tried_again(tmp_path: Path, both: Attached) -> None:
    """A squeue that writes rubbish, beside Slurm's other commands."""
    skip_in_chroot("they have their own folder already")
    good = tmp_path / "good"
    good.touch()
    for name in ("sinfo", "scontrol", "sacct", "sbatch", "scancel"):
        (tmp_path / name).symlink_to(both.slurm.slurm.program(name))
    fake = tmp_path / "squeue"
    fake.write_text(f'#!/bin/sh\n[ -e {good} ] && exec {both.slurm.slurm.program("squeue")} "$@"\necho "{{ not json"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    second = Attached(both.slurm)
    second.settings(f'commands = "{tmp_path}"', "poll_s = 1")
    with second.running():
        good.unlink()
        second.slurm.until(lambda: "Problem" in second.bireme("status").stdout, "it is told")
        assert "squeue --json cannot be read" in second.bireme("status").stdout
        assert json.loads(second.bireme("status", "--json").stdout)["problem"]
        good.touch()
        second.slurm.until(lambda: "Problem" not in second.bireme("status").stdout, "it follows again")


def test_a_wrong_cluster_is_told_and_the_daemon_stays(both: Attached, tmp_path: Path) -> None:
    wrong = tmp_path / "slurm.conf"
    wrong.write_text(both.slurm.conf.replace(f"SlurmctldPort={both.slurm.ports.first}", "SlurmctldPort=1"))
    second = Attached(both.slurm)
    second.conf_file = wrong
    try:
        said = second.bireme("up", "--engine", "slurm", "--conf", str(wrong)).stdout
        assert "Problem: slurmctld does not answer" in said, said
        assert second.daemon_pid() is not None
    finally:
        left = second.stop()
    assert not left


def test_slurmrestd_is_read_instead_and_an_expired_token_is_told(both: Attached, tmp_path: Path) -> None:
    if not both.slurm.slurm.has("slurmrestd"):
        pytest.skip("slurmrestd is not installed")
    address = both.slurm.start_rest()
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(both.slurm.call("scontrol", "token", "lifespan=3600"))
    second = Attached(both.slurm)
    second.settings(f'rest = "http://{address}"', f'token_file = "{token}"', "poll_s = 1")
    with second.running():
        job = second.sbatch("-N2", "--gres=gpu:1", "--wrap", "sleep 300", "-J", "by-rest")
        until(second, job, "RUNNING")
        how = ("squeue", "-h", "-j", job, "-o", "%i %j %D %N %C")
        assert second.run(*how).stdout.strip() == both.slurm.call(*how)
        short = both.slurm.call("scontrol", "token", "lifespan=1")
        token.write_text(short)
        second.slurm.until(lambda: "Problem" in second.bireme("status").stdout, "it is told")
        said = second.bireme("status").stdout
        assert "does not accept our token (it expired at" in said
        assert short.rpartition("=")[2] not in said + (second.home / "log" / "daemon.log").read_text()
        token.write_text(both.slurm.call("scontrol", "token"))
        second.slurm.until(lambda: "Problem" not in second.bireme("status").stdout, "it follows again")
        second.run("scancel", job)
        second.slurm.until(lambda: squeue(second, job) == "", "its end")
    both.slurm.stop_daemon("slurmrestd")
