"""Jobs and steps in images, as root, as a user of root's cluster, and as a user with a cluster of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_virtual_nodes import user_namespaces_work
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.images import Made, Put, busybox_layer, tar_of
from tests.support.registry import missing, registry
from tests.support.rootfs import busybox_root
from tests.support.serving import listening_router

CONF = virtual_nodes(2, 2, cpus=8)
pytestmark = pytest.mark.skipif(not user_namespaces_work(), reason="this kernel gives users no user namespaces")


@dataclass(frozen=True)
class Site:
    """A cluster, who uses it, and an image of theirs."""

    cluster: Cluster
    user: str | None
    image: Path
    work: Path

    @property
    def uid(self) -> int:
        return 65534 if self.user else os.getuid()

    def run(self, *words: str, check: bool = True, **how: Any) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(*words, check=check, user=self.user, cwd=self.work, **how)

    def srun(self, *words: str, check: bool = True, **how: Any) -> subprocess.CompletedProcess[str]:
        return self.run("srun", f"--container-image={self.image}", *words, check=check, **how)

    def sbatch(self, script: str, *options: str) -> tuple[dict[str, Any], str]:
        """Its record and its output, when it is over."""
        path = self.work / "job.sh"
        path.write_text(script)
        job = self.run("sbatch", "--parsable", "-o", "%j.out", *options, str(path)).stdout.strip()
        return self.cluster.wait(job), (self.work / f"{job}.out").read_text()


@pytest.fixture(scope="module", params=["root", "a user of root's", "a user's own"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if os.geteuid() != 0 and request.param != "a user's own":
        pytest.skip("needs root")
    user = "nobody" if request.param != "root" and os.geteuid() == 0 else None
    owner = user if request.param == "a user's own" else None
    with Cluster(CONF, owner=owner, for_everyone=True).running() as cluster:
        work = cluster.folder / "theirs"
        work.mkdir()
        if user is not None:
            os.chown(work, 65534, 65534)
        yield Site(cluster, user, busybox_root(cluster.folder / "image", user), work)


def test_a_task_runs_in_its_image_under_its_user(site: Site) -> None:
    said = site.srun(
        "sh", "-c", "cat /etc/made-by; ls /work 2>&1; id -u; pwd; echo $HOME; hostname; exit 7", check=False
    )
    assert said.stdout.splitlines() == [
        *("the test", "ls: /work: No such file or directory", "0", "/", "/root", "n1"),
    ]
    assert said.returncode == 7
    assert site.srun("--no-container-remap-root", "id", "-u").stdout == f"{site.uid}\n"
    made = site.work / "made"
    site.srun(f"--container-mounts={site.work}:/there", "sh", "-c", "touch /there/made")
    assert made.stat().st_uid == site.uid, "root by name alone"
    for folder in ("etc/apt", "etc/apt/apt.conf.d"):
        (site.image / folder).mkdir()
        os.chown(site.image / folder, site.image.stat().st_uid, site.image.stat().st_gid)
    told = site.srun("cat", "/etc/apt/apt.conf.d/99bireme").stdout
    assert told == 'APT::Sandbox::User "root";\n', "apt can become nobody else here, and looks whether it did"


def test_the_machine_is_seen_where_programs_need_it(site: Site) -> None:
    looks = """
        echo text > /dev/null && head -c4 /dev/zero | wc -c
        test -e /proc/self/status && test -d /sys/class && test -d /dev/pts && test -w /dev/shm && echo there
        grep -c n2 /etc/hosts
        touch /sys/x /written 2>&1; test -f /written && echo written
        ls $TMPDIR/here"""
    (site.work / "here").touch()
    said = site.srun("sh", "-c", looks, env={"TMPDIR": str(site.work)}).stdout.split("\n")
    assert said[:3] == ["4", "there", "1"], said
    assert "Read-only" in said[3]
    assert said[4] == "written"
    assert said[5] == f"{site.work}/here"
    assert not (site.image / "written").exists()


def test_mounts_lie_where_they_are_asked_for_and_nowhere_else(site: Site) -> None:
    (site.work / "data").mkdir()
    (site.work / "data/file").write_text("of the host\n")
    mounts = "--container-mounts=./data:/a/b:ro,./data/file:/single,tmpfs:/memory,/usr/share"
    said = site.srun(
        mounts, "sh", "-c", "cat /a/b/file /single; touch /a/b/x; touch /memory/y && ls /memory; ls -d /usr/share/doc"
    )
    assert said.stdout.split("\n")[:4] == ["of the host", "of the host", "y", "/usr/share/doc"]
    assert "Read-only file system" in said.stderr
    for bad, why in (
        ("/nowhere:/x", "/nowhere: No such file or directory"),
        ("/usr:../usr", "leads outside of the container"),
        ("usr:/x", "mount source must be a relative path, an absolute path"),
        (":", "--container-mounts: invalid format"),
        ("umount:/proc", "mount target /proc is the container's own"),
        ("/etc/hostname:/bin", "one of them is a folder, the other is not"),
    ):
        refused = site.srun(f"--container-mounts={bad}", "true", check=False)
        assert refused.returncode != 0
        assert "error: pyxis: " in refused.stderr
        assert why in refused.stderr


def test_what_is_not_there_is_said_and_fails_the_task(site: Site) -> None:
    for options, why in (
        (["--container-image=/nowhere"], "/nowhere is not there"),
        (
            [f"--container-image={site.image}", "--container-workdir=/nowhere"],
            "couldn't chdir to /nowhere: No such file",
        ),
        (["--container-name=box"], 'a container with name "box" does not exist, and --container-image is not set'),
        (["--container-image="], "--container-image: argument required"),
        (
            ["--container-name=a:b", f"--container-image={site.image}"],
            'flag must be "auto", "create", "exec" or "no_exec"',
        ),
        (["--container-writable", "--container-readonly"], "both --container-readonly and --container-writable were"),
    ):
        refused = site.run("srun", *options, "true", check=False)
        assert refused.returncode != 0
        assert why in refused.stderr, refused.stderr
    assert "execve(): nothing: No such file" in site.srun("nothing", check=False).stderr


def test_the_images_variables_win_but_for_the_jobs_own(site: Site) -> None:
    said = site.srun(
        "sh",
        "-c",
        'echo "$SLURM_JOB_ID.$SLURM_PROCID" $KEPT; echo $PATH',
        env={"KEPT": "kept", "PATH": site.cluster.env["PATH"]},
    )
    first, path = said.stdout.splitlines()
    assert first.endswith(".0 kept")
    assert path.split(":")[:2] == ["/run/bireme/bin", "/usr/local/sbin"]


def test_a_batch_script_runs_in_its_image_and_its_steps_where_they_say(site: Site) -> None:
    script = f"#!/bin/sh\n#SBATCH --container-image={site.image}\ncat /etc/made-by; echo $0; exit 5\n"
    record, output = site.sbatch(script)
    assert (record["state"], record["exit_code"]) == ("FAILED", 5)
    assert output.startswith("the test\n"), output
    record, output = site.sbatch(script, "--container-image=/nowhere")
    assert record["state"] == "FAILED"
    assert output.startswith("slurmstepd: error: pyxis: /nowhere is not there: "), output
    record, output = site.sbatch(script.replace("/bin/sh", "/bin/nosh"))
    assert record["state"] == "FAILED"
    assert "pyxis: the script begins with #!/bin/nosh, and the image has no /bin/nosh: " in output


def test_steps_of_a_job_share_a_container_by_its_name(site: Site) -> None:
    script = f"""#!/bin/sh
        srun -N1 --container-image={site.image} --container-name=box sh -c 'echo in the box > /note' || echo first
        srun -N1 --container-name=box cat /note || echo second
        srun -N1 --container-name=box --container-workdir=/etc pwd
        srun -N1 --container-image={site.image} cat /note || echo not in another
        srun -N1 --container-image={site.image} --container-name=box:create true || echo there already
        """
    _, output = site.sbatch(script, "-N1")
    lines = [line for line in output.splitlines() if not line.startswith(("slurmstepd", "srun", "cat"))]
    assert lines == ["in the box", "/etc", "not in another", "there already"], output


def test_a_readonly_image_is_read_only(site: Site) -> None:
    refused = site.srun("--container-readonly", "touch", "/x", check=False)
    assert "Read-only file system" in refused.stderr
    by_variable = site.srun("touch", "/x", check=False, env={"PYXIS_CONTAINER_READONLY": "1"})
    assert "Read-only file system" in by_variable.stderr


def test_the_home_folder_is_there_when_it_is_asked_for(site: Site) -> None:
    if site.user is not None:
        pytest.skip("nobody has no home")
    listed = site.srun("--container-mount-home", "sh", "-c", "ls -a $HOME").stdout
    assert sorted(listed.split()) == sorted([".", "..", *os.listdir(Path.home())])
    assert site.srun("sh", "-c", "ls $HOME").stdout == ""


def test_nothing_is_left_of_a_container(site: Site) -> None:
    """Signals, ends and limits are those of tasks outside: what runs in a box is below its keeper."""
    path = site.work / "long.sh"
    path.write_text("#!/bin/sh\nsh -c 'touch /tmp/started.$SLURM_JOB_ID; sleep 600' & sleep 600\n")
    job = site.run("sbatch", "--parsable", f"--container-image={site.image}", str(path)).stdout.strip()
    started = Path(f"/tmp/started.{job}")
    site.cluster.until(started.exists)
    started.unlink()
    assert site.cluster.pids_with(f"BIREME_JOB={job}.")
    site.run("scancel", job)
    assert site.cluster.wait(job)["state"] == "CANCELLED"
    assert not site.cluster.pids_with(f"BIREME_JOB={job}.")
    mounts = Path("/proc/self/mounts").read_text()
    assert str(site.image) not in mounts


def test_the_commands_work_inside_though_the_image_has_no_python(site: Site) -> None:
    """Nor the machine's C library: busybox has none."""
    script = f"""#!/bin/sh
        #SBATCH --container-image={site.image}
        ls /usr/lib 2>&1 | head -1
        scontrol show job $SLURM_JOB_ID | grep -o JobState=RUNNING
        srun -n2 sh -c 'test -e /etc/made-by || echo a task outside'
        srun -n1 --container-image={site.image} cat /etc/made-by
        """
    record, output = site.sbatch("\n".join(line.strip() for line in script.splitlines()), "-N1", "-n2")
    assert output.splitlines() == [
        "ls: /usr/lib: No such file or directory",
        "JobState=RUNNING",
        "a task outside",
        "a task outside",
        "the test",
    ], output
    assert record["state"] == "COMPLETED"


