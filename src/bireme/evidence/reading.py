"""Reads everything a job wrote: each output by `logs`, flight recorders' dumps by `traces`; folders are looked through.

The one entrance for who wants clues from files: the command, and the program that a daemon starts with the owner's
identity (`__main__`). Invariant: what cannot be read is a sentence in the answer, not an error, and the rest is read.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from bireme.core.diagnosis.model import Source
from bireme.evidence import traces
from bireme.evidence.logs import Found, Limits, LogReader, Place, Sieves, masked, sieves_for
from bireme.evidence.opened import NoFileError, NotTheirsError, open_output
from bireme.evidence.searching import Searcher
from bireme.evidence.unpacking import NoTextError, UnpackingError, blocks_of, is_packed
from bireme.evidence.whereabouts import ranks_in_names, utc_offset_s

STDIN = "-"
_HEAD = 64
_DEEPEST = 4
_NOT_LOGS = re.compile(
    r"\.(?:pt|pth|ckpt|bin|safetensors|npy|npz|h5|parquet|arrow|so|pyc|png|jpe?g|whl|tar|zip)$", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A file to be read; `path` may be a folder: all files in it."""

    path: str
    rank: int | None = None
    node: str = ""
    stream: str = ""
    source: Source = "output"


@dataclass(slots=True)
class Reader:
    """Reads outputs with one searcher, in one span of time."""

    searcher: Searcher
    owner: int | None = None
    """Whose files they have to be; see `open_output`."""
    strictly: bool = False
    takes_stdin: bool = False
    """Whether `-` is standard input."""
    limits: Limits = field(default_factory=Limits)

    def read(self, outputs: Sequence[Output]) -> Found:
        found = Found()
        files = self._files(outputs, found)
        limits = self.limits.for_each_of(len(files))
        deadline = time.monotonic() + limits.seconds
        sieves = {source: sieves_for(self.searcher.book, source) for source in {each.source for each in files}}
        dumps: list[traces.Dump] = []
        for output in files:
            found.add(self._read_one(output, sieves[output.source], limits, deadline, dumps))
        for line in traces.lines_of(dumps):
            found.clues += [masked(clue) for clue in self.searcher.clues(line)]
        return found

    def _files(self, outputs: Sequence[Output], found: Found) -> list[Output]:
        """Each once; those of folders named; ranks by names where nobody said them."""
        listed: dict[str, Output] = {}
        for output in outputs:
            for path in _in_folder(output.path) if os.path.isdir(output.path) else (output.path,):
                listed.setdefault(path, replace(output, path=path))
                if len(listed) > self.limits.files:
                    listed.popitem()
                    found.problems.append(f"more than {self.limits.files} files: the rest was not read")
                    break
        ranks = ranks_in_names([path for path, output in listed.items() if output.source != "kernel"])
        return [
            replace(output, rank=ranks.get(path)) if output.rank is None else output for path, output in listed.items()
        ]

    def _read_one(
        self, output: Output, sieves: Sieves, limits: Limits, deadline: float, dumps: list[traces.Dump]
    ) -> Found:
        said = ""
        try:
            if output.path == STDIN and self.takes_stdin:
                return self._read_stdin(output, sieves, limits, deadline)
            with open_output(output.path, self.owner, strictly=self.strictly) as file:
                return self._read_opened(file, output, sieves, limits, deadline, dumps)
        except NotTheirsError:
            said = f"{output.path} is not a file of the job's owner: not read"
        except NoFileError:
            said = f"{output.path} is no file (a pipe, a device or a folder): not read"
        except NoTextError:
            said = f"{output.path} is no text: not read"
        except OSError as error:
            said = f"cannot read {output.path}: {error.strerror or error}"
        except ValueError:
            said = f"cannot read {output.path!r}: no path has such a sign"
        return Found(problems=[said])

    def _read_stdin(self, output: Output, sieves: Sieves, limits: Limits, deadline: float) -> Found:
        """It may be a pipe: it is read once, from its beginning, and cannot be asked how long it is."""
        now = time.time()
        place = Place(file="(standard input)", source=output.source, utc_offset_s=utc_offset_s(now), written_by=now)
        reader = LogReader(place, self.searcher, sieves, limits)
        problems = list(_read_blocks(sys.stdin.buffer, None, reader, limits, deadline, "standard input"))
        found = reader.found()
        found.problems += problems
        return found

    def _read_opened(
        self,
        file: BinaryIO,
        output: Output,
        sieves: Sieves,
        limits: Limits,
        deadline: float,
        dumps: list[traces.Dump],
    ) -> Found:
        status = os.fstat(file.fileno())
        head = file.read(_HEAD)
        file.seek(0)
        if traces.is_dump(head, output.path):
            try:
                dumps.append(traces.read(file, output.path, output.rank, output.node))
                return Found()
            except traces.NoDumpError as error:
                if head[:1] == b"\x80":
                    return Found(problems=[f"{output.path} cannot be read as a flight recorder's dump: {error}"])
                file.seek(0)
        place = Place(
            file=output.path,
            source=output.source,
            rank=output.rank,
            node=output.node,
            utc_offset_s=utc_offset_s(status.st_mtime),
            written_by=status.st_mtime,
        )
        reader = LogReader(place, self.searcher, sieves, limits)
        size = None if is_packed(head) else status.st_size
        problems = list(_read_blocks(file, size, reader, limits, deadline, output.path))
        found = reader.found()
        found.problems += problems
        return found


def _read_blocks(
    file: BinaryIO, size: int | None, reader: LogReader, limits: Limits, deadline: float, path: str
) -> Iterator[str]:
    """Reads, and says what was passed over. `size`: of the text, where it is known and any place of it can be read."""

    def is_over() -> bool:
        return time.monotonic() > deadline and (size is None or size - file.tell() > reader.end_bytes)

    try:
        most = limits.unpacked if size is None else size
        if reader.read(blocks_of(file, most, packed_most=limits.unpacked), is_over):
            return
        if size is None:
            yield f"{path} was not read to its end: {limits.seconds:g} s were over"
            return
        begin, left_at = size - reader.end_bytes, file.tell()
        file.seek(begin)
        with suppress(NoTextError):
            reader.read_end(blocks_of(file, reader.end_bytes, packed_most=0))
        yield f"{(begin - left_at) >> 20} MiB of {path} before its end were not read: {limits.seconds:g} s were over"
    except UnpackingError as error:
        yield f"{path} was not read to its end: {error}"
    except OSError as error:  # it was there, and is not any more: a node or a file system went
        yield f"{path} was not read to its end: {error.strerror or error}"


def _in_folder(path: str) -> Iterator[str]:
    """Files below a folder, not through links, not those whose names say that they are no logs."""
    deepest = path.rstrip("/").count("/") + _DEEPEST
    for folder, folders, names in os.walk(path):
        folders.sort()
        if folder.count("/") >= deepest:
            folders.clear()
        for name in sorted(names):
            full = os.path.join(folder, name)
            with suppress(OSError):
                if not _NOT_LOGS.search(name) and not os.path.islink(full):
                    yield full
