"""Container images made on the spot, because no registry can be reached: tar files that `ctr images import` takes.

`busybox` is Debian's static one: no libc, no Python, the smallest image a job could name. `from_files` makes others.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.kubernetes_cluster.processes import run

BUSYBOX = "bireme.test/busybox:1"
PAUSE = "bireme.test/pause:1"
"""What holds a pod's namespaces."""
_ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> str:
    return "" if shutil.which("busybox") else "not installed: busybox (Debian's busybox-static)"


def busybox(folder: Path) -> Path:
    """The shell, sleep and all the rest, as links to one static program."""
    program = shutil.which("busybox")
    assert program is not None
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            _add(tar, name, mode=mode, kind=tarfile.DIRTYPE)
        _add(tar, "bin/busybox", Path(program).read_bytes(), mode=0o755)
        for applet in run(program, "--list").split():
            if applet != "busybox":
                _add(tar, f"bin/{applet}", kind=tarfile.SYMTYPE, link="busybox")
        _add(tar, "etc/passwd", _ACCOUNTS.encode())
        _add(tar, "etc/group", b"root:x:0:\nnobody:x:65534:\n")
    return _archive(folder / "busybox.tar", layer.getvalue(), {BUSYBOX: ["/bin/sh"], PAUSE: ["/bin/sleep", "infinity"]})


def from_files(
    target: Path,
    name: str,
    paths: Iterable[tuple[Path, str]],
    command: list[str],
    variables: Mapping[str, str] | None = None,
) -> Path:
    """An image of these files and folders of this machine: (path here, path in the image)."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for here, there in paths:
            tar.add(here, there.lstrip("/"))
    return _archive(target, layer.getvalue(), {name: command}, variables)


def _archive(
    target: Path, layer: bytes, images: dict[str, list[str]], variables: Mapping[str, str] | None = None
) -> Path:
    """One layer, several images that differ in their command: the format of `docker save`."""
    digest = hashlib.sha256(layer).hexdigest()
    manifest = []
    more = [f"{key}={value}" for key, value in (variables or {}).items()]
    with tarfile.open(target, "w") as tar:
        _add(tar, f"{digest}/layer.tar", layer)
        for name, command in images.items():
            config = {
                "architecture": _architecture(),
                "os": "linux",
                "config": {"Env": [_PATH, *more], "Entrypoint": command},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
            text = json.dumps(config).encode()
            file = f"{hashlib.sha256(text).hexdigest()}.json"
            _add(tar, file, text)
            manifest.append({"Config": file, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]})
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return target


def _add(
    tar: tarfile.TarFile,
    name: str,
    data: bytes = b"",
    *,
    mode: int = 0o644,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.type, entry.linkname, entry.mtime = len(data), mode, kind, link, int(time.time())
    tar.addfile(entry, io.BytesIO(data))


def _architecture() -> str:
    machine = run("uname", "-m").strip()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
