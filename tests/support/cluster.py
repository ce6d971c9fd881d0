"""A real cluster for tests: its own BIREME_HOME, `bireme up`, the commands on a PATH, and an end that leaves nothing.

Not the scenario language (`bireme.testing`): that decides in memory; here daemons, agents and jobs are processes.
Used through the fixtures `cluster` and `make_cluster` of tests/conftest.py.
Invariant: `stop` ends every process of the cluster, by process id; what only the rescue could end is told to the test.
"""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from tests.support.looks import looks
from tests.support.ports import claimed_ports

from bireme.client.sdk import Client
from bireme.daemon.process import running_pid
from bireme.runtime.service import BREACH

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0
_OUTSIDE = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "BIREME_", "PMI_")


def virtual_nodes(nodes: int = 4, gpus: int = 8, *, cpus: int = 64, settings: str = "") -> str:
    """The text of a slurm.conf: so many virtual nodes on this machine, in the partitions `main` and `debug`."""
    return f"""\
ClusterName=rehearsal
SlurmctldHost=localhost
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=512
KillWait=2
MinJobAge=3600
{settings}
NodeName=n[1-{nodes}] NodeHostname=localhost CPUs={cpus} RealMemory=256000 Gres=gpu:h100:{gpus} Feature=virtual
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 DefaultTime=10:00
PartitionName=debug Nodes=ALL MaxTime=30:00 PriorityTier=10
"""


