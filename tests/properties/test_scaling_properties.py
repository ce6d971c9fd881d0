"""Whatever the load and the policy: within bounds, monotone, calm under an even load, and never fewer for want of data.

A service here has the replicas that it wants a few seconds after it wants them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget, Shift
from bireme.core.scaling.advice import Advice, Cause, Kept
from bireme.core.scaling.advise import advise
from bireme.core.scaling.checking import problems
from bireme.core.scaling.seen import Seen
from bireme.core.scaling.wording import sentence

BEGAN = 1_800_014_400.0

LOADS = st.lists(
    st.tuples(st.integers(1, 40), st.one_of(st.none(), st.floats(0.0, 500.0), st.sampled_from([0.0, 1.0, 80.0]))),
    min_size=1,
    max_size=8,
)
"""Seconds with a load; None: nothing is said of them."""


@st.composite
def policies(draw: st.DrawFn) -> Scaling:
    lower = draw(st.integers(0, 3))
    stable = draw(st.sampled_from([6.0, 20.0, 60.0]))
    policy = Scaling(
        replicas_min=lower,
        replicas_max=draw(st.integers(max(lower, 1), 30)),
        targets=draw(
            st.sampled_from(
                [
                    (),
                    (ScalingTarget(Measure.CONCURRENCY, 1.0),),
                    (ScalingTarget(Measure.CONCURRENCY, 8.0), ScalingTarget(Measure.RATE, 3.0)),
                ]
            )
        ),
        shifts=draw(st.sampled_from([(), (Shift((4,), 12 * 60 + 1, 2, 40), Shift((4,), 12 * 60 + 2, 0))])),
        stable_window_s=stable,
        panic_window_s=draw(st.sampled_from([1.0, 6.0])),
        panic_threshold=draw(st.sampled_from([1.1, 2.0, 10.0])),
        up_rate=draw(st.sampled_from([1.5, 2.0, 1000.0])),
        down_rate=draw(st.sampled_from([1.2, 2.0])),
        down_delay_s=draw(st.sampled_from([0.0, 10.0, 60.0])),
        idle_s=draw(st.sampled_from([0.0, 30.0])),
        standby=draw(st.integers(0, 2)),
    )
    assert not problems(policy)
    return policy


def play(policy: Scaling, loads: Sequence[float | None], wanted: int = 0, lag: int = 3) -> list[Advice]:
    seen, kept, said = Seen(policy, BEGAN), Kept(), []
    coming = deque([wanted] * lag, maxlen=lag)
    for second, load in enumerate(loads, start=1):
        now = BEGAN + second
        if load is not None:
            seen.requests(now - 0.5, 1.0, load, round(load))
        advice = advise(policy, seen, ready=min(coming), wanted=wanted, now=now, kept=kept)
        kept, wanted = advice.kept, advice.wanted
        coming.append(wanted)
        said.append(advice)
    return said


def spread(loads: list[tuple[int, float | None]]) -> list[float | None]:
    return [load for seconds, load in loads for _ in range(seconds)]


@settings(max_examples=40)
@given(policies(), LOADS, st.integers(0, 40))
def test_it_is_within_the_bounds_and_says_why(
    policy: Scaling, loads: list[tuple[int, float | None]], wanted: int
) -> None:
    for advice in play(policy, spread(loads), wanted):
        assert advice.why.bounds.lower <= advice.wanted <= advice.why.bounds.upper
        assert advice.wanted == advice.why.wanted
        assert sentence(advice.why)
        assert len(advice.kept.asked) <= 60
        assert advice.next_change_at is None or advice.next_change_at > BEGAN


@settings(max_examples=80)
@given(policies(), LOADS, st.floats(0.0, 200.0), st.integers(0, 20), st.integers(0, 20))
def test_more_load_never_asks_for_fewer(
    policy: Scaling, loads: list[tuple[int, float | None]], more: float, ready: int, wanted: int
) -> None:
    """Of two services that are alike in everything else, at the same moment."""
    little, much = (Seen(policy, BEGAN) for _ in range(2))
    now = BEGAN
    for load in spread(loads):
        now += 1.0
        if load is not None:
            little.requests(now - 0.5, 1.0, load, round(load))
            much.requests(now - 0.5, 1.0, load + more, round(load + more))
    fewer, at_least = (advise(policy, seen, ready=ready, wanted=wanted, now=now).wanted for seen in (little, much))
    assert fewer <= at_least


@settings(max_examples=20)
@given(policies(), st.floats(0.0, 200.0), st.integers(0, 40))
def test_an_even_load_makes_no_flapping(policy: Scaling, load: float, wanted: int) -> None:
    """It may go up and then down to where it belongs, and stays there."""
    policy = Scaling(**{name: getattr(policy, name) for name in Scaling.__slots__} | {"shifts": ()})
    counts = [advice.wanted for advice in play(policy, [load] * 700, wanted)]
    turns = [later - earlier for earlier, later in pairwise(counts) if later != earlier]
    ups_after_down = [turn for index, turn in enumerate(turns) if turn > 0 and any(each < 0 for each in turns[:index])]
    assert not ups_after_down
    assert len(set(counts[-100:])) == 1


@settings(max_examples=40)
@given(policies(), LOADS, st.integers(0, 40))
def test_a_burst_and_missing_figures_take_nothing_away_but_by_the_bounds(
    policy: Scaling, loads: list[tuple[int, float | None]], wanted: int
) -> None:
    before = wanted
    for advice in play(policy, spread(loads), wanted):
        held = advice.why.cause in (Cause.BURST, Cause.MISSING, Cause.UNSEEN)
        unknown = all(reading.stable is None for reading in advice.why.readings)
        if held or (unknown and advice.why.cause is not Cause.MAXIMUM):
            assert advice.wanted >= min(before, advice.why.bounds.upper)
        before = advice.wanted


@settings(max_examples=30)
@given(policies(), LOADS, st.integers(1, 40))
def test_within_the_first_window_only_the_bounds_make_it_fewer(
    policy: Scaling, loads: list[tuple[int, float | None]], wanted: int
) -> None:
    before = wanted
    for second, advice in enumerate(play(policy, spread(loads), wanted), start=1):
        if second < policy.stable_window_s:
            assert advice.wanted >= min(before, advice.why.bounds.upper)
        before = advice.wanted
