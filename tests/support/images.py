"""Container images made on the spot: layers by hand, in every form in which images come.

A layer is a list of `Put`s, which may be as nasty as tars can be. `Made` writes the image to an OCI layout, to a tar as
`docker save` writes it, or pushes it to a registry.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from bireme.images.elf import own_architecture

_PACK = {"gzip": lambda data: gzip.compress(data, 1, mtime=0), "zstd": zstandard.compress, "": lambda data: data}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Put:
    """One entry of a layer."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    mtime: int = 1_700_000_000
    headers: Mapping[str, str] = field(default_factory=dict)


def folder(name: str, mode: int = 0o755) -> Put:
    return Put(name, kind=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> Put:
    return Put(name, kind=tarfile.SYMTYPE, link=target)


def hard_link(name: str, target: str) -> Put:
    return Put(name, kind=tarfile.LNKTYPE, link=target)


def tar_of(*entries: Put) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for each in entries:
            info = tarfile.TarInfo(each.name)
            info.size, info.mode, info.type, info.linkname = len(each.data), each.mode, each.kind, each.link
            info.mtime, info.pax_headers = each.mtime, dict(each.headers)
            info.uid = info.gid = 1234
            tar.addfile(info, io.BytesIO(each.data))
    return file.getvalue()


def busybox_layer() -> bytes:
    """A shell and all that goes with it, as links to Debian's static one."""
    program = shutil.which("busybox")
    assert program is not None
    applets = (
        "sh",
        "ls",
        "cat",
        "echo",
        "env",
        "id",
        "sleep",
        "true",
        "false",
        "touch",
        "pwd",
        "mkdir",
        "rm",
        "grep",
        "cut",
    )
    return tar_of(
        *map(folder, ("bin", "etc", "proc", "sys", "dev", "root")),
        folder("tmp", 0o1777),
        Put("bin/busybox", Path(program).read_bytes(), mode=0o755),
        *(symlink(f"bin/{applet}", "busybox") for applet in applets),
        Put("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"),
        Put("etc/group", b"root:x:0:\n"),
    )


class Made:
    """An image of these layers (tars), packed as `packing` says."""

    def __init__(
        self,
        layers: Sequence[bytes],
        packing: str = "gzip",
        *,
        architecture: str = "",
        diff_ids: Sequence[str] | None = None,
        **run: Any,
    ) -> None:
        """`run`: of the configuration, as Env, Cmd, Entrypoint, WorkingDir, User."""
        self.plain = list(layers)
        self.blobs = [_PACK[packing](layer) for layer in layers]
        self.architecture = architecture or own_architecture()
        self.config = json.dumps(
            {
                "architecture": self.architecture,
                "os": "linux",
                "config": run,
                "rootfs": {"type": "layers", "diff_ids": diff_ids or [digest(layer) for layer in layers]},
            }
        ).encode()
        suffix = {"gzip": ".tar+gzip", "zstd": ".tar+zstd", "": ".tar"}[packing]
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _described("application/vnd.oci.image.config.v1+json", self.config),
                "layers": [_described(f"application/vnd.oci.image.layer.v1{suffix}", blob) for blob in self.blobs],
            }
        ).encode()

    @property
    def digest(self) -> str:
        return digest(self.manifest)

    def to_layout(self, path: Path) -> Path:
        blobs = path / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for data in (self.manifest, self.config, *self.blobs):
            (blobs / digest(data).partition(":")[2]).write_bytes(data)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (path / "index.json").write_text(
            json.dumps({"schemaVersion": 2, "manifests": [_described(MANIFEST, self.manifest)]})
        )
        return path

    def to_saved(self, path: Path) -> Path:
        """As `docker save` of many years wrote it."""
        names = [f"{digest(layer)[7:]}/layer.tar" for layer in self.plain]
        listed = [{"Config": "config.json", "RepoTags": ["made:1"], "Layers": names}]
        entries = [Put(name, layer) for name, layer in zip(names, self.plain)]
        path.write_bytes(
            tar_of(*entries, Put("config.json", self.config), Put("manifest.json", json.dumps(listed).encode()))
        )
        return path

    def push(self, host: str, name: str, tag: str = "1", authorization: str = "") -> str:
        """To a registry on loopback; its name there."""
        for data in (self.config, *self.blobs):
            push_blob(host, name, data, authorization)
        push_manifest(host, name, tag, MANIFEST, self.manifest, authorization)
        return f"{host}#{name}:{tag}"


def index_of(*images: Made) -> bytes:
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                _described(MANIFEST, each.manifest) | {"platform": {"os": "linux", "architecture": each.architecture}}
                for each in images
            ],
        }
    ).encode()


def push_blob(host: str, name: str, data: bytes, authorization: str = "") -> None:
    place = _asked(host, "POST", f"/v2/{name}/blobs/uploads/", b"", authorization).headers["Location"]
    path = place.partition(host)[2] or place
    _asked(host, "PUT", f"{path}{'&' if '?' in path else '?'}digest={digest(data)}", data, authorization)


def push_manifest(host: str, name: str, tag: str, kind: str, data: bytes, authorization: str = "") -> None:
    _asked(host, "PUT", f"/v2/{name}/manifests/{tag}", data, authorization, kind)


def _asked(
    host: str, method: str, path: str, body: bytes, authorization: str, kind: str = "application/octet-stream"
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"Content-Type": kind} | ({"Authorization": authorization} if authorization else {})
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    assert answer.status < 300, f"{method} {path}: {answer.status} {said[:300]!r}"
    return answer


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _described(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}