class Cluster:
    """One embedded cluster. Paths are short on purpose: socket names have room for 107 bytes."""

    def __init__(self, conf: str = "", owner: str | None = None, *, for_everyone: bool = False) -> None:
        """`owner`: who starts it, when that is not who runs the tests. `for_everyone`: other users will come."""
        self.owner = owner
        self.up_in: list[str] = []
        """Words before those that start it: a program that makes the world it is to live in."""
        self._claim, self.service_ports = claimed_ports()
        self.variables = {
            "BIREME_ROUTER_ADDRESS": "127.0.0.1:0",
            "BIREME_TELEMETRY_GATHER": "off",
            "BIREME_SERVICES_PORTS": f"{self.service_ports[0]}-{self.service_ports[-1]}",
        }
        """Settings of the daemon, as variables. Many clusters run on this machine at once, each with its own router and
        with ports for its services that no other has."""
        self.folder = Path(tempfile.mkdtemp(prefix="bireme-"))
        self.home = self.folder / "home"
        self.work = self.folder / "work"
        self.work.mkdir()
        self.folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
        self.python = python_for_everyone(self.folder) if for_everyone or owner else sys.executable
        if owner is not None:
            for path in (self.folder, self.work):
                os.chown(path, pwd.getpwnam(owner).pw_uid, pwd.getpwnam(owner).pw_gid)
        self.conf_file = self.conf(conf or virtual_nodes())

    # -- configuration ---------------------------------------------------------------------------------------------

    def conf(self, text_or_name: str, **beside: str) -> Path:
        """Sets the configuration of the next `up`: the text of a slurm.conf, or the name of a folder of examples/.

        `beside` are the texts of files beside it: `conf(text, gres=..., topology=...)`.
        """
        folder = self.folder / "etc"
        if "\n" not in text_or_name:
            shutil.copytree(ROOT / "examples" / text_or_name, folder, dirs_exist_ok=True)
        else:
            folder.mkdir(exist_ok=True)
            (folder / "slurm.conf").write_text(text_or_name)
        for name, text in beside.items():
            (folder / f"{name}.conf").write_text(text)
        self.conf_file = folder / "slurm.conf"
        return self.conf_file

    @property
    def env(self) -> dict[str, str]:
        """A user's variables: the commands first on PATH, nothing of a Slurm around the test, a router of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OUTSIDE)}
        folders = [str(self.home / "bin"), str(Path(self.python).parent), kept.get("PATH", os.defpath)]
        return {**kept, "PATH": os.pathsep.join(folders), "BIREME_HOME": str(self.home), **self.variables}

    # -- life ------------------------------------------------------------------------------------------------------

    def up(self) -> Self:
        self.run(*self.up_in, self.python, "-m", "bireme", "up", "--quiet", "--conf", str(self.conf_file))
        return self

    def down(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.bireme("down", "--quiet", *options)

    def up_again(self) -> Cluster:
        """As `up`, whether or not the daemon runs: what somebody does who is not sure."""
        self.run(*self.up_in, self.python, "-m", "bireme", "up", "--quiet")
        return self

    def daemon_pid(self) -> int | None:
        return running_pid(str(self.home))

    def agent_pid(self, node: str) -> int | None:
        """The process that owns a node now."""
        text = _read(str(self.home / "agents" / node / "agent.pid")).strip()
        pid = int(text) if text else 0
        return pid if pid and b"bireme.agent" in _read(f"/proc/{pid}/cmdline") else None

    def kill_daemon(self) -> None:
        """kill -9, and not before it is gone is it over."""
        _kill_and_await(self.daemon_pid())

    def kill_agent(self, node: str) -> None:
        _kill_and_await(self.agent_pid(node))

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Up for a while; what it then leaves on this machine is an error."""
        try:
            yield self.up()
        finally:
            left = self.stop()
        assert not left, f"left running after `bireme down --end-jobs`: {left}"

    def stop(self) -> list[str]:
        """Ends everything and removes the files. Returns what `bireme down --end-jobs` left running, and what its
        daemons could not apply (should be [])."""
        with suppress(subprocess.SubprocessError):
            self.down("--end-jobs")
        self._until_gone()
        left = [f"{pid}: {words}" for pid, words in self.processes()]
        self._until_gone(signal.SIGKILL)
        log = _read(str(self.home / "log" / "daemon.log")).decode(errors="replace")
        left += [line for line in log.splitlines() if BREACH in line]
        self._claim.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def _until_gone(self, number: int = 0, patience_s: float = 10.0) -> None:
        """Looks again and again: a process that ends is listed for a moment more, and may start others meanwhile."""
        for _ in looks(patience_s):
            alive = self.processes()
            for pid, _ in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if not alive:
                return

    def processes(self) -> list[tuple[int, str]]:
        """(pid, command line) of daemon, agents, router and gatherer, and every process of a job of this cluster."""
        return [(pid, _words(pid)) for pid in _pids() if pid != os.getpid() and self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        words = _read(f"/proc/{pid}/cmdline").split(b"\0")
        home = str(self.home).encode()
        if b"-m" in words and b"--home" in words and (home in words or home + b"/router" in words):
            return True
        if b"bireme.gather" in words and home + b"/gatherer" in words:
            return True
        if b"bireme.router" in words and b"--worker" in words and b'"%b/router"' % home in words[-2]:
            return True
        variables = _read(f"/proc/{pid}/environ").split(b"\0")
        in_a_job = any(variable.startswith(b"BIREME_JOB=") for variable in variables)
        return in_a_job and f"BIREME_HOME={self.home}".encode() in variables

    # -- use -------------------------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str | os.PathLike[str],
        check: bool = True,
        input: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_S,
        user: str | None = None,
        gid: int | None = None,
        groups: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as a user of this cluster would; `env` is added to its variables.

        `user`: as this other user (for tests that are root); default: the owner of the cluster. `gid`, `groups`: under
        these groups instead of the user's first one.
        """
        variables = {**self.env, **(env or {})}
        words = [os.fspath(word) for word in argv]
        done = subprocess.run(
            [shutil.which(words[0], path=variables["PATH"]) or words[0], *words[1:]],
            check=False,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=cwd or self.work,
            env=variables,
            timeout=timeout,
            **_identity(user or self.owner, gid, groups),
        )
        if check and done.returncode:
            raise AssertionError(f"{words} exited with {done.returncode}\n{done.stdout}{done.stderr}{self.log_tail()}")
        return done

    def bireme(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-m", "bireme", *argv, check=check)

    def sbatch(self, *argv: str, **how: Any) -> str:
        """Submits and returns the job id."""
        return self.run("sbatch", "--parsable", *argv, **how).stdout.strip().partition(";")[0]

    def script(self, body: str, name: str = "job.sh") -> Path:
        """Writes a bash script into the working folder."""
        path = self.work / name
        path.write_text(body if body.startswith("#!") else f"#!/bin/bash\n{body}")
        path.chmod(0o755)
        return path

    def wait(self, job_id: str | int, timeout: float = TIMEOUT_S) -> dict[str, Any]:
        """Waits until the job (every task of an array) ended; its record (of an array: the worst task's)."""
        with Client(str(self.home)) as client:
            return client.wait(str(job_id), timeout)

    def records(self, job_id: str | int) -> list[dict[str, Any]]:
        """What the cluster knows about a job now: one record for each task of an array."""
        with Client(str(self.home)) as client:
            return client.jobs(job=str(job_id))

    def output(self, job_id: str | int) -> str:
        """What a job wrote to its output file."""
        with Client(str(self.home)) as client:
            return Path(client.job(str(job_id))["std_out"]).read_text()

    def until(self, is_so: Callable[[], object], timeout: float = 30.0) -> None:
        """For what no event tells: a file that appears, a process that ends."""
        for _ in looks(timeout):
            if is_so():
                return
        raise AssertionError(f"did not come about within {timeout:g} s{self.log_tail()}")

    def until_started(self, job_id: str | int, timeout: float = 30.0) -> None:
        with Client(str(self.home)) as client:
            said = client.transport.get(f"/v1/jobs/{job_id}/wait", {"until": "started", "timeout": timeout})
        assert said["done"], f"job {job_id} did not start: {said}{self.log_tail()}"

    def pids_with(self, variable: str) -> list[int]:
        """Processes of this cluster whose environment has a variable that begins like this."""
        words = variable.encode()
        return [
            pid
            for pid, _ in self.processes()
            if any(entry.startswith(words) for entry in _read(f"/proc/{pid}/environ").split(b"\0"))
        ]

    def log_tail(self, lines: int = 20) -> str:
        """The last words of the daemon, for the message of a failed test."""
        try:
            text = (self.home / "log" / "daemon.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n--- daemon.log\n" + "\n".join(text.splitlines()[-lines:])


def _identity(user: str | None, gid: int | None = None, groups: Sequence[int] = ()) -> dict[str, Any]:
    """How a child process becomes somebody else; nothing when it need not."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid if gid is None else gid, "extra_groups": list(groups)}


def python_for_everyone(folder: Path) -> str:
    """An interpreter with our packages that any user can run: this one, or (it may lie in root's home) the system's.

    The latter gets a virtual environment in `folder` that shares our installed packages.
    """
    if _runs_for_others(sys.executable):
        return sys.executable
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = next(
        (path for path in (f"/usr/bin/{version}", f"/usr/local/bin/{version}") if _runs_for_others(path)), None
    )
    if found is None:
        pytest.skip(f"other users can run neither {sys.executable} nor a {version} of the system")
    made = folder / "python"
    (made / "bin").mkdir(parents=True)
    (made / "lib" / version).mkdir(parents=True)
    (made / "pyvenv.cfg").write_text(f"home = {os.path.dirname(found)}\n")
    (made / "bin" / "python").symlink_to(found)
    (made / "bin" / "python3").symlink_to(found)
    (made / "lib" / version / "site-packages").symlink_to(sysconfig.get_paths()["purelib"])
    return str(made / "bin" / "python")


def _runs_for_others(python: str) -> bool:
    try:
        probe = subprocess.run([python, "-c", "pass"], capture_output=True, check=False, **_identity("nobody"))
    except OSError:
        return False
    return probe.returncode == 0


def _kill_and_await(pid: int | None) -> None:
    if pid is None:
        return
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], 10.0)[0], f"process {pid} does not end"
    finally:
        os.close(handle)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _words(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it ended, or is another user's
        return b""
