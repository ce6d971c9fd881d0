"""Fixtures for tests that need a running cluster. A cluster that leaves a process behind fails its test."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from tests.support.cluster import Cluster

from bireme.cli.near import Process
from bireme.commands.surroundings import surround

if TYPE_CHECKING:
    from tests.support.beside import ByCluster

MakeCluster = Callable[..., Cluster]

# How long an example takes says something about this machine and what else runs on it, nothing about the code.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples each time, so that a failure belongs to a change; `make explore` looks for new ones.
settings.register_profile("patient", settings.get_profile("explore"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))


# What Python compiles is kept, whatever our caller has set: tests start thousands of processes, and a daemon that
# compiles itself each time takes twice as long to start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

surround(Process())  # commands that tests call run in this process, and see it around them


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster:
    """Several workers (`-n 2`): each takes a whole cluster's tests."""
    from tests.support.beside import ByCluster  # needs pytest-xdist, which a run without workers does not

    return ByCluster(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What is collected, and the modules that it imports, stay: Python's collector does not walk through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers what takes longest begins first; each of them has to come to the same order."""
    if not hasattr(config, "workerinput"):
        return
    from tests.support.beside import longest_first, scope_of

    def module_of(item: pytest.Item) -> str:
        return item.nodeid.partition("::")[0]

    turns = {scope: turn for turn, scope in enumerate(longest_first(map(module_of, items)))}
    items.sort(key=lambda item: turns[scope_of(module_of(item))])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Four virtual nodes with eight GPUs each, shared by the tests of a module."""
    with Cluster().running() as running:
        yield running


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """`make_cluster(conf)`: starts a cluster of this test's own; `conf` as in `Cluster.conf`. `up=False`: only made."""
    made: list[Cluster] = []

    def make(conf: str = "", *, up: bool = True, **beside: str) -> Cluster:
        one = Cluster()
        made.append(one)
        if conf or beside:
            one.conf(conf or one.conf_file.read_text(), **beside)
        return one.up() if up else one

    yield make
    left = [line for one in made for line in one.stop()]
    assert not left, f"left running after `bireme down --end-jobs`: {left}"