def test_what_an_image_says_of_itself_holds_as_under_pyxis(site: Site) -> None:
    """ENV wins but for the names of --container-env, WORKDIR is made and entered, ENTRYPOINT is run when asked for."""
    said = {
        "Env": ["FOO=image", "KEPT=image", "PATH=/bin"],
        "WorkingDir": "/made/for/it",
        "User": "1234",
        "Cmd": ["no"],
    }
    made = Made([busybox_layer()], Entrypoint=["/bin/env", "ENTERED=yes"], **said)
    image = f"--container-image={made.to_layout(site.work / 'layout')}"
    program = 'echo $FOO $KEPT; pwd; echo "entered:$ENTERED"; ls -ld /etc/passwd | cut -c1-10; id -u'
    words = ["sh", "-c", program]
    own = {"FOO": "outside", "KEPT": "outside"}
    plain = site.run("srun", image, "--container-env=KEPT", *words, env=own)
    assert plain.stdout.splitlines() == ["image outside", "/made/for/it", "entered:", "-rw-r--r--", "0"], plain.stderr
    entered = site.run("srun", image, "--container-entrypoint", "--container-workdir=/etc", *words, env=own)
    assert entered.stdout.splitlines()[:3] == ["image image", "/etc", "entered:yes"]


def test_what_a_container_holds_is_saved_and_runs_again(site: Site) -> None:
    if shutil.which("mksquashfs") is None:
        pytest.skip("not installed: squashfs-tools")
    saved = site.work / "saved.sqsh"
    done = site.srun(f"--container-save={saved}", "sh", "-c", "echo new > /note; rm /etc/made-by")
    assert f"pyxis: saving container filesystem at {saved}" in done.stderr
    assert saved.stat().st_uid == site.uid
    again = site.run("srun", f"--container-image={saved}", "sh", "-c", "cat /note; ls /etc/made-by", check=False)
    assert again.stdout == "new\n"
    assert f"pyxis: importing image: {saved}\n" in again.stderr, "no docker image"
    refused = site.srun("--container-save=/nowhere/x.sqsh", "echo", "ran", check=False)
    assert (refused.returncode, refused.stdout) == (1, ""), "before anything runs, not after hours of work"
    assert "error: pyxis: /nowhere/x.sqsh cannot be written" in refused.stderr


