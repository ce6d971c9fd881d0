"""Kubernetes, etcd, KWOK, operators, metrics-server and the kit's own programs, built once from Go modules.

`build` puts what is missing into the cache (`tests/prepare.py` calls it, for `make test`); tests only look
(`missing`, `program`), because a cold build takes many minutes. A program lies in a folder named after its version,
so that a new version in a `go.mod` is built beside the old one; our own sources count as a version of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parent / "modules"


@dataclass(frozen=True, slots=True)
class Module:
    """One folder of `modules/`: its `go.mod` says which version of each of `requires` is built."""

    folder: str
    requires: tuple[str, ...]
    programs: dict[str, str]
    """Name -> Go package; one that starts with a dot is a folder of our own in the module. None: manifests alone."""
    manifests: tuple[str, ...] = ()
    """Files of each required module that are kept beside its programs: definitions that the API server must know."""

    @property
    def version(self) -> str:
        return "-".join(map(self.version_of, self.requires))

    def version_of(self, required: str) -> str:
        text = (MODULES / self.folder / "go.mod").read_text()
        found = re.search(rf"^\s*(?:require )?{re.escape(required)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"modules/{self.folder}/go.mod does not require {required}")
        return found.group(1)

    def target(self, program: str) -> Path:
        package = self.programs[program]
        version = self.version
        if package.startswith("."):
            version += "-" + _digest(MODULES / self.folder / package)
        return _cache() / f"{self.folder}-{version}" / program

    @property
    def kept_manifests(self) -> Path:
        return _cache() / f"{self.folder}-{self.version}" / "manifests"


_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
BUILT = (
    Module("etcd", ("go.etcd.io/etcd/server/v3",), {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        "kubernetes",
        ("k8s.io/kubernetes",),
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES} | {"device-plugin": "./device_plugin"},
    ),
    Module("kwok", ("sigs.k8s.io/kwok",), {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Module(
        "training-operator",
        ("github.com/kubeflow/training-operator",),
        {"training-operator": "./operator"},
        manifests=("manifests/base/crds/*.yaml",),
    ),
    Module(
        "operators",
        ("sigs.k8s.io/jobset", "github.com/kubeflow/mpi-operator"),
        {"operators": "./controllers"},
        manifests=("config/components/crd/bases/*.yaml", "manifests/base/kubeflow.org_*.yaml"),
    ),
    Module(
        "metrics-server",
        ("sigs.k8s.io/metrics-server",),
        {"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"},
    ),
    Module("gateway-api", ("sigs.k8s.io/gateway-api",), {}, manifests=("config/crd/standard/*_[gh]*s.yaml",)),
)
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")


def program(name: str) -> str:
    """Where it lies; `missing` says whether it does."""
    return str(_module_of(name).target(name))


def manifests(name: str) -> Path:
    """The folder of definitions that this program, or a module without programs, needs in the API server."""
    return _module_of(name).kept_manifests


def kubernetes_version() -> str:
    return _module_of("kubelet").version


def missing(*names: str) -> str:
    """Why these cannot be run here, in one line; empty when they can."""
    if sys.platform != "linux":
        return "a Kubernetes for tests needs Linux"
    absent = [name for name in names if not _is_there(name)]
    if not absent:
        return ""
    if shutil.which("go") is None:
        return f"not built: {', '.join(absent)}; that needs Go on the PATH, then `python -m tests.prepare`"
    return f"not built: {', '.join(absent)}; run `python -m tests.prepare` (minutes, once)"


def build() -> str:
    """Builds what is missing; returns why something still is."""
    names = [name for module in BUILT for name in module.programs or (module.folder,)]
    why = missing(*names)
    if not why or sys.platform != "linux" or shutil.which("go") is None:
        return why
    with _only_one_builder():
        for module in filter(_manifests_are_kept, BUILT):
            for name in filter(missing, module.programs):
                _build_one(module, name)
    return missing(*names)


def _manifests_are_kept(module: Module) -> bool:
    """Before its program is built, so that whoever has the program has them too."""
    if not module.manifests or module.kept_manifests.exists():
        return True
    found: list[Path] = []
    for required, files in zip(module.requires, module.manifests):
        command = ["go", "mod", "download", "-json", f"{required}@{module.version_of(required)}"]
        asked = subprocess.run(command, cwd=MODULES / module.folder, stdout=subprocess.PIPE, check=False)
        if asked.returncode != 0:
            return False
        found.extend(Path(json.loads(asked.stdout)["Dir"]).glob(files))
    module.kept_manifests.mkdir(parents=True)
    for one in found:
        shutil.copyfile(one, module.kept_manifests / one.name)
    return True


def _build_one(module: Module, name: str) -> None:
    target = module.target(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{name}.unfinished")
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={module.version}"
    begun = time.monotonic()
    print(f"building {name} {module.version} ...", flush=True)
    command = ["go", "build", "-p=2", "-trimpath", "-buildvcs=false", "-ldflags", flags]
    done = subprocess.run(
        [*command, "-o", unfinished, module.programs[name]],
        cwd=MODULES / module.folder,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=False,
    )
    if done.returncode == 0:
        os.replace(unfinished, target)
        print(f"built {name} in {time.monotonic() - begun:.0f} s", flush=True)


def _is_there(name: str) -> bool:
    module = _module_of(name)
    return os.access(module.target(name), os.X_OK) if name in module.programs else module.kept_manifests.exists()


def _module_of(name: str) -> Module:
    return next(module for module in BUILT if name in module.programs or name == module.folder)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "bireme" / "kubernetes-for-tests"


def _digest(folder: Path) -> str:
    hashed = hashlib.sha256()
    for source in sorted(folder.glob("*.go")):
        hashed.update(source.read_bytes())
    return hashed.hexdigest()[:12]


@contextmanager
def _only_one_builder() -> Iterator[None]:
    _cache().mkdir(parents=True, exist_ok=True)
    with open(_cache() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
