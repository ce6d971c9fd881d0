"""The autoscaler, second by second: what it advises of a load, and why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget, Shift
from bireme.core.scaling.advice import Advice, Cause, Kept
from bireme.core.scaling.advise import advise
from bireme.core.scaling.seen import Seen
from bireme.core.scaling.targets import with_default_target
from bireme.core.scaling.wording import sentence

NOON = 1_800_014_400.0  # a Friday, 12:00 UTC
POLICY = Scaling(
    targets=(ScalingTarget(Measure.CONCURRENCY, 10.0),), replicas_min=0, replicas_max=20, down_delay_s=60.0
)
KV = ScalingTarget(Measure.METRIC, 4.0, "vllm:num_requests_waiting")
QUERY = ScalingTarget(Measure.QUERY, 100.0, "sum(queue_depth)")


class Play:
    """A service whose replicas are there as soon as they are asked for, and what was advised of it."""

    def __init__(self, policy: Scaling = POLICY, wanted: int = 0, now: float = NOON) -> None:
        self.policy, self.wanted, self.now = policy, wanted, now
        self.ready: int | None = None
        self.seen, self.kept = Seen(policy, now), Kept()
        self.advice: Advice | None = None

    def second(self, concurrency: float | None, arrived: int = 0) -> Advice:
        """One second with this load, and the advice at its end; None: nobody says anything."""
        self.now += 1.0
        if concurrency is not None:
            self.seen.requests(self.now - 0.5, 1.0, concurrency, arrived)
        return self.ask()

    def ask(self) -> Advice:
        ready = self.wanted if self.ready is None else self.ready
        self.advice = advise(self.policy, self.seen, ready=ready, wanted=self.wanted, now=self.now, kept=self.kept)
        self.kept, self.wanted = self.advice.kept, self.advice.wanted
        return self.advice

    def seconds(self, count: int, concurrency: float | None) -> list[int]:
        return [self.second(concurrency).wanted for _ in range(count)]

    @property
    def cause(self) -> Cause:
        assert self.advice is not None
        return self.advice.why.cause

    @property
    def words(self) -> str:
        assert self.advice is not None
        return sentence(self.advice.why)


def test_one_replica_for_each_ten_requests_at_once() -> None:
    play = Play()
    assert play.seconds(100, 35.0)[-1] == 4
    assert play.words == "4 replicas: 35 requests at once, one replica for each 10."


def test_what_is_exactly_a_replicas_share_needs_no_second_one() -> None:
    play = Play(replace(POLICY, targets=(ScalingTarget(Measure.CONCURRENCY, 0.1),)))
    assert play.seconds(30, 0.3)[-1] == 3
    assert play.seconds(30, 0.303)[-1] == 3
    assert play.seconds(30, 0.31)[-1] == 4


@pytest.mark.parametrize("replicas", [1, 3, 10])
@pytest.mark.parametrize("utilisation", [0.75, 0.9, 1.0])
def test_a_load_that_doubles_asks_for_more_within_two_seconds(replicas: int, utilisation: float) -> None:
    play = Play()
    play.seconds(120, replicas * 10.0 * utilisation)
    before = play.wanted
    assert before == math.ceil(replicas * utilisation)
    assert play.seconds(2, 2 * replicas * 10.0 * utilisation)[-1] > before


def test_a_burst_counts_the_short_window_and_nothing_gets_fewer_until_it_is_over() -> None:
    play = Play()
    play.seconds(120, 8.0)
    play.ready = 1
    assert play.seconds(6, 100.0)[-1] == 10
    assert play.cause is Cause.BURST
    assert "a burst: 100 requests at once" in play.words
    play.ready = None
    assert set(play.seconds(59, 8.0)) == {10}
    assert play.cause is Cause.BURST


def test_after_a_burst_it_goes_down_in_halves_with_the_delay_between_them() -> None:
    play = Play()
    play.seconds(10, 100.0)
    counts = play.seconds(600, 8.0)
    assert list(dict.fromkeys(counts)) == [10, 5, 2, 1]
    assert [counts.count(5), counts.count(2)] == [60, 60]


def test_it_gets_fewer_only_when_no_more_were_needed_for_the_delay() -> None:
    play = Play(replace(POLICY, down_delay_s=30.0, panic_threshold=1000.0))
    play.seconds(120, 40.0)
    counts = play.seconds(60, 25.0)
    assert counts[29] == 4
    assert counts[-1] == 3
    play.seconds(5, 1.0)
    assert play.cause is Cause.DELAY
    assert "more were needed within the last 30 s" in play.words


def test_the_last_replica_goes_when_nobody_has_wanted_it_for_the_idle_time() -> None:
    play = Play()
    play.seconds(120, 8.0)
    counts = play.seconds(400, 0.0)
    assert counts[298] == 1
    assert counts[300] == 0
    assert play.words == "no replicas: no request for 300 s."


def test_a_service_that_nobody_has_asked_for_has_none() -> None:
    play = Play()
    assert play.seconds(10, 0.0) == [0] * 10


def test_a_request_that_finds_no_replica_wakes_it_at_once() -> None:
    play = Play()
    play.seconds(400, 0.0)
    play.seen.touch(play.now)
    assert play.ask().wanted == 1
    assert play.cause is Cause.WOKEN
    assert play.words == "1 replica: a request came, and it had no replica."
    play.wanted, play.ready = 1, 0
    play.ask()
    assert play.words == "1 replica: not ready yet; the last replica stays until there were no requests for 300 s."
    play.ready = 1
    play.ask()
    assert "no requests now; the last replica stays until there were no requests for 300 s (" in play.words


def test_a_queue_before_a_service_without_replicas_gets_as_many_as_it_needs() -> None:
    play = Play()
    play.ready = 0
    assert play.second(57.0).wanted == 6


def test_a_step_up_is_bounded_by_what_is_ready() -> None:
    play = Play(replace(POLICY, up_rate=2.0), wanted=2)
    play.ready = 2
    assert play.seconds(10, 100.0)[-1] == 4
    assert play.cause is Cause.STEP_UP
    assert play.words == ("4 replicas: the load needs 10; at once it gets at most 2 times those that are ready (2).")


def test_replicas_that_are_lost_do_not_make_it_want_fewer() -> None:
    play = Play(replace(POLICY, up_rate=2.0))
    play.seconds(60, 80.0)
    assert play.wanted == 8
    play.ready = 0
    assert min(play.seconds(60, 80.0)) == 8


def test_the_largest_of_several_targets_counts() -> None:
    policy = replace(POLICY, targets=(*POLICY.targets, ScalingTarget(Measure.RATE, 5.0)))
    play = Play(policy)
    for _ in range(60):
        play.second(12.0, arrived=31)
    assert play.wanted == 7
    assert play.words == "7 replicas: 31 requests a second, one replica for each 5."


def test_the_standby_is_added_to_what_the_load_needs() -> None:
    play = Play(replace(POLICY, standby=2))
    assert play.seconds(60, 35.0)[-1] == 6
    assert play.words == "6 replicas: 35 requests at once, one replica for each 10, and 2 on standby."


def test_a_service_with_standby_keeps_it_when_nobody_comes() -> None:
    play = Play(replace(POLICY, standby=1))
    assert play.seconds(900, 0.0)[-1] == 1


def test_bounds_come_last() -> None:
    play = Play(replace(POLICY, replicas_min=2, replicas_max=5, standby=3))
    assert play.seconds(5, 0.0)[-1] == 3
    assert play.seconds(60, 90.0)[-1] == 5
    assert play.words == "5 replicas: its maximum; the load needs 12."


def test_without_a_target_it_is_sixteen_requests_at_once() -> None:
    play = Play(Scaling(replicas_min=1, replicas_max=9))
    assert play.seconds(60, 33.0)[-1] == 3


def test_without_a_target_it_is_less_than_the_requests_that_a_replica_takes() -> None:
    policy = with_default_target(Scaling(replicas_max=9), max_concurrency=10)
    assert policy.targets == (ScalingTarget(Measure.CONCURRENCY, 7.0),)
    assert with_default_target(Scaling(), max_concurrency=1).targets[0].value == 1.0


# --- what is not known ------------------------------------------------------------------------------------------------


def test_it_never_gets_fewer_while_nothing_is_measured() -> None:
    play = Play()
    play.seconds(120, 35.0)
    assert set(play.seconds(1000, None)) == {4}
    assert play.cause is Cause.MISSING
    assert play.words == (
        "4 replicas: as before; it never gets fewer while figures are missing; "
        "requests at once: nothing was measured for 1000 s."
    )


def test_after_a_gap_it_waits_until_the_window_is_whole_again() -> None:
    play = Play(replace(POLICY, down_delay_s=0.0, panic_threshold=1000.0))
    play.seconds(120, 35.0)
    play.seconds(30, None)
    counts = play.seconds(60, 5.0)
    assert counts[50] == 4
    assert counts[-1] == 1


def test_after_a_restart_it_gets_no_fewer_before_it_has_seen_a_whole_window() -> None:
    play = Play(wanted=7)
    counts = play.seconds(300, 8.0)
    assert set(counts[:59]) == {7}
    play = Play(wanted=7)
    play.seconds(20, 8.0)
    assert play.cause is Cause.UNSEEN
    assert "has not been watched for 60 s yet (40 s to go)" in play.words


def test_after_a_restart_it_gets_more_at_once() -> None:
    play = Play(wanted=2)
    assert play.seconds(2, 80.0)[-1] == 8


def test_after_a_restart_the_last_replica_of_a_silent_service_stays_for_the_idle_time() -> None:
    play = Play(wanted=1)
    counts = play.seconds(400, 0.0)
    assert counts[298] == 1
    assert counts[-1] == 0


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_no_figure(figure: float) -> None:
    play = Play(replace(POLICY, targets=(QUERY,)), wanted=3)
    for _ in range(200):
        play.now += 1.0
        play.seen.figure(QUERY, play.now, figure)
        play.ask()
    assert play.wanted == 3
    assert play.cause is Cause.MISSING


def test_a_query_brings_up_a_service_that_has_no_replicas() -> None:
    play = Play(replace(POLICY, targets=(QUERY,)))
    play.seen.figure(QUERY, play.now, 250.0)
    assert play.ask().wanted == 3


def test_a_query_that_is_asked_every_few_seconds_leaves_no_gaps() -> None:
    play = Play(replace(POLICY, targets=(QUERY,), down_delay_s=0.0))
    for second in range(200):
        play.now += 1.0
        play.seen.requests(play.now, 1.0, 1.0, 1)
        if second % 5 == 0:
            play.seen.figure(QUERY, play.now, 450.0 if second < 100 else 250.0)
        play.ask()
    assert play.wanted == 3
    assert play.cause is Cause.LOAD


def test_a_metric_that_some_replicas_do_not_tell_adds_and_takes_nothing_away() -> None:
    play = Play(replace(POLICY, targets=(KV,), down_delay_s=0.0))
    for _ in range(100):
        play.now += 1.0
        play.seen.figure(KV, play.now, 14.0)
        play.ask()
    assert play.wanted == 4
    for _ in range(100):
        play.now += 1.0
        play.seen.figure(KV, play.now, 5.0)
        play.seen.trouble(KV, "1 of 4 replicas did not answer")
        play.ask()
    assert play.wanted == 4
    assert "vllm:num_requests_waiting: 1 of 4 replicas did not answer." in play.words


def test_when_requests_are_not_known_the_last_replica_stays_whatever_a_metric_says() -> None:
    play = Play(replace(POLICY, targets=(KV,)), wanted=1)
    for _ in range(1000):
        play.now += 1.0
        play.seen.figure(KV, play.now, 0.0)
        play.ask()
    assert play.wanted == 1
    play.seen.no_requests(play.now)
    assert play.ask().wanted == 0


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_shift_changes_the_bounds_at_its_hour_and_the_advice_says_when() -> None:
    shifts = (Shift((0, 1, 2, 3, 4), 12 * 60 + 1, replicas_min=4), Shift((0, 1, 2, 3, 4), 20 * 60, replicas_min=0))
    play = Play(replace(POLICY, shifts=shifts))
    advice = play.second(0.0)
    assert (advice.wanted, advice.next_change_at) == (0, NOON + 60)
    assert play.seconds(60, 0.0)[-1] == 4
    assert play.words == "4 replicas: the minimum of the shift Mon-Fri 12:01; the load needs none."


def test_the_larger_of_schedule_and_load_wins() -> None:
    play = Play(replace(POLICY, shifts=(Shift((4,), 0, replicas_min=4),)))
    assert play.seconds(60, 65.0)[-1] == 7


def test_a_lower_maximum_of_a_shift_holds_at_once() -> None:
    play = Play(replace(POLICY, shifts=(Shift((4,), 0, replicas_max=20), Shift((4,), 722, replicas_max=3))))
    counts = play.seconds(125, 65.0)
    assert counts[100] == 7
    assert counts[-1] == 3


# --- when to ask again ------------------------------------------------------------------------------------------------


def test_nothing_to_do_and_nothing_to_come_is_never_asked_again() -> None:
    play = Play(replace(POLICY, replicas_min=2), wanted=2)
    assert play.seconds(200, 0.0)[-1] == 2
    assert play.advice is not None
    assert play.advice.next_change_at is None


def test_the_time_to_ask_again_is_enough_to_follow_what_time_does() -> None:
    """Asked only when it said so, it comes to the same as asked every second."""
    often, seldom = Play(), Play()
    for play in (often, seldom):
        play.seconds(70, 55.0)
    changes: dict[str, list[tuple[float, int]]] = {"often": [], "seldom": []}
    due = seldom.now
    for _ in range(1000):
        for name, play in (("often", often), ("seldom", seldom)):
            play.now += 1.0
            if name == "often" or play.now >= due:
                play.seen.no_requests(play.now)
                before = play.wanted
                advice = play.ask()
                if name == "seldom":
                    due = advice.next_change_at or math.inf
                if advice.wanted != before:
                    changes[name].append((play.now, advice.wanted))
    assert changes["often"][-1][1] == 0
    assert changes["seldom"] == changes["often"]


def test_missing_figures_are_asked_for_again_soon() -> None:
    play = Play()
    play.seconds(120, 35.0)
    play.seconds(100, None)
    assert play.cause is Cause.MISSING
    assert play.advice is not None
    assert play.advice.next_change_at == play.now + 2.0
