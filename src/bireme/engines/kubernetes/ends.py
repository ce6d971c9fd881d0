"""How the newest jobs ended, kept in the cluster itself: annotations of the daemon's own Lease.

A start's pods and Secret are removed once its end is in the journal, and then nobody knows of it but the journal. On a
machine with agents of its own these remember; here the Lease does, which is renewed every few seconds anyway. A daemon
whose journal lost its newest events, or whose whole home went back to an earlier day, reads there what must not run
again. The engine owns it and tells it of ends; the Lease carries `text`.
Invariant: what another home has written is not ours, and is left out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bireme.core.model import observations as o
from bireme.core.model.resources import ExitStatus

log = logging.getLogger("bireme.engines.kubernetes")

ANNOTATION = "bireme.dev/ends"
_MOST = 500
"""As many as an agent remembers; some 60 bytes each, of the 256 KiB that an object's annotations may have."""

Key = tuple[int, int]


class Ends:
    def __init__(self, file: Path) -> None:
        """`file`: the name that this home has given itself, so that its own words are known again."""
        self._of: dict[Key, tuple[str, o.BatchFinished]] = {}
        """Start -> the node of its script, and how that ended; oldest first."""
        self.home = _name_in(file)

    def note(self, node: str, end: o.BatchFinished) -> None:
        key = (end.job_id, end.generation)
        self._of.pop(key, None)
        self._of[key] = node, end
        if len(self._of) > _MOST:
            del self._of[next(iter(self._of))]

    def on(self, node: str) -> tuple[Key, ...]:
        """Starts whose script ended there."""
        return tuple(key for key, (where, _) in self._of.items() if where == node)

    def told_again(self) -> list[o.BatchFinished]:
        return [end for _, end in self._of.values()]

    @property
    def text(self) -> str:
        """The newest ends as text, for the Lease."""
        rows = [_row(node, end) for node, end in self._of.values()]
        return json.dumps({"home": self.home, "ends": rows}, separators=(",", ":"))

    def read(self, text: str) -> None:
        """What the Lease says from before this daemon."""
        try:
            said = json.loads(text) if text else {}
            if said.get("home") == self.home:
                for row in said["ends"]:
                    self.note(*_from_row(row))
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # anybody with the right may have written it
            log.warning("how earlier jobs ended cannot be read from the annotation %s: %s", ANNOTATION, error)


def _row(node: str, end: o.BatchFinished) -> list[Any]:
    status = {name: value for name, value in asdict(end.status).items() if value}
    return [end.job_id, end.generation, node, round(end.at, 3), status, int(end.ordered), end.label]


def _from_row(row: list[Any]) -> tuple[str, o.BatchFinished]:
    job_id, generation, node, at, status, ordered, label = row
    end = o.BatchFinished(int(job_id), int(generation), ExitStatus(**status), float(at))
    return str(node), replace(end, ordered=bool(ordered), label=str(label))


def _name_in(file: Path) -> str:
    """Made at the first start. A copy of the home, which is what may be put back, has the same.

    It is on disk before anything is written in its name, whole or not at all. An empty file is no name: a machine that
    lost its power while an earlier release wrote one left that.
    """
    with contextlib.suppress(FileNotFoundError):
        if name := file.read_text().strip():
            return name
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name, fresh = secrets.token_hex(8), file.with_suffix(".new")
    with fresh.open("w") as opened:
        opened.write(name)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return name
