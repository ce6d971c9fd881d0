"""Decisions: the same queue on the same cluster. The same jobs must start; equal nodes may be other nodes.

A case has `jobs` (options of sbatch, in order) and `before` (a snippet: reservations, running jobs), and is judged when
nothing changes any more; with `reasons`, why a job waits is compared too. Which nodes a job got is compared by
quality: how many leaf switches it touches.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from tests.oracle.cases import Case
from tests.oracle.pair import System
from tests.oracle.readings import Items
from tests.slurm_cluster import Layout

from bireme.slurm.hostlist import expand

CALM_S = 1.0
"""How long nothing must change, however quickly the scheduler has looked at all of it (`settled` of prelude.sh)."""
PATIENCE_S = 90.0
_QUEUE = "squeue -h -o '%j|%T|%N|%r'"
_ON_THE_WAY = ("CONFIGURING", "COMPLETING")


@dataclass(slots=True)
class Decided:
    items: Items
    nodes: dict[str, str] = field(default_factory=dict)
    """Which nodes each running job got."""

    def choices_beside(self, other: Decided, layout: Layout) -> list[str]:
        """One line for each job that got other nodes: equal, better, or worse ones."""
        leaves = _leaves(layout)
        notes = []
        for job in self.nodes.keys() & other.nodes.keys():
            ours, theirs = self.nodes[job], other.nodes[job]
            if ours != theirs:
                word = _judge(_spread(ours, leaves), _spread(theirs, leaves))
                notes.append(f"{word}: {job} on {ours}, Slurm took {theirs}")
        return sorted(notes)


def decide(system: System, case: Case) -> Decided:
    """Submits while the partitions are closed, opens them, and waits until both schedulers have come to rest."""
    wanted: dict[str, str | list[str]] = case.settings
    jobs = [f"sbatch -J j{place} -o /dev/null {options} --wrap='exec sleep 1000' >/dev/null" for place, options in
            enumerate(wanted["jobs"], 1)]  # fmt: skip
    setup = [
        str(wanted.get("before", "")),
        _partitions("DOWN"),
        *jobs,
        str(wanted.get("meanwhile", "")),
        _partitions("UP"),
    ]
    done = system.run("\n".join(setup), f"decision-{abs(hash(case.name)) % 10**6}")
    queue = _at_rest(system)
    _clean(system, str(wanted.get("after", "")))
    items = {"exit code": str(done.code)}
    items |= {f"err {place}": re.sub(r"\b\d+\b", "#", line) for place, line in enumerate(done.err.splitlines(), 1)}
    nodes = {}
    for line in sorted(queue):
        name, state, list_of_nodes, reason = line.split("|")
        if not name.startswith("j"):  # of the jobs that ran before, any may give way to others
            kind = f"{name.rstrip('0123456789')} jobs {state}"
            items[kind] = str(int(items.get(kind, "0")) + 1)
            continue
        items[f"{name} state"] = state
        if state == "RUNNING":
            items[f"{name} node count"] = str(len(expand(list_of_nodes)))
            nodes[name] = list_of_nodes
        elif wanted.get("reasons"):
            items[f"{name} reason"] = reason
    return Decided(items, nodes)


def _clean(system: System, after: str) -> None:
    """Takes away what the case left: the next one has the whole cluster."""
    done = system.run(f"{_CLEAN}{after}", "clean")
    if done.code:
        raise RuntimeError(f"{system.name} could not be cleaned after a case: {done.out}{done.err}")


_CLEAN = """\
scancel --quiet -u root 2>/dev/null
scancel -u root
while [ -n "$(squeue -h)" ]; do again 0.2; done
"""


def _partitions(state: str) -> str:
    """Higher tiers first: whoever decides at once must not see only the lower ones."""
    names = "$(sinfo -h -o '%p %R' | sort -u | sort -rn | cut -d' ' -f2)"
    return f"for p in {names}; do scontrol update PartitionName=$p State={state}; done"


def _at_rest(system: System) -> set[str]:
    """The queue when nothing is on its way and another look of the scheduler at all of it changed nothing."""
    queue, since = _queue(system), time.monotonic()
    deadline = since + PATIENCE_S
    while time.monotonic() < deadline:
        done = system.run(f"settled\n{_QUEUE}", "queue")
        now = _jobs(done.out)
        if now != queue or any(f"|{state}|" in job for job in now for state in _ON_THE_WAY):
            queue, since = now, time.monotonic()
        elif time.monotonic() - since >= CALM_S:
            return queue
        else:
            time.sleep(0.2)
    raise RuntimeError(f"{system.name} did not come to rest within {PATIENCE_S:g} s: {sorted(queue)}")


def _queue(system: System) -> set[str]:
    return _jobs(system.run(_QUEUE, "queue").out)


def _jobs(said: str) -> set[str]:
    return set(said.split("\n")) - {""}


def _leaves(layout: Layout) -> dict[str, str]:
    """Which leaf switch or block a node hangs on; without a topology all hang on one."""
    found = re.findall(r"^(?:SwitchName|BlockName)=(\S+) Nodes=(\S+)", layout.topology, re.MULTILINE)
    return {node: leaf for leaf, nodes in found for node in expand(nodes)}


def _spread(nodes: str, leaves: dict[str, str]) -> int:
    return len({leaves.get(node, "") for node in expand(nodes)})


def _judge(ours: int, theirs: int) -> str:
    return "equal" if ours == theirs else "better" if ours < theirs else "WORSE"
