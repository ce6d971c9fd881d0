"""HealthCheckProgram as slurm.conf says it, run on the nodes of this machine: its notes, limits and variables."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.state.state import State
from bireme.daemon.faults.detecting.checking import CheckingKeeper, Site, unapplied
from bireme.engines.simulated.clock import VirtualClock
from bireme.testing.scenario import Scenario


class Cluster:
    """A world that the keeper reports to; `until` returns when something was reported."""

    def __init__(self, world: Scenario) -> None:
        self.world = world
        self.clock: VirtualClock = world.clock
        self.told: list[o.Observation] = []
        self.came = asyncio.Event()

    @property
    def state(self) -> State:
        return self.world.state

    def report(self, observations: Sequence[o.Observation]) -> None:
        self.told += observations
        self.came.set()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                await self.came.wait()
                self.came.clear()


def with_program(text: str, folder: Path, **keys: str) -> Scenario:
    program = folder / "check"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    world = Scenario("2x8")
    raw = {"HealthCheckProgram": str(program), "HealthCheckInterval": "1", **keys}
    world.record([e.ClusterConfigured(replace(world.state.config, raw=raw))])
    return world


async def play(world: Scenario, folder: Path, done: Callable[[Cluster], bool]) -> Cluster:
    cluster = Cluster(world)
    keeper = CheckingKeeper(cluster, lambda: 0.0, lambda seen: True, str(folder), str(folder / "bin"))
    keeper.begin()
    try:
        await cluster.until(lambda: done(cluster))
    finally:
        await keeper.close()
    return cluster


def test_it_is_run_for_every_node_with_its_name_and_a_way_to_the_cluster(tmp_path: Path) -> None:
    world = with_program(f'echo "$SLURMD_NODENAME $BIREME_HOME $PATH" >> {tmp_path}/ran', tmp_path)
    cluster = asyncio.run(play(world, tmp_path, lambda cluster: len(cluster.told) >= 4))
    assert all(isinstance(each, o.TroubleGone) and each.mended for each in cluster.told)
    lines = (tmp_path / "ran").read_text().splitlines()
    assert {line.split()[0] for line in lines} == {"n1", "n2"}
    assert all(line.split()[1] == str(tmp_path) and f"{tmp_path}/bin:" in line for line in lines)
    assert len(lines) >= 4, "and again after its interval"


def test_one_that_fails_or_takes_too_long_is_a_note(tmp_path: Path) -> None:
    for text, title in (("echo it is bad; exit 3", "ended with 3"), ("sleep 600", "took too long and was killed")):
        world = with_program(text, tmp_path, HealthCheckTimeout="1")
        cluster = asyncio.run(play(world, tmp_path, lambda cluster: len(cluster.told) >= 2))
        titles = {each.trouble.title for each in cluster.told if isinstance(each, o.TroubleSeen)}
        assert titles == {f"HealthCheckProgram {title}"}


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    world = with_program("true", tmp_path, HealthCheckProgram=str(tmp_path / "none"))
    cluster = asyncio.run(play(world, tmp_path, lambda cluster: len(cluster.told) >= 1))
    assert isinstance(cluster.told[0], o.TroubleSeen)
    assert "No such file" in cluster.told[0].trouble.quotes[0].text


def test_what_is_asked_for_and_not_run_is_said() -> None:
    config = Scenario("1x8").state.config

    def said(is_here: bool = True, **raw: str) -> str:
        return unapplied(replace(config, raw=raw), is_here=is_here)

    assert said() == said(HealthCheckProgram="/bin/c", HealthCheckInterval="60") == ""
    assert said(HealthCheckProgram="/bin/c").endswith("is not run: HealthCheckInterval=0")
    assert said(HealthCheckProgram="/bin/c", HealthCheckInterval="soon").endswith("HealthCheckInterval=soon")
    assert "full path" in said(HealthCheckProgram="check", HealthCheckInterval="60")
    assert "other machines" in said(False, HealthCheckProgram="/bin/c", HealthCheckInterval="60")


def test_keys_of_slurm_conf() -> None:
    config = Scenario("1x8").state.config
    assert Site.of(config) == Site("", 0.0, "ANY", 60.0)
    raw = {"HealthCheckProgram": "/bin/c", "HealthCheckInterval": "300", "HealthCheckNodeState": "IDLE,CYCLE"}
    assert Site.of(replace(config, raw=raw)) == Site("/bin/c", 300.0, "IDLE,CYCLE", 60.0)
    assert Site.of(replace(config, raw={"HealthCheckProgram": "(null)"})).program == ""
