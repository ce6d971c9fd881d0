"""Planning inputs as test cases: a scenario saved as the file that `bireme snapshot` makes, and files planned again.

`save` turns a world of the scenario language into such a file; `replay` plans a file and gives what was recorded in it
beside what is decided now. A file from somebody's bug report is a test once it is copied into a folder of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.slurm.records.plans import plan_record
from bireme.store.planning_input import decode_input, encode_input, with_decided
from bireme.testing.scenario import Scenario

SUFFIX = ".snapshot"


@dataclass(frozen=True, slots=True)
class Replay:
    recorded: dict[str, Any] | None
    decided: dict[str, Any]


def save(world: Scenario, path: Path, *, anonymise: bool = False) -> None:
    """The world as it is now, before the next pass, with what that pass decides."""
    data = encode_input(world.state, world.now, "test", anonymise=anonymise)
    path.write_bytes(with_decided(data, _decided(data)))


def replay(path: Path) -> Replay:
    data = path.read_bytes()
    return Replay(decode_input(data).decided, _decided(data))


def _decided(data: bytes) -> dict[str, Any]:
    taken = decode_input(data)
    return plan_record(plan(Snapshot(taken.state, taken.state.config.settings.policy, taken.now)))
