"""Images that are one squashfs: Enroot's `.sqsh`, and the file system inside of an Apptainer `.sif`.

Called by `fetching`. squashfs-tools unpack it, as the user and without a mount: one root that many tasks share is
quicker than a mount for each, and needs no more rights than the user has. What it unpacks to is listed and summed up
before anything is written.
Invariant: nothing of it is set setuid, and its listing is believed in so far only that less is written than it says.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress

from bireme.images.cache.progress import Meter
from bireme.images.elf import check_architecture
from bireme.images.refusing import RefusedError
from bireme.images.unpacking.bounds import Allowance

_LINE = re.compile(rb"([-dlbcps])([-rwxsStT]{9}) +\S+ +(\d+)(?:, *\d+)? +\S+ +\S+ +squashfs-root(/.*)?")
_SIF_TABLE_AT, _SIF_HEADER = 32, struct.Struct("<10s3s3s16sqqqqqqqq")
_SIF_ENTRY = struct.Struct("<i?IIIqqqqqqq128s384s")
_SIF_PARTITION, _SIF_SQUASHFS, _SIF_ROOT = 0x4004, 1, 2
_SIF_ARCHITECTURES = {b"01": "386", b"02": "amd64", b"03": "arm", b"04": "arm64", b"06": "ppc64le", b"11": "s390x"}
_MOST_ENTRIES = 1000
_MESSAGE_BYTES = 500


def unsquash(path: str, offset: int, root: str, allowance: Allowance, meter: Meter) -> None:
    """Raises RefusedError."""
    program = shutil.which("unsquashfs")
    if program is None:
        raise RefusedError(f"{path} cannot be unpacked: install squashfs-tools on the nodes (unsquashfs is not there)")
    size = os.stat(path).st_size
    meter.expect(size)
    meter.came(size)
    unwanted = list(_listed(program, path, offset, allowance))
    words = [program, "-no-progress", "-force", "-user-xattrs", *_offset(offset), "-dest", root, path]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    if done.returncode not in (0, 2):  # 2: something could not be done that is left out, such as devices
        raise RefusedError(f"{path} cannot be unpacked: {_last_line(done.stderr)}; copy it anew")
    for kind, name in unwanted:
        with suppress(FileNotFoundError):  # what the user could not make
            if kind in b"bc":
                os.unlink(root + name)
            else:
                os.chmod(root + name, os.lstat(root + name).st_mode & 0o1777)
    meter.unpacked(size)


def _listed(program: str, path: str, offset: int, allowance: Allowance) -> Iterator[tuple[bytes, str]]:
    """Sums all up; gives the kinds and names of devices, and of what is setuid or setgid."""
    words = [program, "-no-progress", "-llnumeric", *_offset(offset), path]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        try:
            for line in listing.stdout:
                found = _LINE.match(line)
                if found is None:
                    continue
                kind, mode, size, name = found.groups()
                allowance.take_entry(int(size) if kind == b"-" else 0)
                if kind in b"bc" or (kind in b"-d" and set(mode) & set(b"sS")):
                    yield kind, os.fsdecode(name or b"")
        except BaseException:
            listing.kill()
            raise
        told = listing.stderr.read(1 << 16)
    if listing.returncode not in (0, 2):
        raise RefusedError(f"{path} cannot be read: {_last_line(told)}; copy it anew")


def _offset(offset: int) -> list[str]:
    return ["-offset", str(offset)] if offset else []


def _last_line(told: bytes) -> str:
    lines = told.decode(errors="replace").strip().splitlines()
    return lines[-1][:_MESSAGE_BYTES] if lines else "it is damaged"


def sif_offset(path: str) -> int:
    """Where the root file system of an Apptainer image begins. Raises RefusedError."""
    with open(path, "rb") as file:
        head = file.read(_SIF_TABLE_AT + _SIF_HEADER.size)
        try:
            fields = _SIF_HEADER.unpack_from(head, _SIF_TABLE_AT)
        except struct.error:
            raise RefusedError(f"{path} is not whole: copy it anew") from None
        check_architecture(path, _SIF_ARCHITECTURES.get(fields[2][:2], ""))
        total, table_at = fields[7], fields[8]
        file.seek(max(0, table_at))
        for _ in range(min(max(0, total), _MOST_ENTRIES)):
            entry = file.read(_SIF_ENTRY.size)
            if len(entry) < _SIF_ENTRY.size:
                break
            kind, used, _, _, _, offset, *_, extra = _SIF_ENTRY.unpack(entry)
            system, part = struct.unpack_from("<ii", extra)
            if used and kind == _SIF_PARTITION and part == _SIF_ROOT:
                if system != _SIF_SQUASHFS:
                    raise RefusedError(f"{path} holds no squashfs: build it anew with `apptainer build`")
                return int(offset)
    raise RefusedError(f"{path} holds no root file system: build it anew with `apptainer build`")