def test_a_bundle_says_how_its_root_is_run(site: Site) -> None:
    """Slurm's own `--container`, with the config.json that `runc spec` writes, and without one."""
    bundle = site.work / "bundle"
    bundle.mkdir()
    (bundle / "rootfs").symlink_to(site.image)
    assert site.run("srun", "--container=bundle", "cat", "/etc/made-by").stdout == "the test\n"
    (bundle / "data").mkdir()
    (bundle / "data/file").write_text("of the bundle\n")
    (bundle / "image").symlink_to(site.image)
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "image", "readonly": True},
        "process": {"args": ["no"], "env": ["SAID=by the bundle", "PATH=/bin"], "cwd": "/etc", "user": {"uid": 7}},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/tmp/data", "type": "bind", "source": "data", "options": ["rbind", "ro"]},
        ],
    }
    (bundle / "config.json").write_text(json.dumps(config))
    looks = "pwd; echo $SAID; cat made-by /tmp/data/file; touch /tmp/data/x /x; id -u"
    said = site.run("srun", "--container=bundle", "sh", "-c", looks)
    assert said.stdout.splitlines() == ["/etc", "by the bundle", "the test", "of the bundle", "0"], said.stderr
    assert said.stderr.count("Read-only file system") == 2
    (bundle / "config.json").write_text("{")
    refused = site.run("srun", "--container=bundle", "true", check=False)
    assert "bundle/config.json cannot be read: " in refused.stderr


