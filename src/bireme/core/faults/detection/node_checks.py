"""What checks of a machine mean for its nodes, and which nodes a site's own check is run on. Pure.

A check that fails is a finding that stands until the same check passes, or somebody says that it is mended; a warning
is none. Delay: until the checks are run next. Invariant: a check that was not made says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble
from bireme.core.model.nodes import Health
from bireme.core.state.state import State

DETECTOR = "health"
PROGRAM = "health.program"
NODE_STATES = ("ALLOC", "ANY", "CYCLE", "IDLE", "MIXED", "NONDRAINED_IDLE", "START_ONLY")
"""Words of HealthCheckNodeState."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One line of `bireme health`."""

    name: str
    status: str
    why: str
    advice: str


def judge(node: str, checks: Iterable[Checked], now: float, sharers: int = 1) -> list[o.Observation]:
    """What fails is seen, what passes is gone: also what lasts by itself. `sharers`: so many nodes are on the machine,
    and this is one of them: what fails there is one finding, and takes none of them out of service."""
    found: list[o.Observation] = []
    for check in checks:
        detector = f"{DETECTOR}.{check.name.replace(' ', '_')}"
        if check.status == "FAIL":
            found.append(o.TroubleSeen(_trouble(detector, node, check, now, sharers), now))
        else:
            place, why = Place(node=node), f"the check passes: {check.why}"
            found.append(o.TroubleGone(detector=detector, place=place, at=now, why=why, mended=True))
    return found


_CAUSES = {
    "driver": "gpu_unavailable",
    "gpus": "gpu_fell_off_bus",
    "disk": "storage_full",
    "writing": "disk_read_only",
    "mount": "storage_stale",
}


def _trouble(detector: str, node: str, check: Checked, now: float, sharers: int) -> Trouble:
    where = f" on the machine of all {sharers} nodes" if sharers > 1 else ""
    return Trouble(
        detector=detector,
        place=Place(node=node),
        gravity=Gravity.DEGRADED if where else Gravity.BROKEN,
        cause=_CAUSES.get(check.name.partition(" ")[0], "node_check"),
        title=f"Check {check.name} fails{where}: {check.why}",
        since=now,
        quotes=(Quote(text=f"FAIL {check.name}: {check.why}", source="check", at=now, node=node),),
        remedy=check.advice[:1].upper() + check.advice[1:],
        lasts=True,
    )


def of_program(node: str, program: str, code: int | None, output: str, now: float) -> o.Observation:
    """`code`: how the site's own program ended; None: it took too long. It acts by itself: this is a note."""
    place = Place(node=node)
    if code == 0:
        return o.TroubleGone(detector=PROGRAM, place=place, at=now, why=f"{program} ended with 0", mended=True)
    how = "took too long and was killed" if code is None else f"ended with {code}"
    trouble = Trouble(
        detector=PROGRAM,
        place=place,
        gravity=Gravity.NOTE,
        cause="node_check",
        title=f"HealthCheckProgram {how}",
        since=now,
        quotes=(Quote(text=output or f"{program} {how}", source="check", at=now, node=node),),
        remedy="Run it there by hand. It drains a node itself where that is to be: scontrol update nodename=... ",
        lasts=False,
    )
    return o.TroubleSeen(trouble, now)


def wanted(state: State, states: str) -> list[str]:
    """Nodes that HealthCheckNodeState means now, of those that answer; none for START_ONLY."""
    words = {word.strip().upper() for word in states.split(",")} - {"CYCLE", ""}
    if "START_ONLY" in words:
        return []
    cpus = _cpus_held(state)
    found = []
    for node in state.nodes.values():
        if node.health is not Health.UP:
            continue
        held = cpus.get(node.name, 0)
        stands = {"ALLOC" if held >= node.config.cpus else "MIXED" if held else "IDLE"}
        if not held and not node.drained:
            stands.add("NONDRAINED_IDLE")
        if not words or "ANY" in words or stands & words:
            found.append(node.name)
    return found


def _cpus_held(state: State) -> Mapping[str, int]:
    held: dict[str, int] = {}
    for job in state.holding.values():
        for share in job.allocation.shares if job.allocation is not None else ():
            held[share.node] = held.get(share.node, 0) + share.cpus
    return held
