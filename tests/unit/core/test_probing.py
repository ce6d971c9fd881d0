"""What a replica's probes come to, one sentence each."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bireme.core.model.serving.probes import Health, Probe, Probes
from bireme.core.probing.asking import Probing, Question, answered, asked, begin, resumed

PATIENT = Probe(command=("true",))
"""A command: it is never asked early."""
REFUSED = "connection refused"


def play(probing: Probing, answers: dict[Question, list[str]], until: float) -> list[tuple[float, Question]]:
    """What is asked until then, when each answer comes at once; the last answer to a question is repeated."""
    return _play(probing, answers, until)[1]


def health_after(probing: Probing, answers: dict[Question, list[str]], until: float) -> Health:
    return _play(probing, answers, until)[0].health


def _play(
    probing: Probing, answers: dict[Question, list[str]], until: float
) -> tuple[Probing, list[tuple[float, Question]]]:
    told = []
    while (at := probing.next_at) is not None and at <= until:
        for question in probing.due(at):
            told.append((at, question))
            left = answers[question]
            probing = asked(probing, question, at)
            probing = answered(probing, question, left.pop(0) if len(left) > 1 else left[0], at)
    return probing, told


def test_nothing_else_is_asked_before_the_startup_probe_has_succeeded() -> None:
    probing = begin(Probes(startup=PATIENT, readiness=PATIENT, liveness=PATIENT), 0.0)
    answers = {Question.STARTUP: [REFUSED, ""], Question.READINESS: [""], Question.LIVENESS: [""]}
    assert play(probing, answers, 10.0) == [
        (0.0, Question.STARTUP),
        (10.0, Question.STARTUP),
        (10.0, Question.READINESS),
        (10.0, Question.LIVENESS),
    ]


def test_a_replica_is_ready_when_its_readiness_probe_says_so_for_the_first_time() -> None:
    probing = begin(Probes(), 0.0)
    assert probing.health is Health.LOADING
    assert health_after(probing, {Question.STARTUP: [""], Question.READINESS: [""]}, 0.0) is Health.READY


def test_the_startup_probe_waits_for_its_initial_delay() -> None:
    probing = begin(Probes(startup=Probe(initial_delay_s=30.0)), 100.0)
    assert probing.due(129.9) == ()
    assert probing.next_at == 130.0


def test_the_initial_delay_of_the_others_counts_from_the_start_of_the_replica() -> None:
    late = Probe(initial_delay_s=15.0, command=("true",))
    probing = begin(Probes(startup=PATIENT, readiness=late), 0.0)
    answers = {Question.STARTUP: [REFUSED, ""], Question.READINESS: [""]}
    assert play(probing, answers, 20.0) == [
        (0.0, Question.STARTUP),
        (10.0, Question.STARTUP),
        (15.0, Question.READINESS),
    ]


def test_startup_that_fails_as_often_as_its_threshold_says_makes_the_replica_dead() -> None:
    probing = begin(Probes(startup=Probe(period_s=1.0, failure_threshold=30)), 0.0)
    refused = {Question.STARTUP: [REFUSED]}
    assert health_after(probing, refused, 28.9) is Health.LOADING
    dead, _ = _play(probing, refused, 29.0)
    assert (dead.health, dead.next_at) == (Health.DEAD, None)
    assert dead.why == "startup probe: connection refused (30 times in a row)"


def test_who_never_succeeded_is_asked_early_and_less_and_less_so() -> None:
    times = [at for at, _ in play(begin(Probes(), 0.0), {Question.STARTUP: [REFUSED]}, 60.0)]
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gap for at, gap in zip(times, gaps) if at < 1.0) < 0.06
    assert all(gap <= 1.0 for gap in gaps)
    assert len(times) < 220
    assert all(gap == pytest.approx(1.0) for at, gap in zip(times, gaps) if at > 21.0)


def test_a_command_is_not_asked_early() -> None:
    probing = begin(Probes(startup=Probe(command=("true",), period_s=5.0)), 0.0)
    assert [at for at, _ in play(probing, {Question.STARTUP: [REFUSED]}, 10.0)] == [0.0, 5.0, 10.0]


def test_early_failures_do_not_count() -> None:
    probing = begin(Probes(startup=Probe(period_s=10.0, failure_threshold=2)), 0.0)
    assert health_after(probing, {Question.STARTUP: [REFUSED]}, 9.9) is Health.LOADING
    assert health_after(probing, {Question.STARTUP: [REFUSED]}, 10.0) is Health.DEAD


def ready(probes: Probes) -> Probing:
    answers = {Question.STARTUP: [""], Question.READINESS: [""], Question.LIVENESS: [""]}
    probing, _ = _play(begin(probes, 0.0), answers, 0.0)
    assert probing.health is Health.READY
    return probing


def test_a_ready_replica_is_unready_after_its_failure_threshold_and_ready_again_after_one_success() -> None:
    probing = ready(Probes(readiness=Probe(period_s=2.0, failure_threshold=3)))
    told = _play(probing, {Question.READINESS: ["HTTP 503"]}, 4.0)[0]
    assert (told.health, told.why) == (Health.READY, "")
    told = _play(told, {Question.READINESS: ["HTTP 503"]}, 6.0)[0]
    assert (told.health, told.why) == (Health.UNREADY, "readiness probe: HTTP 503")
    told = _play(told, {Question.READINESS: [""]}, 8.0)[0]
    assert (told.health, told.why) == (Health.READY, "")


def test_failures_that_are_not_in_a_row_do_not_add_up() -> None:
    probing = ready(Probes(readiness=Probe(period_s=2.0, failure_threshold=2)))
    answers = {Question.READINESS: ["HTTP 503", "", "HTTP 503", "", "HTTP 503", ""]}
    assert health_after(probing, answers, 12.0) is Health.READY


def test_a_replica_that_was_unready_needs_its_success_threshold_again() -> None:
    probes = Probes(readiness=Probe(period_s=2.0, failure_threshold=1, success_threshold=3))
    answers = {Question.STARTUP: [""], Question.READINESS: ["HTTP 503", "", "", "HTTP 503", "", "", ""]}
    told = _play(begin(probes, 0.0), answers, 10.0)[0]
    assert told.health is Health.UNREADY
    assert health_after(told, answers, 12.0) is Health.READY


def test_liveness_that_fails_for_good_makes_the_replica_dead_and_nothing_more_is_asked() -> None:
    probing = ready(Probes(liveness=Probe(period_s=5.0, failure_threshold=2)))
    told = _play(probing, {Question.READINESS: [""], Question.LIVENESS: ["no answer within 1 s"]}, 60.0)[0]
    assert (told.health, told.next_at) == (Health.DEAD, None)
    assert told.why == "liveness probe: no answer within 1 s (2 times in a row)"
    assert answered(told, Question.READINESS, "", 61.0) == told


def test_a_question_that_is_under_way_is_not_asked_again_and_the_next_comes_at_once_when_it_took_long() -> None:
    probing = asked(ready(Probes(readiness=Probe(period_s=2.0, timeout_s=30.0))), Question.READINESS, 2.0)
    assert (probing.due(20.0), probing.next_at) == ((), None)
    probing = answered(probing, Question.READINESS, "", 20.0)
    assert probing.due(20.0) == (Question.READINESS,)


def test_what_was_under_way_when_a_replica_was_stopped_does_not_count_and_all_is_asked_anew() -> None:
    probing = asked(ready(Probes(readiness=Probe(failure_threshold=1))), Question.READINESS, 10.0)
    probing = resumed(probing, 500.0)
    assert answered(probing, Question.READINESS, "no answer", 500.0) == probing
    assert probing.due(500.0) == (Question.READINESS,)
    assert probing.health is Health.READY
