"""A cluster of root's with several users: jobs run as their submitters, and nobody touches another's."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, virtual_nodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other users")

ANN, BOB = "nobody", "daemon"
"""Two accounts that every system has."""
SECRET = "hush-7d1f"
CLUB, OTHER = grp.getgrnam("games"), grp.getgrnam("users")
"""Two groups that every system has, and in which neither of them is."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    conf = virtual_nodes(2, 0, cpus=8) + f"PartitionName=club Nodes=ALL AllowGroups={CLUB.gr_name}\n"
    made = Cluster(conf, for_everyone=True)
    for user in (ANN, BOB):
        (made.work / user).mkdir(mode=0o700)
        os.chown(made.work / user, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    with made.running():
        yield made


@pytest.fixture(scope="module")
def anns_job(cluster: Cluster) -> str:
    """Runs until the module ends."""
    script = cluster.work / ANN / "long.sh"
    script.write_text(f"#!/bin/bash\n# {SECRET}\nsrun sleep 900\n")
    script.chmod(0o755)
    env = {"ANN_TOKEN": SECRET}
    job = cluster.sbatch("-o", "long.out", "long.sh", user=ANN, cwd=cluster.work / ANN, env=env)
    cluster.until(lambda: f"{job}.0" in cluster.run("squeue", "-s", "-h", "-o", "%i").stdout.split())
    return job


def test_a_job_runs_as_its_submitter(cluster: Cluster) -> None:
    folder = cluster.work / ANN
    words = "id -u; id -g; id -G; touch mine; srun bash -c 'id -u; touch step'"
    job = cluster.sbatch("-o", "id.out", "--wrap", words, user=ANN, cwd=folder)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    ann = pwd.getpwnam(ANN)
    lines = (folder / "id.out").read_text().splitlines()
    assert lines == [str(ann.pw_uid), str(ann.pw_gid), str(ann.pw_gid), str(ann.pw_uid)]
    for name in ("id.out", "mine", "step"):
        assert (folder / name).stat().st_uid == ann.pw_uid
    assert cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%u").stdout.strip() == ANN


def test_a_job_has_all_groups_of_its_submitter_and_the_first_that_it_was_submitted_under(cluster: Cluster) -> None:
    folder = cluster.work / ANN
    words = "id -g; id -G; srun id -g; srun id -G"
    how = {"user": ANN, "cwd": folder, "gid": CLUB.gr_gid, "groups": [OTHER.gr_gid]}  # as under `sg`
    job = cluster.sbatch("-o", "groups.out", "--wrap", words, **how)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    first, all_of_them, *of_the_step = (folder / "groups.out").read_text().splitlines()
    assert first == str(CLUB.gr_gid)
    ids = {CLUB.gr_gid, OTHER.gr_gid, pwd.getpwnam(ANN).pw_gid}
    assert set(map(int, all_of_them.split())) == ids
    assert of_the_step == [first, all_of_them]
    assert cluster.run("srun", "id", "-G", **how).stdout.split() == all_of_them.split()


def test_allow_groups_lets_a_member_in_by_any_of_the_groups(cluster: Cluster) -> None:
    how = {"user": ANN, "cwd": cluster.work / ANN}
    refused = cluster.run("sbatch", "-p", "club", "--wrap", "true", check=False, **how)
    assert refused.returncode == 1
    assert f"partition club is for groups {CLUB.gr_name}" in refused.stderr
    for groups in ({"groups": [CLUB.gr_gid]}, {"gid": CLUB.gr_gid}):
        job = cluster.sbatch("-p", "club", "-o", "club.out", "--wrap", "true", **how, **groups)
        assert cluster.wait(job, 30)["state"] == "COMPLETED"


def test_a_terminal_belongs_to_the_user_who_has_it(cluster: Cluster) -> None:
    """Programs such as `gpg`, `tmux` and `screen` open it again by its name."""
    words = 'stat -c "%U %a" "$(tty)" && echo again >"$(tty)"'
    done = cluster.run("srun", "--pty", "bash", "-c", words, user=ANN, cwd=cluster.work / ANN, input="")
    assert done.stdout.split() == [ANN, "620", "again"], done


def test_an_output_the_user_may_not_write_fails_the_job(cluster: Cluster) -> None:
    """The file is opened as the user: root's rights are not lent to anybody."""
    target = cluster.folder / "roots-own"
    job = cluster.sbatch("-o", str(target), "--wrap", "true", user=ANN, cwd=cluster.work / ANN)
    record = cluster.wait(job, 30)
    assert (record["state"], record["exit_signal"]) == ("FAILED", 53)
    assert not target.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("scancel {}", "Access/permission denied"),
        ("scancel -s USR1 {}", "Access/permission denied"),
        ("scontrol update JobId={} TimeLimit=1", "Access/permission denied"),
        ("scontrol hold {}", "Access/permission denied"),
        ("scontrol requeue {}", "Access/permission denied"),
        ("scontrol suspend {}", "Access/permission denied"),
        ("scontrol write batch_script {} -", "Access/permission denied"),
        ("srun --jobid={} --overlap id -u", "Access/permission denied"),
        ("sattach {}.0", "Access/permission denied"),
        ("scancel {}.0", "Access/permission denied"),
        ("scancel -u nobody", "Access/permission denied"),
        ("bireme down", "belongs to another user"),
    ],
)
def test_another_user_is_refused(cluster: Cluster, anns_job: str, command: str, message: str) -> None:
    done = cluster.run(*command.format(anns_job).split(), check=False, user=BOB, cwd=cluster.work / BOB, timeout=20)
    assert done.returncode != 0, done
    assert message in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert cluster.records(anns_job)[0]["state"] == "RUNNING"


