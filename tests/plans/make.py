"""Makes the snapshots that come from scenarios, with what this version decides: `python -m tests.plans.make`."""

from __future__ import annotations

from pathlib import Path

from bireme.testing.plans import SUFFIX, save
from bireme.testing.scenario import Scenario

HOUR = 3600
FOLDER = Path(__file__).parent


def a_gang_and_its_neighbours() -> Scenario:
    """A node just came back: jobs start, a gang gets its slot, and a short job fills the gap before it."""
    world = Scenario("4x8:h100", leaves=["n[1-2]", "n[3-4]"])
    world.submit("running", gpus_per_node=8, time_s=2 * HOUR)
    world.settle()
    world.node("n4", "DRAIN")
    world.submit("gang", nodes=4, gpus_per_node="h100:8", time_s=4 * HOUR)
    world.submit("pair", nodes=2, gpus_per_node=8, time_s=HOUR)
    world.submit("long", gpus=1, time_s=9 * HOUR, user="bob")
    world.submit("array", array="1-6%2", cpus=1, time_s=HOUR, user="bob")
    world.node("n4", "RESUME")
    return world


def many_reasons() -> Scenario:
    """Holds, dependencies, limits of a partition, drained nodes and a heterogeneous job, all waiting at once."""
    world = Scenario("3x8", partitions={"main": {}, "debug": {"nodes": "n3", "max_time_s": HOUR}})
    world.submit("running", cpus=8, time_s=HOUR, on="n1")
    world.settle()
    world.submit("held", hold=True)
    world.submit("after", after="afterok:running")
    world.submit("too long", partition="debug", time_s=2 * HOUR)
    world.submit("all", nodes=3, time_s=HOUR)
    world.submit_het("het", {"cpus": 8, "time_s": HOUR}, {"cpus": 8, "nodes": 2, "time_s": HOUR})
    world.node("n2", "DRAIN")
    return world


def main() -> None:
    for made in (a_gang_and_its_neighbours, many_reasons):
        save(made(), FOLDER / f"{made.__name__}{SUFFIX}", anonymise=True)


if __name__ == "__main__":
    main()
