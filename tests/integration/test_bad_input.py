"""What bad input gets: Slurm's message where Slurm has one, a non-zero exit, nothing half-stored."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.client.sdk import Client

CONF = virtual_nodes(2, 2, cpus=8)
MakeCluster = Callable[..., Cluster]
FAILED = "sbatch: error: Batch job submission failed: "


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(CONF).running() as made:
        made.script("true\n", "fine.sh")
        yield made


def refused(cluster: Cluster, *words: str, **how: object) -> str:
    """The words of an sbatch that fails and leaves nothing behind."""
    before = cluster.run("squeue", "-h", "-o", "%i").stdout
    done = cluster.run("sbatch", *words, check=False, **how)  # type: ignore[arg-type]
    assert done.returncode != 0, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert cluster.run("squeue", "-h", "-o", "%i").stdout == before
    return done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-N5"], FAILED + "Requested node configuration is not available"),
        (["-n1", "-c9"], FAILED + "Requested node configuration is not available"),
        (["--mem=10T"], FAILED + "Requested node configuration is not available"),
        (["--gres=gpu:3"], FAILED + "Requested node configuration is not available"),
        (["--gpus-per-node=9"], FAILED + "Requested node configuration is not available"),
        (["-p", "nowhere"], FAILED + "Invalid partition name specified"),
        (["-w", "n9"], FAILED + "Invalid node name specified"),
        (["-C", "nosuch"], FAILED + "Invalid feature specification"),
        (["--array=1-"], "sbatch: error: Batch job submission failed: Invalid job array specification"),
        (["--array=5-3"], "sbatch: error: Batch job submission failed: Invalid job array specification"),
        (["--mem=lots"], "sbatch: error: Invalid --mem specification"),
        (["-t", "soon"], "sbatch: error: Invalid --time specification"),
        (["--dependency=afterok:abc"], FAILED + "Job dependency problem"),
        (["--dependency=after:77777"], FAILED + "Job dependency problem"),
        (["--gres=nosuch:1"], FAILED + "Invalid generic resource (gres) specification"),
        (["--no-such-option"], "sbatch: unrecognized option '--no-such-option'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_slurms_message_and_nothing_stored(cluster: Cluster, options: list[str], message: str) -> None:
    """Some of Slurm's messages are preceded by a remark on what is wrong."""
    said = refused(cluster, *options, "fine.sh").splitlines()
    assert any(line.startswith(message) for line in said[:2]), said


def test_more_time_than_the_partition_gives_waits_unless_limits_are_enforced(
    cluster: Cluster, make_cluster: MakeCluster
) -> None:
    job = cluster.sbatch("-t", "2-00:00:00", "fine.sh")
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%T %r").stdout.split() == ["PENDING", "PartitionTimeLimit"]
    cluster.run("scancel", job)
    strict = make_cluster(virtual_nodes(1, 0, settings="EnforcePartLimits=ALL"))
    strict.script("true\n", "fine.sh")
    said = refused(strict, "-t", "2-00:00:00", "fine.sh")
    assert said.startswith(FAILED + "Requested time limit is invalid (missing or exceeds some limit)")


def test_scripts_that_are_none(cluster: Cluster) -> None:
    (cluster.work / "plain").write_text("echo hello\n")
    (cluster.work / "empty").write_text("")
    (cluster.work / "nul").write_bytes(b"#!/bin/bash\necho a\0b\n")
    (cluster.work / "dos").write_text("#!/bin/bash\r\necho hello\r\n")
    assert "Unable to open file missing.sh" in refused(cluster, "missing.sh")
    assert "This does not look like a batch script" in refused(cluster, "plain")
    assert "Batch script is empty!" in refused(cluster, "empty")
    assert "contain a NULL character" in refused(cluster, "nul")
    assert "Batch script contains DOS line breaks (\\r\\n)" in refused(cluster, "dos")