def test_another_user_reads_neither_script_nor_environment(cluster: Cluster, anns_job: str) -> None:
    for path in ("", "/script", "/environment", "/story", "/steps"):
        said = curl(cluster, f"/v1/jobs/{anns_job}{path}")
        assert SECRET not in said, path
    assert SECRET not in cluster.run("scontrol", "show", "job", "-dd", anns_job, user=BOB, cwd="/").stdout
    assert SECRET in cluster.run("scontrol", "write", "batch_script", anns_job, "-", user=ANN, cwd="/").stdout


def curl(cluster: Cluster, path: str) -> str:
    """As BOB, past the commands."""
    program = (
        "import socket,sys\n"
        f"s=socket.socket(socket.AF_UNIX); s.connect({str(cluster.home / 'run' / 'api.sock')!r}); s.settimeout(10)\n"
        f"s.sendall(b'GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "while (d := s.recv(65536)): sys.stdout.write(d.decode('utf-8','replace'))\n"
    )
    return cluster.run("python3", "-c", program, user=BOB, cwd="/").stdout


def test_nothing_secret_in_arguments_logs_or_readable_files(cluster: Cluster, anns_job: str) -> None:
    for pid, words in cluster.processes():
        assert SECRET not in words, pid
    for log in [cluster.home / "log" / "daemon.log", *cluster.home.glob("agents/*/agent.log")]:
        assert SECRET not in log.read_text(errors="replace"), log
    for path in cluster.home.rglob("*"):
        if path.is_file() and SECRET.encode() in path.read_bytes():
            assert not readable_by(path, BOB), path


def readable_by(path: Path, user: str) -> bool:
    entry = pwd.getpwnam(user)
    identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return subprocess.run(["cat", str(path)], capture_output=True, **identity).returncode == 0


def test_modes_of_the_home(cluster: Cluster) -> None:
    mode = lambda path: stat.S_IMODE((cluster.home / path).stat().st_mode)  # noqa: E731
    assert mode("") == 0o711
    assert mode("log") == 0o700
    assert mode("journal.db") & 0o077 == 0
    assert mode("run/api.sock") == 0o666


