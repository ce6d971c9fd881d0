"""Reads a tar as it comes, entry by entry: ustar, GNU's long names, pax. No sparse files, which no image has.

The standard library's reader keeps a record of every entry for as long as it reads, believes any size of a header, and
takes as long for one as the kernel takes to write a small file.
Invariant: what is kept in memory is one entry's headers and one piece, whatever the stream says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from bireme.images.refusing import RefusedError

BLOCK = 512
FILE, HARD_LINK, SYMLINK, FOLDER, FIFO = "file", "hard link", "symlink", "folder", "fifo"
DEVICE = "device"
_KINDS = {
    b"0": FILE,
    b"\0": FILE,
    b"7": FILE,
    b"1": HARD_LINK,
    b"2": SYMLINK,
    b"3": DEVICE,
    b"4": DEVICE,
    b"5": FOLDER,
    b"6": FIFO,
}
_MOST_HEADERS = 1 << 20
_PAX, _PAX_FOR_ALL, _LONG_NAME, _LONG_TARGET = b"x", b"g", b"L", b"K"
_XATTR = "SCHILY.xattr."
_NOTHING = bytes(BLOCK)
_CHECKSUM = slice(148, 156)


@dataclass(slots=True)
class Entry:
    kind: str
    name: str
    target: str
    mode: int
    mtime: float
    size: int
    xattrs: dict[str, bytes] = field(default_factory=dict)


def _damaged(what: str) -> RefusedError:
    return RefusedError(f"a layer is no tar that can be read ({what}): pull the image again, or push it anew")


class TarStream:
    """Entries in their order; the content of each (`content`) is read before the next one, or passed over."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._at = 0
        self._left = 0
        """Of the content of the entry that was given last, and its padding."""

    def __iter__(self) -> Iterator[Entry]:
        extra: dict[str, bytes] = {}
        while (header := self._take(BLOCK)) != _NOTHING and header:
            if len(header) < BLOCK:
                raise _damaged("it ends in the middle")
            _check_sum(header)
            kind, size = header[156:157], _number(header[124:136])
            if kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME, _LONG_TARGET):
                extra |= self._extension(kind, size)
                continue
            entry = _entry(header, kind, size, extra)
            extra = {}
            self._left = -(-entry.size // BLOCK) * BLOCK
            yield entry
            self._pass_over(self._left)
        for _ in self._pieces:  # padding: whoever sums it up sums up all
            pass

    def content(self, entry: Entry) -> Iterator[bytes | memoryview]:
        left = entry.size
        while left:
            piece = self._next(left)
            if not piece:
                raise _damaged("it ends in the middle of a file")
            left -= len(piece)
            self._left -= len(piece)
            yield piece

    def _extension(self, kind: bytes, size: int) -> dict[str, bytes]:
        """What goes before an entry, and says more of it."""
        if size > _MOST_HEADERS:
            raise _damaged("its headers are too long")
        data = self._take(-(-size // BLOCK) * BLOCK)[:size]
        if len(data) < size:
            raise _damaged("it ends in the middle")
        if kind == _LONG_NAME:
            return {"path": data.rstrip(b"\0")}
        if kind == _LONG_TARGET:
            return {"linkpath": data.rstrip(b"\0")}
        return _pax(data) if kind == _PAX else {}

    def _take(self, size: int) -> bytes:
        """So many bytes, or as many as there are."""
        if self._at + size <= len(self._piece):
            self._at += size
            return self._piece[self._at - size : self._at]
        taken = bytearray()
        while len(taken) < size and (piece := self._next(size - len(taken))):
            taken += piece
        return bytes(taken)

    def _next(self, most: int) -> memoryview | bytes:
        if self._at >= len(self._piece):
            self._piece, self._at = next(self._pieces, b""), 0
            if not self._piece:
                return b""
        piece = memoryview(self._piece)[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def _pass_over(self, size: int) -> None:
        while size:
            passed = len(self._next(size))
            if not passed:
                raise _damaged("it ends in the middle")
            size -= passed


def _check_sum(header: bytes) -> None:
    said = _number(header[_CHECKSUM])
    if sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ") != said:
        raise _damaged("a header is damaged")


def _entry(header: bytes, kind: bytes, size: int, extra: dict[str, bytes]) -> Entry:
    if kind not in _KINDS:
        raise _damaged(f"an entry of type {kind!r}")
    if any(b"\0" in value for key, value in extra.items() if not key.startswith(_XATTR)):
        raise _damaged("a name that no file can have")
    if any(key.startswith("GNU.sparse") for key in extra):
        raise _damaged("a sparse file")
    name = extra.get("path") or _joined(header)
    target = extra.get("linkpath") or header[157:257].partition(b"\0")[0]
    what = _KINDS[kind]
    if what == FILE:
        size = _decimal(extra["size"]) if "size" in extra else size
        what = FOLDER if name.endswith(b"/") else FILE  # as tars before 1988 wrote them
    return Entry(
        kind=what,
        name=os.fsdecode(name),
        target=os.fsdecode(target),
        mode=_number(header[100:108]),
        mtime=_time(extra["mtime"] if "mtime" in extra else _number(header[136:148])),
        size=size if what == FILE else 0,
        xattrs={key.removeprefix(_XATTR): value for key, value in extra.items() if key.startswith(_XATTR)},
    )


def _joined(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _number(field_: bytes) -> int:
    """Octal digits, or with the highest bit set a number as it is."""
    if field_[0] & 0x80:
        value = int.from_bytes(field_, "big", signed=False) & ~(0x80 << 8 * (len(field_) - 1))
        return value if not field_[0] & 0x40 else 0  # a time before 1970
    digits = field_.split(b"\0", 1)[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        raise _damaged("a number is none") from None


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise _damaged("a size is none")
    return int(text)


def _time(said: bytes | int) -> float:
    """What a file system takes as one."""
    try:
        value = float(said)
    except ValueError:
        raise _damaged("a time is none") from None
    return value if 0 <= value < 1 << 40 else 0.0


def _pax(data: bytes) -> dict[str, bytes]:
    """Records `LENGTH KEY=VALUE\\n`."""
    found: dict[str, bytes] = {}
    while data:
        length, space, rest = data.partition(b" ")
        if not space or not length.isdigit() or not len(length) + 1 < int(length[:9]) <= len(data):
            raise _damaged("a pax header is none")
        record = rest[: int(length) - len(length) - 1]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not equals:
            raise _damaged("a pax header is none")
        found[key.decode(errors="replace")] = value
        data = data[int(length) :]
    return found
