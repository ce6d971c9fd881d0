"""Images that are files and folders: fetched into the cache, found there again, and refused in a sentence."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.images import Made, Put, busybox_layer, digest, folder, symlink, tar_of

from bireme.images.cache.store import Cache
from bireme.images.fetching import fetch
from bireme.images.messages import Image, Policy, Progress, Wanted, folder_of
from bireme.images.refusing import RefusedError
from bireme.images.saving import Saving, save

LAYERS = (
    tar_of(folder("etc"), Put("etc/os-release", b"ID=made\n"), Put("bin/old"), symlink("lib", "usr/lib")),
    tar_of(Put("bin/.wh.old"), Put("bin/new", b"x" * 10_000)),
)
RUN = {
    "Env": ["PATH=/bin", "EMPTY=", "A=b=c"],
    "Entrypoint": ["/bin/new", "-x"],
    "Cmd": ["y"],
    "WorkingDir": "/etc",
    "User": "7",
}
tools = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="not installed: squashfs-tools")


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy(cache=str(tmp_path / "cache"))


def fetched(path: Path, policy: Policy, heard: list[Progress] | None = None) -> Image:
    wanted = Wanted(image=f"./{path.name}", folder=str(path.parent), policy=policy)
    done = fetch(wanted, (heard if heard is not None else []).append)
    done.settle()
    return done.image


def packed_layout(made: Made, path: Path) -> Path:
    layout = made.to_layout(path.with_suffix(".d"))
    subprocess.run(["tar", "-C", layout, "-cf", path, "."], check=True)
    return path


def zipped(made: Made, path: Path) -> Path:
    path.write_bytes(gzip.compress(made.to_saved(path).read_bytes()))
    return path


@pytest.mark.parametrize("write", [Made.to_layout, Made.to_saved, packed_layout, zipped])
@pytest.mark.parametrize("packing", ["gzip", "zstd", ""])
def test_layers_are_laid_once_and_found_again(
    tmp_path: Path, policy: Policy, write: Callable[[Made, Path], Path], packing: str
) -> None:
    path = write(Made(LAYERS, packing, **RUN), tmp_path / "image")
    image = fetched(path, policy)
    root = Path(image.root)
    assert sorted(os.listdir(root)) == ["bin", "etc", "lib"]
    assert os.listdir(root / "bin") == ["new"]
    assert (image.environment, image.workdir, image.user) == ({"PATH": "/bin", "EMPTY": "", "A": "b=c"}, "/etc", "7")
    assert (image.entrypoint, image.command, image.read_only) == (("/bin/new", "-x"), ("y",), True)
    (root / "mark").touch()
    again = fetched(path, policy)
    assert again == image
    assert (root / "mark").exists(), "nothing was unpacked a second time"
    assert sorted(os.listdir(root.parent)) == ["image.json", "lock", "root", "settled"]


@tools
def test_a_squashfs_of_enroots_and_one_of_apptainers(tmp_path: Path, policy: Policy) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/environment").write_text("PATH=/opt/bin\nA=1\n")
    (root / "etc/rc").write_text('cd "/work"\nexec "$@"\n')
    (root / "su").write_text("x")
    (root / "su").chmod(0o4755)
    if os.geteuid() == 0:
        os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    image = fetched(squashed(root, tmp_path / "a.sqsh"), policy)
    assert (image.environment, image.workdir) == ({"PATH": "/opt/bin", "A": "1"}, "/work")
    assert (Path(image.root) / "su").stat().st_mode & 0o7777 == 0o755, "no setuid"
    assert not (Path(image.root) / "null").exists(), "no devices"

    shutil.rmtree(root / "etc")
    (root / ".singularity.d/env").mkdir(parents=True)
    (root / ".singularity.d/env/10-docker2singularity.sh").write_text(
        '#!/bin/sh\nexport PATH="/usr/local/bin:/bin"\nexport CUDA="${CUDA:-"12.4"}"\n'
    )
    (root / ".singularity.d/runscript").write_text("#!/bin/sh\n")
    sif = tmp_path / "a.sif"
    sif.write_bytes(sif_of(squashed(root, tmp_path / "b.sqsh").read_bytes()))
    image = fetched(sif, policy)
    assert image.environment == {"PATH": "/usr/local/bin:/bin", "CUDA": "12.4"}
    assert image.entrypoint == ("/bin/sh", "/.singularity.d/runscript")
    assert fetched(sif, policy).root == image.root


@tools
def test_a_squashfs_that_is_too_large_is_not_unpacked(tmp_path: Path, policy: Policy) -> None:
    (tmp_path / "root").mkdir()
    with (tmp_path / "root/zeros").open("wb") as file:
        file.truncate(50 << 20)
    path = squashed(tmp_path / "root", tmp_path / "bomb.sqsh")
    with pytest.raises(RefusedError, match="unpacks to more than 10 MiB"):
        fetched(path, Policy(cache=policy.cache, largest_bytes=10 << 20))
    assert os.listdir(Path(folder_of(policy, os.geteuid())) / "roots") == []


def test_a_squashfs_says_what_to_install(tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.sqsh").write_bytes(b"hsqs" + bytes(600))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="install squashfs-tools on the nodes"):
        fetched(tmp_path / "a.sqsh", policy)


def squashed(root: Path, path: Path) -> Path:
    subprocess.run(
        ["mksquashfs", root, path, "-all-root", "-noappend", "-quiet", "-no-progress"], check=True, capture_output=True
    )
    return path


def sif_of(squashfs: bytes) -> bytes:
    """As `apptainer build` lays one out: a header, one entry, the file system at a page of its own."""
    entry_at, data_at = 4096, 8192
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0")
    head += struct.pack(
        "<10s3s3s16sqqqqqqqq", b"SIF_MAGIC", b"01", b"02", b"", 0, 0, 0, 1, entry_at, 585, data_at, len(squashfs)
    )
    extra = struct.pack("<ii3s", 1, 2, b"02")
    size = len(squashfs)
    entry = struct.pack("<i?IIIqqqqqqq128s384s", 0x4004, True, 1, 1, 0, data_at, size, size, 0, 0, 0, 0, b"root", extra)
    return head.ljust(entry_at, b"\0") + entry.ljust(data_at - entry_at, b"\0") + squashfs


def damaged_config(path: Path) -> None:
    made = Made(LAYERS)
    (path / "blobs/sha256" / digest(made.config)[7:]).write_bytes(made.config + b" ")


def missing_layer(path: Path) -> None:
    (path / "blobs/sha256" / digest(Made(LAYERS).blobs[1])[7:]).unlink()


def two_images(path: Path) -> None:
    index = json.loads((path / "index.json").read_text())
    (path / "index.json").write_text(json.dumps({"manifests": index["manifests"] * 2}))


@pytest.mark.parametrize(
    ("made", "spoil", "sentence"),
    [
        (Made(LAYERS), damaged_config, "is damaged .* is something else.: copy it anew"),
        (Made(LAYERS), missing_layer, "is not whole: .* is missing or cannot be read; copy it anew"),
        (Made(LAYERS), two_images, "holds 2 images: copy the one that is meant"),
        (Made(LAYERS, architecture="s390x"), None, "is made for other processors .s390x. than this machine's"),
        (Made(LAYERS, diff_ids=["sha256:" + "0" * 64] * 2), None, "layer 1 of .* is not what its description says"),
        (Made(LAYERS, diff_ids=["sha256:" + "0" * 64]), None, "has 2 layers and describes others"),
        (Made([LAYERS[0], tar_of(Put("../x"))]), None, "an entry that leads out of it"),
    ],
)
def test_what_is_wrong_is_told_and_leaves_nothing(
    tmp_path: Path, policy: Policy, made: Made, spoil: Callable[[Path], None] | None, sentence: str
) -> None:
    path = made.to_layout(tmp_path / "image")
    if spoil is not None:
        spoil(path)
    with pytest.raises(RefusedError, match=sentence):
        fetched(path, policy)
    assert os.listdir(Path(folder_of(policy, os.geteuid())) / "roots") == []


def test_half_a_zstd_layer_is_not_what_its_description_says(tmp_path: Path, policy: Policy) -> None:
    made = Made([tar_of(Put("a", os.urandom(500_000)))], "zstd")
    whole = made.blobs[0]
    made.blobs[0] = whole[: len(whole) // 2]
    made.manifest = made.manifest.replace(digest(whole).encode(), digest(made.blobs[0]).encode())
    with pytest.raises(RefusedError, match=r"is not what its description says|pull the image again"):
        fetched(made.to_layout(tmp_path / "image"), policy)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"#!/bin/sh\n", "is no image: neither squashfs"),
        (tar_of(Put("a")), "is a tar, and no image: make one with `docker save"),
        (tar_of(Put("manifest.json", b"[]")), "holds 0 images"),
        (tar_of(Put("manifest.json", b"[{")), "its manifest.json cannot be read; save it anew"),
        (tar_of(Put("manifest.json", b"[" * 100_000)), "its manifest.json cannot be read; save it anew"),
        (
            tar_of(Put("manifest.json", b'[{"Config":"a","Layers":[]}]')),
            "its manifest.json cannot be read; save it anew",
        ),
        (b"\x1f\x8b" + bytes(100), "a layer is damaged|ends too early"),
        (b"".ljust(32, b"x") + b"SIF_MAGIC\0", "is not whole: copy it anew"),
        (b"".ljust(32, b"x") + b"SIF_MAGIC\0" + bytes(200), "holds no root file system: build it anew"),
    ],
)
def test_a_file_that_is_none_is_told_what_it_must_be(
    tmp_path: Path, policy: Policy, content: bytes, sentence: str
) -> None:
    (tmp_path / "image").write_bytes(content)
    with pytest.raises(RefusedError, match=sentence):
        fetched(tmp_path / "image", policy)


def test_pipes_devices_and_strange_folders_are_no_images(tmp_path: Path, policy: Policy) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for name, sentence in (("pipe", "neither a file nor a folder"), ("empty", "a folder must be a root")):
        with pytest.raises(RefusedError, match=sentence):
            fetched(tmp_path / name, policy)


def test_a_busybox_runs_in_what_was_unpacked(tmp_path: Path, policy: Policy) -> None:
    image = fetched(Made([busybox_layer()], Cmd=["/bin/sh"]).to_layout(tmp_path / "image"), policy)
    program = os.path.join(image.root, "bin/busybox")
    assert subprocess.run([program, "echo", "hello"], capture_output=True, check=True).stdout == b"hello\n"
    assert image.architecture


def test_a_folder_of_other_programs_is_refused(tmp_path: Path, policy: Policy) -> None:
    (tmp_path / "image/usr/bin").mkdir(parents=True)
    (tmp_path / "image/bin").symlink_to("usr/bin")
    (tmp_path / "image/usr/bin/sh").write_bytes(b"\x7fELF\2\2\1" + bytes(11) + (22).to_bytes(2, "big"))
    with pytest.raises(RefusedError, match=r"made for other processors \(s390x\) than this machine's"):
        fetched(tmp_path / "image", policy)


def test_a_cache_of_somebody_elses_is_not_used(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    os.chown(tmp_path, 1234, 1234)
    with pytest.raises(RefusedError, match="belongs to somebody else"):
        Cache(str(tmp_path))


@tools
def test_what_is_saved_is_what_is_fetched(tmp_path: Path, policy: Policy) -> None:
    image = fetched(Made(LAYERS, **RUN).to_layout(tmp_path / "image"), policy)
    root = tmp_path / "changed"
    shutil.copytree(image.root, root, symlinks=True)
    (root / "proc").mkdir()
    (root / "proc/1").write_text("mounted")
    (root / "etc/environment").write_text("OLD=1\n")
    (root / "added").write_text("by the job")
    saving = Saving(root=str(root), target=str(tmp_path / "saved file.sqsh"), image=image, without=("/proc",))
    for _ in range(2):  # and over itself
        save(saving)
    again = fetched(tmp_path / "saved file.sqsh", policy)
    assert sorted(os.listdir(again.root)) == ["added", "bin", "etc", "lib", "proc"]
    assert os.listdir(Path(again.root) / "proc") == []
    assert (again.environment, again.workdir) == (image.environment, image.workdir)
    assert 'exec /bin/new -x "$@"' in (Path(again.root) / "etc/rc").read_text()
    assert sorted(each.name for each in tmp_path.glob("saved*")) == ["saved file.sqsh"]


def test_what_cannot_be_saved_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(tmp_path / "none" / "x.sqsh")
    saving = Saving(root=str(tmp_path), target=target, image=Image(root=str(tmp_path)))
    program = "mksquashfs"
    (tmp_path / program).write_text("#!/bin/sh\necho 'no room' >&2\nexit 1\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="name a file in a folder that is there"):
        save(saving)
    (tmp_path / "none").mkdir()
    with pytest.raises(RefusedError, match=r"x\.sqsh could not be written: no room"):
        save(saving)
    (tmp_path / program).unlink()
    with pytest.raises(RefusedError, match="install squashfs-tools on the nodes"):
        save(saving)