def test_nobody_else_speaks_as_the_daemon(cluster: Cluster, anns_job: str) -> None:
    """An agent obeys its own uid and root. BOB's `terminate` is cut off unread."""
    program = (
        "import socket,json\n"
        f"s=socket.socket(socket.AF_UNIX); s.connect({str(cluster.home / 'agents' / 'n1' / 'agent.sock')!r})\n"
        "s.settimeout(10)\n"
        "lines=[{'hello':'daemon','version':'x'},{'op':'terminate','job':%s,'gen':1,'grace_s':0}]\n"
        "s.sendall(b''.join(json.dumps(l).encode()+b'\\n' for l in lines))\n"
        "print(repr(s.recv(65536)))\n"
    ) % anns_job
    done = cluster.run("python3", "-c", program, user=BOB, cwd="/", check=False)
    assert done.stdout.strip() in ("b''", "") or "Permission" in done.stderr, done
    assert "welcome" not in done.stdout
    assert cluster.records(anns_job)[0]["state"] == "RUNNING"


def test_ordinary_users_do_not_operate_the_cluster(cluster: Cluster) -> None:
    for words in (
        "scontrol update NodeName=n1 State=DOWN Reason=x",
        "scontrol update PartitionName=main State=DOWN",
        "scontrol reconfigure",
        "scontrol shutdown",
    ):
        done = cluster.run(*words.split(), check=False, user=BOB, cwd="/")
        assert done.returncode != 0, words
    assert cluster.run("sinfo", "-h", "-o", "%T").stdout.split()[0] in ("idle", "mixed")


def test_the_queue_is_not_jumped_at_submission(cluster: Cluster) -> None:
    """As with Slurm: a nice value that raises is refused, a priority passed over; and that is said."""
    own = {"user": BOB, "cwd": cluster.work / BOB}
    higher = cluster.run("sbatch", "--nice=-100", "--wrap", "true", check=False, **own)
    assert higher.returncode == 1
    assert higher.stderr.startswith("sbatch: error: Batch job submission failed: Invalid --nice value\n")
    asked = cluster.run("sbatch", "-H", "--parsable", "--priority=4000000000", "--wrap", "true", **own)
    assert "sbatch: --priority is accepted but not applied: only an operator may set it" in asked.stderr
    cluster.run("scontrol", "release", asked.stdout.strip(), **own)
    assert cluster.records(asked.stdout.strip())[0]["priority"] != 4_000_000_000
    fixed = cluster.run("sbatch", "-H", "--parsable", "--priority=7", "--nice=-1", "--wrap", "true")
    assert not fixed.stderr
    cluster.run("scancel", asked.stdout.strip(), fixed.stdout.strip(), check=False)


def test_priority_cannot_be_taken(cluster: Cluster) -> None:
    job = cluster.sbatch("-H", "--wrap", "true", user=BOB, cwd=cluster.work / BOB)
    done = cluster.run("scontrol", "update", f"JobId={job}", "Priority=4000000000", check=False, user=BOB, cwd="/")
    assert done.returncode != 0
    assert "Access/permission denied" in done.stderr
    cluster.run("scancel", job, user=BOB, cwd="/")


def test_a_held_job_of_an_administrator_stays_held(cluster: Cluster) -> None:
    job = cluster.sbatch("--begin=now+1hour", "--wrap", "true", user=BOB, cwd=cluster.work / BOB)
    cluster.run("scontrol", "hold", job)
    done = cluster.run("scontrol", "release", job, check=False, user=BOB, cwd="/")
    assert done.returncode != 0
    assert re.search("Access/permission denied", done.stderr)
    cluster.run("scancel", job)