def test_what_cannot_be_saved_fails_its_step_and_its_script(site: Site) -> None:
    """Whoever goes on after it would take an image that is not there."""
    if shutil.which("mksquashfs") is None:
        pytest.skip("not installed: squashfs-tools")
    inside = f"--container-mounts={site.work}:/there"
    for number in (1, 2):
        (site.work / f"gone{number}").mkdir()
        (site.work / f"gone{number}").chmod(0o777)
    words = (f"--container-save={site.work}/gone1/x.sqsh", inside)
    failed = site.srun(*words, "sh", "-c", "rmdir /there/gone1; echo ran", check=False)
    assert (failed.returncode, failed.stdout) == (1, "ran\n")
    assert "gone1/x.sqsh cannot be written: name a file in a folder that is there" in failed.stderr
    script = f"#!/bin/sh\n#SBATCH --container-image={site.image}\nrmdir /there/gone2\n"
    record, output = site.sbatch(script, f"--container-save={site.work}/gone2/x.sqsh", inside)
    assert (record["state"], record["exit_code"]) == ("FAILED", 1)
    assert "gone2/x.sqsh cannot be written" in output


def test_an_allocations_options_hold_for_its_steps(site: Site) -> None:
    """Each where srun says no other, on all of its nodes."""
    held = ("salloc", "-N2", f"--container-image={site.image}", "--container-workdir=/etc", "--container-readonly")
    program = "srun sh -c 'pwd; cat made-by; touch /x'; srun -N1 --container-workdir=/bin --container-writable " + (
        "sh -c 'pwd; touch /x && rm /x'; test -e /etc/made-by || echo the shell is outside"
    )
    said = site.run(*held, "sh", "-c", program)
    assert sorted(said.stdout.splitlines()) == sorted(["/etc", "the test"] * 2 + ["/bin", "the shell is outside"])
    assert said.stderr.count("Read-only file system") == 2
    inner = site.srun("sh", "-c", "srun --overlap test -e /etc/made-by || echo a step of its own")
    assert inner.stdout == "a step of its own\n", "within an srun that made its job"


