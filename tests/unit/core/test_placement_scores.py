"""Placement scores, one sentence each, and the measure that two of them descend."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.placement.scores import POLICIES, Rows, Supply, kind_of, make_score
from bireme.core.placement.target import Ask, Target, typical
from bireme.core.placement.usefulness import Usefulness

SUPPLY = Supply(("a", "b"), np.array([16, 16]), 128, 8)
HALF = Ask(4, 500, 1)
ONE = Ask(8, 1000, 1)
EIGHT = Ask(64, 1000, 8)


def rows(*nodes: tuple[int, list[int]], model: int = 0, kinds: tuple[int, ...] = ()) -> Rows:
    """(CPUs, free thousandths of each GPU) of each node."""
    left = np.zeros((len(nodes), 8), dtype=np.int64)
    for row, (_, gpus) in enumerate(nodes):
        left[row, : len(gpus)] = gpus
    return Rows(
        np.array([cpus for cpus, _ in nodes], dtype=np.int64),
        left,
        np.array([len(gpus) for _, gpus in nodes], dtype=np.int64),
        np.full(len(nodes), model, dtype=np.int64),
        np.array(kinds or [0] * len(nodes), dtype=np.int64),
    )


def best(policy: str, ask: Ask, candidates: Rows, counts: dict[Ask, float] | None = None) -> int:
    score = make_score(policy, counts or {HALF: 1.0, ONE: 1.0, EIGHT: 1.0}, SUPPLY)
    return int(score.rate(ask, candidates, 1).points.argmax())


def fragmented(cpus: int, gpus: list[int], counts: dict[Ask, float]) -> float:
    usefulness = Usefulness(Target.of(counts, SUPPLY.models), SUPPLY.gpus)
    row = rows((cpus, gpus))
    return float(row.left_total[0] - usefulness.of(row.cpus, row.left, row.model)[0])


def test_what_no_expected_job_can_use_is_fragmented() -> None:
    assert fragmented(8, [300, 500, 1000], {HALF: 1.0}) == 300
    assert fragmented(8, [300, 500, 1000], {ONE: 1.0}) == 800
    assert fragmented(3, [300, 500, 1000], {HALF: 1.0}) == 1800, "no CPUs for it"
    assert fragmented(64, [1000] * 7, {EIGHT: 1.0}) == 7000
    assert fragmented(8, [1000], {Ask(8, 1000, 1, ("b",)): 1.0}) == 1000, "another model is asked for"
    assert fragmented(8, [1000], {ONE: 3.0, Ask(8): 1.0}) == 250, "work without GPUs can use none"


def test_the_rare_quarter_is_not_typical() -> None:
    assert typical({HALF: 90, ONE: 6, EIGHT: 4}) == {HALF: 90, ONE: 6}


@pytest.mark.parametrize("policy", ["bestfit", "dotprod", "fgd", "foresight"])
def test_one_gpu_goes_where_eight_do_not_fit_any_more(policy: str) -> None:
    assert best(policy, ONE, rows((128, [1000] * 8), (64, [1000] * 4))) == 1


def test_packing_takes_a_shared_gpu_before_a_free_one_and_a_used_node_before_an_empty_one() -> None:
    nodes = rows((64, [1000] * 8), (64, [1000, 1000, 0]), (64, [500, 1000]))
    assert best("gpupacking", HALF, nodes) == 2
    assert best("gpupacking", ONE, rows((64, [1000] * 8), (64, [1000, 1000, 0]))) == 1


def test_clustering_keeps_kinds_apart() -> None:
    nodes = rows((64, [500, 1000]), (64, [1000, 0]), (64, [1000, 1000]), kinds=(kind_of(HALF), kind_of(ONE), 0))
    assert best("gpuclustering", HALF, nodes) == 0
    assert best("gpuclustering", ONE, nodes) == 1
    assert best("gpuclustering", Ask(8, 1000, 2), nodes) == 2


def test_fgd_chooses_the_gpu_too() -> None:
    score = make_score("fgd", {Ask(1, 400, 1): 1.0, Ask(1, 600, 1): 1.0}, SUPPLY)
    rated = score.rate(Ask(1, 400, 1), rows((64, [1000, 400, 600])), 1)
    assert rated.gpu[0] == 1


def test_foresight_keeps_cpus_for_the_gpus_of_a_node() -> None:
    """A hungry job without GPUs goes where CPUs are left over, not where every one has a GPU to serve."""
    nodes = rows((64, [1000] * 8), (64, [1000] * 2))
    assert best("foresight", Ask(32), nodes, {ONE: 1.0}) == 1


def test_foresight_spares_the_model_that_others_depend_on() -> None:
    only_b = Ask(8, 1000, 1, ("b",))
    plain = rows((64, [1000] * 4), (64, [1000] * 4))
    both = replace(plain, model=np.array([0, 1]))
    assert best("foresight", ONE, both, {ONE: 1.0, only_b: 1.0}) == 0


def test_random_gives_the_same_numbers_again() -> None:
    nodes = rows(*[(64, [1000] * 8)] * 50)
    first, again, later = (make_score("random", {}, SUPPLY, 7).rate(HALF, nodes, turn) for turn in (1, 1, 2))
    assert (first.points == again.points).all()
    assert (first.gpu == again.gpu).all()
    assert (first.points != later.points).any()
    assert len(set(first.gpu.tolist())) > 4


@given(
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.integers(4, 128), st.lists(st.integers(500, 1000), min_size=1, max_size=8)), min_size=1),
)
def test_a_part_always_goes_to_a_gpu_that_holds_it(policy: str, nodes: list[tuple[int, list[int]]]) -> None:
    candidates = rows(*nodes)
    rated = make_score(policy, {HALF: 2.0, ONE: 1.0}, SUPPLY).rate(HALF, candidates, 3)
    assert np.isfinite(rated.points).all()
    assert (candidates.left[np.arange(len(nodes)), rated.gpu] >= HALF.milli).all()


@given(st.integers(0, 128), st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_nothing_is_of_more_use_than_it_is(cpus: int, gpus: list[int], remainder: float, shortage: float) -> None:
    target = Target.of({HALF: 2.0, ONE: 1.0, EIGHT: 1.0}, SUPPLY.models)
    usefulness = Usefulness(target, SUPPLY.gpus, remainder=remainder, shortage=shortage)
    row = rows((cpus, gpus))
    assert -1e-9 <= usefulness.of(row.cpus, row.left, row.model)[0] <= row.left_total[0] + 1e-9