def test_a_ten_megabyte_script(cluster: Cluster) -> None:
    """Slurm's limit is 4 MiB (max_script_size); below it a large script runs."""
    (cluster.work / "large").write_text("#!/bin/bash\nexit 6\n" + "# filler\n" * (10 * 1024 * 1024 // 9))
    assert FAILED in refused(cluster, "large")
    (cluster.work / "allowed").write_text("#!/bin/bash\nexit 6\n" + "# filler\n" * (3 * 1024 * 1024 // 9))
    job = cluster.sbatch("-o", "/dev/null", "allowed")
    assert cluster.wait(job, 30)["exit_code"] == 6


def test_an_output_that_cannot_be_written(cluster: Cluster) -> None:
    """As with Slurm the job is accepted, starts, and fails at once as 0:53; and it is told why."""
    job = cluster.sbatch("-o", "/dev/null/folder/out", "fine.sh")
    record = cluster.wait(job, 30)
    assert (record["state"], record["exit_code"], record["exit_signal"]) == ("FAILED", 0, 53)
    told = " ".join(cluster.run("bireme", "why", job).stdout.split())
    assert "Could not open stdout file /dev/null/folder/out: Not a directory." in told


def test_an_output_in_a_folder_that_is_not_there(cluster: Cluster) -> None:
    """Slurm fails the job; here the folder is made, by the job's user."""
    job = cluster.sbatch("-o", "logs/%j/train.out", "-e", "logs/%j/train.err", "--wrap", "echo out; echo err >&2")
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    assert (cluster.work / "logs" / job / "train.out").read_text() == "out\n"
    assert (cluster.work / "logs" / job / "train.err").read_text() == "err\n"
    cluster.run("srun", "-o", "steps/one/%t.out", "hostname")
    assert (cluster.work / "steps" / "one" / "0.out").exists()


def test_a_working_folder_that_is_gone(cluster: Cluster) -> None:
    folder = cluster.work / "gone"
    folder.mkdir()
    job = cluster.sbatch("-H", "-o", "/dev/null", "-D", str(folder), "--wrap", "pwd")
    folder.rmdir()
    cluster.run("scontrol", "release", job)
    assert cluster.wait(job, 30)["state"] in ("COMPLETED", "FAILED")


def test_an_environment_with_anything_in_it(cluster: Cluster) -> None:
    strange = {"MULTI": "a\nb", "QUOTE": "'\"$(x)", "EMPTY": "", "UTF": "ünïcödé ☃"}
    job = cluster.sbatch("-o", "env.out", "--wrap", 'printf "%s|" "$MULTI" "$QUOTE" "$EMPTY" "$UTF"', env=strange)
    cluster.wait(job, 30)
    assert (cluster.work / "env.out").read_text() == "a\nb|'\"$(x)||ünïcödé ☃|"


# -- the cluster itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["squeue", "sinfo", "scontrol ping", "sacct", "scancel 1", "sbatch fine.sh", "srun true"]
)
def test_a_socket_nobody_answers_on(cluster: Cluster, tmp_path: Path, command: str) -> None:
    run = tmp_path / "home" / "run"
    run.mkdir(parents=True)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(run / "api.sock"))
    dead.close()
    done = cluster.run(*command.split(), check=False, env={"BIREME_HOME": str(tmp_path / "home")})
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    said = done.stdout + done.stderr
    assert "Unable to contact slurm controller" in said or "DOWN" in said, done
    assert "bireme up" in said or "DOWN" in said


def test_requests_that_make_no_sense(cluster: Cluster) -> None:
    """The API answers with a sentence, whatever comes."""
    with Client(str(cluster.home)) as client:
        for body in (
            b"{",
            b"[]",
            b"null",
            b'{"spec": 3}',
            b'{"spec": {"priority": "x"}}',
            b'{"jobs": [{}]}',
            b"\xff\xfe",
        ):
            answer = raw(cluster, b"POST", b"/v1/jobs", body)
            assert answer.split(b" ")[1] in (b"400", b"422", b"200"), (body, answer)
            assert b"Traceback" not in answer
        assert client.ping()["cluster"] == "rehearsal"


def raw(cluster: Cluster, method: bytes, path: bytes, body: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(cluster.home / "run" / "api.sock"))
        head = b"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (
            method,
            path,
            len(body),
        )
        connection.sendall(head + body)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("NodeName=n[1-", "slurm.conf"),
        ("PartitionName=main Nodes=nowhere", "nowhere"),
        ("NodeName=n1 CPUs=many", "CPUs"),
        ("PartitionName=p Nodes=ALL MaxTime=soon", "MaxTime"),
    ],
)
def test_a_wrong_slurm_conf_names_file_and_line(make_cluster: MakeCluster, line: str, words: str) -> None:
    cluster = make_cluster(up=False)
    text = "ClusterName=x\nSlurmctldHost=localhost\nNodeName=n2 NodeHostname=localhost CPUs=1\n" + line + "\n"
    cluster.conf(text)
    done = cluster.bireme("up", "--conf", str(cluster.conf_file), check=False)
    assert done.returncode != 0
    assert f"{cluster.conf_file}:4" in done.stderr or f"{cluster.conf_file} line 4" in done.stderr, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stale_pid_file_and_socket_are_no_obstacle(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(CONF)
    cluster.down("--end-jobs")
    (cluster.home / "run" / "daemon.pid").write_text(f"{os.getpid()}\n")
    with socket.socket(socket.AF_UNIX) as stale:
        with_path = cluster.home / "run" / "api.sock"
        with_path.unlink(missing_ok=True)
        stale.bind(str(with_path))
    cluster.up_again()
    assert cluster.daemon_pid() != os.getpid()
    assert "rehearsal" in cluster.bireme("status").stdout


def test_packages_of_another_python_are_no_obstacle(make_cluster: MakeCluster) -> None:
    """As `module load` puts them on PYTHONPATH; the job that is submitted there has them."""
    cluster = make_cluster(CONF)
    cluster.down("--end-jobs")
    (cluster.work / "numpy.py").write_text("raise SystemExit('a package of the user got in the way')")
    theirs = {"PYTHONPATH": str(cluster.work)}
    cluster.run("bireme", "up", "--quiet", env=theirs)
    job = cluster.sbatch("-o", "seen", "--wrap", "echo $PYTHONPATH", env=theirs)
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert (cluster.work / "seen").read_text() == f"{cluster.work}\n"


def test_a_damaged_journal_is_refused_with_its_name(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(CONF)
    cluster.down("--end-jobs")
    journal = cluster.home / "journal.db"
    kept = journal.read_bytes()
    for beside in ("-wal", "-shm"):
        Path(str(journal) + beside).unlink(missing_ok=True)
    journal.write_bytes(b"this is no database at all, and never was" * 100)
    done = cluster.bireme("up", check=False)
    assert done.returncode != 0
    assert str(journal) in done.stderr
    assert "Traceback" not in done.stderr
    journal.write_bytes(kept)
    cluster.up_again()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="a small file system needs root")
def test_a_full_disk_refuses_and_heals(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(CONF, up=False)
    cluster.home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(cluster.home)], check=True)
    try:
        cluster.up()
        cluster.script("true\n", "fine.sh")
        accepted = [cluster.sbatch("-H", "-o", "/dev/null", "fine.sh")]
        filler = cluster.home / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        answers = []
        for number in range(60):
            env = {"FILLER": f"{number}" * 9000}
            done = cluster.run("sbatch", "--parsable", "-H", "-o", "/dev/null", "fine.sh", check=False, env=env)
            answers.append(done)
            if done.returncode == 0:
                accepted.append(done.stdout.strip())
            elif len(answers) > 3:
                break
        assert answers[-1].returncode != 0
        assert answers[-1].stderr.startswith("sbatch: error: Batch job submission failed: "), answers[-1]
        assert "Traceback" not in answers[-1].stderr
        assert sorted(cluster.run("squeue", "-h", "-o", "%i").stdout.split()) == sorted(accepted)
        filler.unlink()
        again = cluster.sbatch("-o", "/dev/null", "--wrap", "exit 2")
        assert cluster.wait(again, 30)["exit_code"] == 2
        cluster.kill_daemon()
        cluster.up_again()
        assert sorted(cluster.run("squeue", "-h", "-o", "%i").stdout.split()) == sorted(accepted)
        cluster.down("--end-jobs")
    finally:
        for pid, _ in cluster.processes():
            os.kill(pid, signal.SIGKILL)
        cluster.until(lambda: not cluster.processes())
        subprocess.run(["umount", str(cluster.home)], check=True)