README = r"""
eval "$("$PYTHON" -m bireme env)"
sbatch --parsable --wait -o train.out train.sh
squeue; sinfo; sacct; scontrol show job 1; scontrol show node; sacctmgr show user; sshare
bireme status
bireme logs "$(sacct -n -X -o JobID -u "$(id -u)" | tail -1 | tr -d ' ')"
bireme explain train.sh
bireme why "$(sacct -n -X -o JobID -u "$(id -u)" | tail -1 | tr -d ' ')"
bireme top --once
bireme doctor
bireme whatif --add-nodes 1x4
srun -n2 hostname
salloc -n1 srun id -u
job=$(sbatch --parsable -o held.out --wrap 'srun sleep 900')
until squeue -s -h -o %i | grep -qx "$job.0"; do sleep 0.1; done
sattach "$job.0" & attached=$!
scancel "$job"
wait $attached || true
"$PYTHON" -c 'import bireme; job = bireme.Client().submit("train.sh"); job.wait(); assert job.state == "COMPLETED"'
eval "$(bireme env --unset)"
"""


def test_a_second_user_can_do_all_that_the_readme_says(cluster: Cluster) -> None:
    """On a cluster of root's, from a shell that knows nothing but where it is."""
    folder = cluster.work / BOB
    (folder / "train.sh").write_text("#!/bin/bash\necho trained by $(id -un)\n")
    path = f"{os.path.dirname(cluster.python)}:/usr/bin:/bin"
    env = {"PATH": path, "PYTHON": cluster.python, "HOME": str(folder)}
    done = cluster.run("bash", "-exc", README, user=BOB, cwd=folder, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"trained by {BOB}" in done.stdout, "bireme logs"
    assert str(pwd.getpwnam(BOB).pw_uid) in done.stdout.split(), "salloc and srun ran as the user"


def test_the_doctor_speaks_of_the_cluster_whoever_asks(cluster: Cluster) -> None:
    """What a user may do with cgroups says nothing about jobs that root's agents confine and track."""

    def about_jobs(said: str) -> list[str]:
        return [line for line in said.splitlines() if "confine " in line or "tracking" in line]

    asked = (cluster.python, "-m", "bireme", "doctor")
    mine = about_jobs(cluster.run(*asked, check=False).stdout)
    assert len(mine) == 4
    assert about_jobs(cluster.run(*asked, check=False, user=BOB, cwd="/").stdout) == mine


def test_a_second_user_is_told_who_starts_the_cluster(cluster: Cluster) -> None:
    done = cluster.run(cluster.python, "-m", "bireme", "up", check=False, user=BOB, cwd=cluster.work / BOB)
    assert done.returncode == 1
    assert "belongs to uid 0, who alone can start it" in done.stderr


def test_no_file_of_a_home_can_be_opened_by_others_but_its_commands_and_sockets(cluster: Cluster) -> None:
    """Whoever can open a file can lock it, lease it or read it."""
    files = [str(path) for path in cluster.home.rglob("*") if path.is_file()]
    attempt = 'for name; do head -c 1 "$name" >/dev/null 2>&1 && echo "$name"; done; true'
    opened = cluster.run("/bin/sh", "-c", attempt, "sh", *files, user=BOB, cwd="/").stdout.splitlines()
    others = [name for name in opened if os.stat(name).st_uid != pwd.getpwnam(BOB).pw_uid]  # not his own scripts
    told = {"agents.json", "daemon.pid", "hosts", "hostname"}  # words, which nobody locks
    assert {name for name in others if Path(name).parent.name != "bin" and Path(name).name not in told} == set()


EVIL = "\x1b]0;owned\x07\x1b[31mname\r\n999 fake root R"
SHOWN = r"\u001b]0;owned\u0007"
LOOKS = (
    "squeue", "squeue -o %all", "squeue -O name:200,comment:200,workdir:200", "squeue --long", "sinfo -R",
    "sinfo -N -l", "sinfo -o %all", "sacct -a -X -o jobid,jobname%90",
    "sacct -a -X -P -o jobid,jobname,comment,workdir",
    "scontrol show job", "scontrol -o show job", "scontrol show node n2", "scontrol show hostnames n1",
    "sprio", "sshare -a", "bireme status", "bireme why {}", "bireme top --once", "bireme logs {}",
)  # fmt: skip


def test_nothing_that_users_write_reaches_anothers_terminal_as_an_order(cluster: Cluster) -> None:
    folder = cluster.work / BOB / "dir\x1b[2Jname"
    folder.mkdir()
    os.chown(folder, pwd.getpwnam(BOB).pw_uid, pwd.getpwnam(BOB).pw_gid)
    words = ("-J", EVIL, "--comment", EVIL, "-H", "-o", str(folder / "out"), "--wrap", "true")
    job = cluster.sbatch(*words, user=BOB, cwd=folder)
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", f"Reason={EVIL}")
    try:
        for look in LOOKS:
            done = cluster.run(*look.format(job).split(), check=False)
            obeyed = {each for each in done.stdout + done.stderr if ord(each) < 32 or 127 <= ord(each) < 160}
            assert obeyed <= {"\n", "\t"}, look
            assert not any(line.startswith("999 fake") for line in done.stdout.splitlines()), look
        assert SHOWN in cluster.run("squeue", "-o", "%j").stdout
        assert SHOWN in cluster.run("sinfo", "-R", "-o", "%E").stdout
        assert SHOWN in cluster.run("scontrol", "show", "job", job).stdout
        (record,) = json.loads(cluster.run("squeue", "--json", "-j", job).stdout)["jobs"]
        assert record["name"] == EVIL
        refused = (
            cluster.run("scancel", EVIL, check=False).stderr + cluster.run("sbatch", "-p", EVIL, check=False).stderr
        )
        assert "\x1b" not in refused
    finally:
        cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
        cluster.run("scancel", job)


def test_ann_cancels_her_own(cluster: Cluster, anns_job: str) -> None:
    cluster.run("scancel", anns_job, user=ANN, cwd="/")
    record = cluster.wait(anns_job, 30)
    assert (record["state"], record["cancelled_by"]) == ("CANCELLED", pwd.getpwnam(ANN).pw_uid)


def test_a_service_is_of_who_made_it(cluster: Cluster) -> None:
    """Its replicas run as its owner; nobody else changes it, takes its name, or reads its keys."""

    def bireme(user: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = (cluster.python, "-m", "bireme", *words)
        return cluster.run(*command, user=user, cwd=cluster.work / user, check=False)

    for user in (ANN, BOB):
        script = cluster.work / user / "web.sh"
        script.write_text('#!/bin/bash\n#BIREME --replicas=1 --health=/\nexec python3 -m http.server "$PORT"\n')
        script.chmod(0o755)
        os.chown(script, pwd.getpwnam(user).pw_uid, -1)
    made = bireme(ANN, "serve", "web.sh", "--wait")
    assert made.returncode == 0, made.stderr
    shown = json.loads(bireme(BOB, "service", "show", "web", "--json").stdout)
    assert (shown["user_name"], shown["ready"]) == (ANN, 1)
    job = str(shown["replicas"][0]["job_id"])
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%u").stdout.strip() == ANN
    assert (cluster.work / ANN / f"slurm-{job}.out").stat().st_uid == pwd.getpwnam(ANN).pw_uid
    for words in (
        "serve web.sh", "service scale web 0", "service stop web", "service restart web", "service rollback web",
        "service key add web", "service key list web", "service events web", "service logs web",
    ):  # fmt: skip
        refused = bireme(BOB, *words.split())
        assert refused.returncode == 1, words
        assert f"service web is {ANN}'s" in refused.stderr, words
    assert bireme(BOB, "serve", "web.sh", "--name=webs", "--model=web").returncode == 1
    assert json.loads(bireme(BOB, "service", "show", "web", "--json").stdout)["replicas"] == shown["replicas"]
    assert bireme(ANN, "service", "stop", "web", "--wait").returncode == 0