def test_two_hundred_tasks_start_in_one_image(site: Site) -> None:
    """And each has its own pid in its environment."""
    program = "test $SLURM_TASK_PID = $$ && echo $SLURM_PROCID"
    said = site.srun("-n200", "-N1", "--overcommit", "sh", "-c", program).stdout.split()
    assert sorted(map(int, said)) == list(range(200))


def test_a_terminal_is_one_inside_too(site: Site) -> None:
    said = site.srun("--pty", "sh", "-c", "tty; test -t 0 && echo yes; exit 3", check=False)
    name, yes = said.stdout.split()
    assert name.startswith("/dev/pts/")
    assert (yes, said.returncode) == ("yes", 3)


def test_a_service_runs_in_its_image_and_is_replaced_there(site: Site) -> None:
    """Its health is asked from outside; what is killed inside is followed by another; nothing is left of it."""
    if site.user is not None:
        pytest.skip("one site is enough")
    script = """#!/bin/sh
        #BIREME --replicas=1 --health=/
        mkdir /www && cat /etc/made-by > /www/index.html
        exec httpd -f -p $PORT -h /www
        """
    (site.work / "web.sh").write_text("\n".join(map(str.strip, script.splitlines())))
    site.run("bireme", "serve", "web.sh", "--name", "web", f"--container-image={site.image}", "--wait")

    address = f"{listening_router(site.cluster)['url']}/web/"

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(address, timeout=10) as page:
            return bool(page.read() == b"the test\n")
        return False

    assert answers()
    first = site.cluster.pids_with("BIREME_REPLICA=1")
    for pid in first:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    site.cluster.until(lambda: site.cluster.pids_with("BIREME_REPLICA=2") and answers())
    site.run("bireme", "service", "stop", "web")
    site.cluster.until(lambda: not site.cluster.pids_with("BIREME_SERVICE=web"))


TRAIN = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --exclusive
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun \\
--container-image=REGISTRY#nvidia/pytorch:24.12-py3 \\
--container-mounts=DATA:/data,DATA:/scratch \\
torchrun \\
--nnodes=$SLURM_JOB_NUM_NODES \\
--nproc_per_node=8 \\
--master_addr=$MASTER_ADDR \\
--master_port=29500 \\
train.py
"""
"""An article's script, word for word but for the registry and the folders."""
TORCHRUN = b"#!/bin/sh\ncat /data/set; echo $SLURM_PROCID $RANK $*\n"


def test_an_articles_training_runs_from_a_registry(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    program = tar_of(Put("bin/torchrun", TORCHRUN, mode=0o755))
    made = Made([busybox_layer(), program], Env=["PATH=/bin", "PYTORCH_VERSION=2.6"], WorkingDir="/workspace")
    with registry(tmp_path) as site:
        made.push(site.host, "nvidia/pytorch", "24.12-py3")
        cluster = Cluster(virtual_nodes(4, 8))
        cluster.variables["BIREME_IMAGES_INSECURE"] = site.host
        with cluster.running():
            (cluster.work / "set").write_text("the data\n")
            script = TRAIN.replace("REGISTRY", site.host).replace("DATA", str(cluster.work))
            job = cluster.sbatch("-o", "train.out", input=script)
            assert cluster.wait(job)["state"] == "COMPLETED", (cluster.work / "train.out").read_text()
            lines = (cluster.work / "train.out").read_text().splitlines()
            refused = cluster.run("srun", f"--container-image={site.host}#nvidia/none:1", "true", check=False)
    words = "--nnodes=4 --nproc_per_node=8 --master_addr=n1 --master_port=29500 train.py"
    ran = [line for line in lines if line.endswith("train.py")]
    assert sorted(ran) == [f"{rank} {rank} {words}" for rank in range(4)]
    assert lines.count("the data") == 4
    assert any(line.startswith("pyxis: importing docker image: ") for line in lines), lines
    assert refused.returncode == 1
    assert "slurmstepd: error: pyxis: " in refused.stderr
