"""Layers become a root: what newer ones take away, what no image may do, what stops a bomb."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.images import Put, folder, hard_link, symlink, tar_of

from bireme.images.assembling import lay
from bireme.images.cache.progress import Meter
from bireme.images.refusing import RefusedError
from bireme.images.unpacking.beneath import remove
from bireme.images.unpacking.bounds import Allowance
from bireme.images.unpacking.layering import Layering
from bireme.images.unpacking.tar_stream import TarStream


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").write_text("untouched")
    umask = os.umask(0)
    yield tmp_path / "root"
    os.umask(umask)
    assert (tmp_path / "outside").read_text() == "untouched"
    assert sorted(os.listdir(tmp_path)) == ["outside", "root"]


def unpack(root: Path, *layers: bytes, allowance: Allowance | None = None) -> None:
    allowance = allowance or Allowance(1 << 30)
    layering = Layering(str(root), allowance)
    for layer in layers:
        lay(layering, io.BytesIO(layer), allowance, Meter(lambda _: None))


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def members(data: bytes) -> bytes:
    """As pigz and eStargz write gzip: several in a row."""
    return gzip.compress(data[:999]) + gzip.compress(data[999:]) + gzip.compress(b"")


@pytest.mark.parametrize("pack", [gzip.compress, members, zstandard.compress, bytes])
def test_files_links_modes_and_times_come_as_they_are(root: Path, pack: object) -> None:
    long = "/".join(["deep" * 20] * 4)
    layer = tar_of(
        folder("./", 0o755),
        folder("usr/lib", 0o555),
        Put("usr/lib/a.so", b"x" * 3_000_000, mode=0o4755),
        symlink("lib", "usr/lib"),
        Put("lib/b.so", b"through a link"),
        hard_link("usr/lib/c.so", "/lib/b.so"),
        Put(f"{long}/ä", b"long"),
        folder("tmp", 0o1777),
        Put("secret", b"", mode=0),
        Put("dev/null", kind=tarfile.CHRTYPE),
        Put("pipe", kind=tarfile.FIFOTYPE),
        Put("tagged", b"t", headers={"SCHILY.xattr.user.origin": "here", "SCHILY.xattr.security.capability": "x"}),
    )
    unpack(root, pack(layer))  # type: ignore[operator]
    assert (root / "usr/lib/a.so").stat().st_size == 3_000_000
    assert stat.S_IMODE((root / "usr/lib/a.so").stat().st_mode) == 0o755, "no setuid"
    assert stat.S_IMODE((root / "usr/lib").stat().st_mode) == 0o755, "its owner can remove what is in it"
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((root / "secret").stat().st_mode) == 0o400
    assert (root / "usr/lib/c.so").samefile(root / "usr/lib/b.so")
    assert (root / long / "ä").read_text() == "long"
    assert (root / "usr/lib/a.so").stat().st_mtime == (root / "usr/lib").stat().st_mtime == 1_700_000_000
    assert not (root / "dev/null").exists(), "no devices"
    assert {each.st_uid for each in map(Path.stat, root.iterdir())} == {os.geteuid()}
    if "user.origin" in os.listxattr(root / "tagged"):
        assert os.listxattr(root / "tagged") == ["user.origin"]


def test_newer_layers_replace_and_take_away(root: Path) -> None:
    unpack(
        root,
        tar_of(
            folder("a"),
            Put("a/kept", b"1"),
            Put("a/gone", b"1"),
            Put("b/c/old", b"1"),
            Put("file", b"1"),
            folder("swap"),
            Put("swap/x"),
            Put("one", b"one"),
            hard_link("two", "one"),
            symlink("link", "a"),
        ),
        tar_of(
            Put("a/.wh.gone"),
            Put("a/gone2", b"2"),
            folder("b"),
            Put("b/new", b"2"),
            Put("b/.wh..wh..opq"),
            Put("b/c/newer", b"2"),
            Put("swap", b"a file now"),
            folder("file"),
            Put("one", b"changed"),
            Put("link/.wh.kept"),
            Put(".wh.never-was"),
            Put("a/.wh..wh.plnk"),
        ),
    )
    assert tree(root) == ["a", "a/gone2", "b", "b/c", "b/c/newer", "b/new", "file", "link", "one", "swap", "two"]
    assert (root / "two").read_text() == "one", "a file that is replaced is not written through its other names"


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([Put("../outside", b"x")], "leads out of it"),
        ([Put("a/../../outside", b"x")], "leads out of it"),
        ([hard_link("a", "../outside")], "leads out of it"),
        ([hard_link("a", "/outside")], "which is not there"),
        ([folder("d"), hard_link("a", "d")], "links to a folder"),
        ([Put("d/.wh...", b"")], "takes away what it cannot have"),
        ([Put(".wh.", b"")], "takes away what it cannot have"),
        ([symlink("a", "b"), symlink("b", "a"), Put("a/x", b"x")], "go round in a circle"),
        ([Put("/".join("x" * 1100), b"x")], "a name that no file can have"),
    ],
)
def test_what_leads_out_is_refused(root: Path, entries: Sequence[Put], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        unpack(root, tar_of(*entries))


def test_links_lead_where_they_would_inside(root: Path) -> None:
    """`..`, absolute ones, and links through links: all within the root, whatever lies beside it."""
    unpack(
        root,
        tar_of(symlink("up", "../.."), symlink("abs", "/"), symlink("both", "up/../abs/up"), folder("in")),
        tar_of(
            Put("up/outside", b"1"),
            Put("abs/in/b", b"2"),
            Put("both/c", b"3"),
            hard_link("d", "up/in/b"),
            Put("/absolute", b"4"),
            Put("up/.wh.nothing"),
        ),
    )
    assert tree(root) == ["abs", "absolute", "both", "c", "d", "in", "in/b", "outside", "up"]


def test_a_link_that_is_there_is_replaced_and_not_written_through(root: Path) -> None:
    unpack(root, tar_of(symlink("a", "/../../outside"), Put("a", b"new"), symlink("d", "../.."), folder("d")))
    assert (root / "a").read_text() == "new"
    assert (root / "d").is_dir()
    assert not (root / "d").is_symlink()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_bombs_are_stopped(root: Path, pack: object) -> None:
    zeros = pack(tar_of(Put("zeros", bytes(20 << 20))))  # type: ignore[operator]
    with pytest.raises(RefusedError, match=r"unpacks to more than 10 MiB: if that is meant, raise images.largest_gib"):
        unpack(root, zeros, allowance=Allowance(10 << 20))
    assert not (root / "zeros").exists(), "it says how large it is before it is written"
    with pytest.raises(RefusedError, match="it looks like a bomb and is given up"):
        unpack(root, zeros, allowance=Allowance(1 << 30, ratio_from=1 << 20))
    many = pack(tar_of(*(Put(f"d/{number}") for number in range(200))))  # type: ignore[operator]
    with pytest.raises(RefusedError, match="more than 100 files"):
        unpack(root, many, allowance=Allowance(1 << 30, most_entries=100))


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
@pytest.mark.parametrize("cut", [0.1, 0.5, 0.999])
def test_what_ends_too_early_is_refused(root: Path, pack: object, cut: float) -> None:
    """Of zstd only its digest tells (`test_images_sources`)."""
    data = pack(tar_of(Put("a", os.urandom(50_000)), Put("b", os.urandom(5_000))))  # type: ignore[operator]
    data = data[: int(len(data) * cut)] if pack is not bytes else data[: int(50_000 * cut)]
    with pytest.raises(RefusedError, match="pull the image again, or push it anew"):
        unpack(root, data)


@given(st.integers(0, 3_000), st.binary(min_size=1, max_size=20))
def test_a_damaged_tar_is_refused_or_read_and_never_fails_otherwise(at: int, junk: bytes) -> None:
    """The sum of a damaged header is set right, so that more than the first check is met."""
    data = bytearray(tar_of(Put("a", b"abc", headers={"SCHILY.xattr.user.x": "y"}), Put("b" * 150, b"d")))
    data[at : at + len(junk)] = junk
    for start in range(0, len(data) - 511, 512):
        header = bytes(data[start : start + 512])
        if header[257:262] == b"ustar":
            total = sum(header) - sum(header[148:156]) + 8 * 32
            data[start + 148 : start + 156] = b"%06o\0 " % total
    with TemporaryDirectory() as folder:
        try:
            Layering(folder, Allowance(1 << 20)).lay(TarStream(iter([bytes(data)])))
        except (RefusedError, OSError) as error:
            assert str(error)  # noqa: PT017 - all three are right


def test_a_root_that_nobody_may_enter_can_be_removed(root: Path) -> None:
    unpack(root, tar_of(Put("a/b/c/d", b"x"), symlink("a/out", "/")))
    for path in (root / "a/b/c", root / "a/b", root / "a"):
        path.chmod(0)
    remove(str(root / "a"))
    assert tree(root) == []
