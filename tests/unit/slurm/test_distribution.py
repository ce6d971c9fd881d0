"""Task layouts. Literal expectations come from Slurm 22.05's own step layout."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.distribution import BindMethod, Distribution, NodeMethod
from bireme.core.placement.task_layout import LayoutError, layout
from bireme.slurm.distribution import format_distribution, parse_distribution
from bireme.slurm.errors import SlurmSyntaxError


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("block", Distribution(NodeMethod.BLOCK)),
        ("Cyclic", Distribution(NodeMethod.CYCLIC)),
        ("arbitrary", Distribution(NodeMethod.ARBITRARY)),
        ("*", Distribution()),
        ("plane=4", Distribution(NodeMethod.PLANE, plane_size=4)),
        ("block:cyclic", Distribution(NodeMethod.BLOCK, BindMethod.CYCLIC)),
        ("block:block:fcyclic", Distribution(NodeMethod.BLOCK, BindMethod.BLOCK, BindMethod.FCYCLIC)),
        ("*:*:*", Distribution()),
        ("block:", Distribution(NodeMethod.BLOCK)),
        ("block,Pack", Distribution(NodeMethod.BLOCK, pack=True)),
        ("block:cyclic,nopack", Distribution(NodeMethod.BLOCK, BindMethod.CYCLIC, pack=False)),
        ("block,", Distribution(NodeMethod.BLOCK)),
        ("Pack", Distribution(pack=True)),
    ],
)
def test_reads_what_sbatch_reads(text: str, distribution: Distribution) -> None:
    assert parse_distribution(text) == distribution
    assert parse_distribution(format_distribution(distribution)) == distribution


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "foo",
            "bl",
            "fcyclic",
            "block:foo",
            "block:arbitrary",
            "block:cyclic:cyclic:block",
            ",Pack",
            "block,foo",
        ),
        *("block,foo", "block,Pack,NoPack", "plane", "plane=0", "plane=x", "plane:4", "plane=4x"),
        *("plane=4:block", "plane=4,Pack"),
    ],
)
def test_refuses_what_sbatch_refuses(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid --distribution specification"):
        parse_distribution(text)


def test_the_plane_size_may_come_from_the_environment() -> None:
    assert parse_distribution("plane", plane_size=3).plane_size == 3


def tasks(text: str) -> list[list[int]]:
    """`0 1|2` to [[0, 1], [2]]."""
    return [[int(task) for task in node.split()] for node in text.split("|")]


LAYOUTS = [
    # ntasks, CPUs per node, CPUs per task, distribution, tasks of each node
    (8, (16, 16), 1, "block", "0 1 2 3|4 5 6 7"),
    (4, (2, 2, 2), 1, "block", "0 1|2|3"),
    (7, (2, 4, 1), 1, "block", "0 1|2 3 4 5|6"),
    (9, (2, 4, 1), 1, "block", "0 1 2|3 4 5 6 7|8"),
    (8, (8, 8, 8), 2, "block", "0 1 2|3 4 5|6 7"),
    (5, (8, 2), 2, "block", "0 1 2 3|4"),
    (1, (4, 4), 1, "block", "0|"),
    (4, (2, 2), 4, "block", "0 1|2 3"),
    (8, (16, 16), 1, "block,Pack", "0 1 2 3 4 5 6|7"),
    (8, (4, 4, 4), 1, "block,Pack", "0 1 2 3|4 5 6|7"),
    (6, (4, 1, 4), 1, "block,Pack", "0 1 2 3|4|5"),
    (8, (4, 4, 4), 1, "block,NoPack", "0 1 2|3 4 5|6 7"),
    (8, (16, 16), 1, "cyclic", "0 2 4 6|1 3 5 7"),
    (7, (2, 4, 1), 1, "cyclic", "0 3|1 4 5 6|2"),
    (9, (2, 4, 1), 1, "cyclic", "0 3 6|1 4 7 8|2 5"),
    (13, (2, 4, 1), 1, "cyclic", "0 3 6 9|1 4 7 10 11 12|2 5 8"),
    (10, (8, 8), 1, "plane=3", "0 1 2 6 7 8|3 4 5 9"),
    (12, (2, 2), 1, "plane=4", "0 1 2 3 8 9|4 5 6 7 10 11"),
    (9, (2, 4, 1), 1, "plane=2", "0 1 5 6|2 3 7 8|4"),
    (4, (5, 5), 1, "plane=4", "0 1 2|3"),
    (6, (1, 6, 3, 2, 4), 1, "plane=4", "0|1 2|3|4|5"),
    (8, (5, 6, 1, 6, 2), 1, "plane=1", "0 5|1 6|2 7|3|4"),
]


@pytest.mark.parametrize(("ntasks", "cpus", "per_task", "distribution", "expected"), LAYOUTS)
def test_lays_out_as_slurm(ntasks: int, cpus: tuple[int, ...], per_task: int, distribution: str, expected: str) -> None:
    assert layout(ntasks, cpus, per_task, parse_distribution(distribution)) == tasks(expected)


def test_tasks_per_node_are_a_ceiling_that_beats_the_cpus() -> None:
    assert layout(4, [8, 8], ntasks_per_node=2) == [[0, 1], [2, 3]]
    assert layout(8, [2, 2], ntasks_per_node=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert layout(5, [8, 8, 8], 1, parse_distribution("block,Pack"), 2) == [[0, 1], [2, 3], [4]]


def test_arbitrary_follows_the_host_list() -> None:
    arbitrary = parse_distribution("arbitrary")
    nodes = ["n1", "n2"]
    assert layout(3, [4, 4], 1, arbitrary, nodes=nodes, hosts=["n2", "n1", "n2"]) == [[1], [0, 2]]
    for hosts, why in ((["n2"], "name one host per task"), (["n2", "n1", "x"], "x is not one of")):
        with pytest.raises(LayoutError, match=why):
            layout(3, [4, 4], 1, arbitrary, nodes=nodes, hosts=hosts)


methods = st.sampled_from(["block", "cyclic", "block,Pack", "plane=1", "plane=2", "plane=5"]).map(parse_distribution)


@given(st.integers(0, 60), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 4), methods)
def test_every_task_has_one_place(ntasks: int, cpus: list[int], per_task: int, method: Distribution) -> None:
    placed = layout(ntasks, cpus, per_task, method)
    assert sorted(task for node in placed for task in node) == list(range(ntasks))
    assert all(node == sorted(node) for node in placed)
    if ntasks >= len(cpus):
        assert all(placed)


@given(st.text() | st.text(alphabet="blockcyipan=:*,P14"))
def test_any_text_is_a_distribution_or_a_syntax_error(text: str) -> None:
    with contextlib.suppress(SlurmSyntaxError):
        assert isinstance(parse_distribution(text), Distribution)
