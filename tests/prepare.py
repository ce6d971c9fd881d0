"""Installs what the tests need beyond the `dev` extra: real clients (PyPI), Kubernetes (Go modules) and, as root on
Debian, MPICH, Slurm, squashfs-tools and containerd; Debian's Prometheus and container registry are only unpacked.

Called by `make test` as `python -m tests.prepare`.
What cannot be installed here is said in one line; the tests that need it skip with the reason.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kubernetes_cluster.binaries import build
from tests.slurm_cluster.installation import missing_packages
from tests.support import prometheus, registry, typescript
from tests.support.trackers import PACKAGES, TRACKERS

ROOT = Path(__file__).resolve().parent.parent
STAMP = Path(sys.prefix) / ".clients"
DEBIAN = {
    "mpicc": ["mpich", "libmpich-dev"],
    "containerd": ["containerd", "runc", "containernetworking-plugins"],
    "busybox": ["busybox-static"],
    "openssl": ["openssl"],
    "chromium": ["chromium"],
    "mksquashfs": ["squashfs-tools"],
}


def install_clients() -> None:
    if STAMP.exists() and STAMP.stat().st_mtime >= (ROOT / "pyproject.toml").stat().st_mtime:
        return
    print("installing the real clients that tests/clients runs ...", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*command, "--editable", f"{ROOT}[clients]"], check=False).returncode == 0:
        STAMP.touch()
    else:
        print("the real clients could not be installed from PyPI: their tests will skip", flush=True)


def install_trackers() -> None:
    """MLflow's server and client, W&B's client, and a writer of TensorBoard's files, in an environment of their own:
    they bring eighty packages that Bireme is not to be tested with."""
    stamp, wanted = TRACKERS / ".installed", "\n".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("installing the experiment trackers that tests/integration/test_experiments.py runs ...", flush=True)
    commands = (
        [sys.executable, "-m", "venv", str(TRACKERS)],
        [str(TRACKERS / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
    )
    if all(subprocess.run(command, check=False).returncode == 0 for command in commands):
        stamp.write_text(wanted)
    else:
        print("MLflow could not be installed from PyPI: its tests will skip", flush=True)


def install_debian_packages() -> None:
    missing = [package for command, packages in DEBIAN.items() if not shutil.which(command) for package in packages]
    missing.extend(missing_packages())
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"not root on Debian: tests that need {', '.join(missing)} will skip", flush=True)
        return
    print(f"installing {', '.join(missing)} ...", flush=True)
    quiet = {"check": False, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], env=environment, **quiet)
    subprocess.run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing], env=environment, **quiet)


def fetch_programs() -> None:
    """Into the user's cache folder: the packages of servers, installed, would start them."""
    for name, fetch in (
        ("Prometheus", prometheus.fetch),
        ("a container registry", registry.fetch),
        ("TypeScript's compiler", typescript.fetch),
    ):
        if left := fetch():
            print(f"{name} for tests: {left}; its tests will skip", flush=True)


def build_kubernetes() -> None:
    """From Go modules, once, into the user's cache folder: minutes the first time, nothing afterwards."""
    left = build()
    if left:
        print(f"Kubernetes for tests: {left}; its tests will skip", flush=True)


def compile_bireme() -> None:
    """Before anyone else comes: other users, whom tests let run it, could not write what they compile."""
    compileall.compile_dir(ROOT / "src", quiet=1)


if __name__ == "__main__":
    compile_bireme()
    install_clients()
    install_trackers()
    install_debian_packages()
    fetch_programs()
    build_kubernetes()
