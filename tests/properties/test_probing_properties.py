"""Whatever a replica answers, and however late: its health is what the last answers in a row say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.serving.probes import Health, Probe, Probes
from bireme.core.probing.asking import Probing, Question, answered, asked, begin, resumed

PROBE = st.builds(
    Probe,
    command=st.sampled_from([(), ("true",)]),
    initial_delay_s=st.sampled_from([0.0, 3.0]),
    period_s=st.sampled_from([0.0, 1.0, 2.5]),
    success_threshold=st.integers(1, 3),
    failure_threshold=st.integers(1, 3),
)
PROBES = st.builds(Probes, startup=PROBE, readiness=PROBE, liveness=st.none() | PROBE)
ANSWERS = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.01, 0.7, 4.0]), st.integers(0, 9)), max_size=60)
"""Whether it is good, how long it takes, and whether the replica is stopped meanwhile (0)."""


def check(probing: Probing) -> None:
    assert (probing.health is Health.DEAD) == (not probing.standings)
    assert Question.STARTUP not in probing.standings or set(probing.standings) == {Question.STARTUP}
    if Question.STARTUP in probing.standings:
        assert probing.health is Health.LOADING
    for question, standing in probing.standings.items():
        assert not (standing.successes and standing.failures)
        assert question is Question.READINESS or standing.failures < probing.probe(question).failure_threshold
    if (readiness := probing.standings.get(Question.READINESS)) is not None:
        probe = probing.probe(Question.READINESS)
        assert readiness.failures < probe.failure_threshold or probing.health is Health.UNREADY
        assert readiness.successes < probe.success_threshold or probing.health is Health.READY
    assert (probing.health is Health.READY) <= (probing.why == "")


@given(PROBES, ANSWERS)
def test_health_is_what_the_last_answers_in_a_row_say(probes: Probes, answers: list[tuple[bool, float, int]]) -> None:
    now, probing, dead = 0.0, begin(probes, 0.0), False
    for good, late_s, stopped in answers:
        if probing.next_at is None:
            assert probing.health is Health.DEAD
            break
        now = max(now, probing.next_at)
        question = probing.due(now)[0]
        probing = asked(probing, question, now)
        assert question not in probing.due(now + 1e6)
        now += late_s
        if stopped == 0:
            probing = resumed(probing, now)
            assert answered(probing, question, "", now) == probing
        else:
            probing = answered(probing, question, "" if good else "no", now)
        check(probing)
        assert not dead or probing.health is Health.DEAD
        dead = probing.health is Health.DEAD


@given(PROBES)
def test_a_replica_that_always_answers_well_becomes_ready_and_stays_so(probes: Probes) -> None:
    now, probing, was_ready = 0.0, begin(probes, 0.0), False
    while now < 12.0:
        assert probing.next_at is not None
        now = max(now, probing.next_at)
        for question in probing.due(now):
            probing = answered(asked(probing, question, now), question, "", now)
        check(probing)
        assert not was_ready or probing.health is Health.READY
        was_ready = probing.health is Health.READY
    assert was_ready
