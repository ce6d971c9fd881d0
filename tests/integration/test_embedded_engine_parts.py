"""The embedded engine's pure parts: gangs, --multi-prog files, launch entries."""

from __future__ import annotations

import pytest

from bireme.core.model.cluster import ClusterConfig, NodeConfig
from bireme.engines.crew.gangs import Gang, Next, StepStart
from bireme.engines.crew.multi_prog import MultiProgError, programs
from bireme.engines.embedded.agents import launch_entries


def test_a_gangs_script_starts_when_the_last_node_is_prepared() -> None:
    gang = Gang(("a", "b"), has_batch=True)
    assert [gang.prepared("b"), gang.prepared("b"), gang.prepared("a")] == [Next.WAIT, Next.WAIT, Next.START_BATCH]
    assert gang.prepared("a") is Next.WAIT


def test_a_gang_without_a_script_is_launched_when_prepared() -> None:
    gang = Gang(("a", "b"), has_batch=False)
    assert [gang.prepared("a"), gang.prepared("b")] == [Next.WAIT, Next.LAUNCHED]


def test_one_refusal_takes_all_back_before_it_is_reported() -> None:
    gang = Gang(("a", "b", "c"), has_batch=True)
    gang.prepared("a")
    assert gang.refused("b", "no", prolog_failed=True) is Next.TAKE_BACK
    assert gang.to_clear == {"a", "c"}
    assert gang.prepared("c") is Next.WAIT
    assert [gang.cleared("c"), gang.cleared("a")] == [Next.WAIT, Next.REFUSED]


def test_a_deaf_node_is_not_waited_for() -> None:
    gang = Gang(("a", "b"), has_batch=True)
    gang.prepared("a")
    assert gang.timed_out({"b"}) is Next.TAKE_BACK
    assert "b" in gang.problem
    assert gang.cleared("a") is Next.REFUSED
    assert Gang(("a",), has_batch=True).timed_out({"a"}) is Next.REFUSED


def test_a_step_begins_when_all_its_nodes_say_so() -> None:
    start = StepStart()
    assert not start.node_began("a")
    start.nodes = ("a", "b")
    assert start.node_began("b")


def test_multi_prog_gives_each_task_its_program() -> None:
    text = "# comment\n0,3 first --rank=%t\n1-2 'two words' %o \\\n  more\n* rest %t\n"
    assert programs(text, 5) == [
        ("first", "--rank=0"),
        ("two words", "0", "more"),
        ("two words", "1", "more"),
        ("first", "--rank=3"),
        ("rest", "4"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 a\n", "no record for task id 1"),
        ("0-x a\n1 b\n", "Invalid task id"),
        ("0\n1 b\n", "no program"),
        ("0 'a\n", "line 1"),
    ],
)
def test_a_multi_prog_file_that_leaves_a_task_out_is_refused(text: str, message: str) -> None:
    with pytest.raises(MultiProgError, match=message):
        programs(text, 2)


def test_a_node_named_like_the_host_is_real_and_the_others_are_virtual() -> None:
    config = ClusterConfig(
        nodes=(NodeConfig(name="host", cpus=1), NodeConfig(name="n1", cpus=1)), raw={"TaskPlugin": "task/affinity"}
    )
    entries = launch_entries(config, {"cpus": True, "memory": True}, host="host.example.org")
    assert [entries[node]["virtual"] for node in ("host", "n1")] == [False, True]
    assert [entries[node]["bind_cpus"] for node in ("host", "n1")] == [True, False]
    assert [entries[node]["confine"]["cpus"] for node in ("host", "n1")] == [True, False]
    assert entries["n1"]["hosts"] == {"host": "127.0.1.1", "n1": "127.0.1.2"}
