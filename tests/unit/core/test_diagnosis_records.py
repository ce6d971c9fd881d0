"""What the journal knows of a job's end, as lines of evidence."""

from __future__ import annotations

from bireme.core.diagnosis.model import Line
from bireme.core.diagnosis.records import latest_start, lines_of_start
from bireme.core.model import events as e
from bireme.core.model.jobs import Outcome
from bireme.core.model.reasons import ReasonKind, reason
from bireme.core.model.resources import NO_USAGE, Allocation, ExitStatus, NodeShare, TaskEnd

FAILED = ExitStatus(1)


def allocated(generation: int) -> e.JobAllocated:
    return e.JobAllocated(7, Allocation(7, generation, "main", (NodeShare("n1", 1, 10), NodeShare("n2", 1, 10))))


def story(*events: e.Event) -> list[e.Recorded]:
    return [e.Recorded(number, 100.0 + 10 * number, "test", event) for number, event in enumerate(events)]


def told(*events: e.Event) -> list[str]:
    start = latest_start(story(*events))
    assert start is not None
    return [line.text for line in lines_of_start(start)]


def test_tasks_are_told_in_the_order_of_their_ends_whatever_the_order_of_their_nodes() -> None:
    second = e.StepNodeEnded(7, 1, 0, "n2", FAILED, NO_USAGE, 109.0, (TaskEnd(5, ExitStatus(0, 11), 104.0),))
    first = e.StepNodeEnded(7, 1, 0, "n1", FAILED, NO_USAGE, 108.0, (TaskEnd(0, FAILED, 105.0),))
    ending = e.JobEnding(7, 1, Outcome("FAILED", FAILED, reason(ReasonKind.NON_ZERO_EXIT, code=1)))
    start = latest_start(story(allocated(1), first, second, e.BatchExited(7, 1, FAILED, NO_USAGE, 110.0), ending))
    assert start is not None
    assert lines_of_start(start)[:2] == [
        Line(text="task 5 signal 11 (step 0)", source="record", at=104.0, node="n2", rank=5),
        Line(text="task 0 exit code 1 (step 0)", source="record", at=105.0, node="n1", rank=0),
    ]
    assert {line.text for line in lines_of_start(start)[2:]} == {"exit code 1 (script)", "state FAILED", "exit code 1"}


def test_a_node_that_was_lost() -> None:
    lost = Outcome("NODE_FAIL", reason=reason(ReasonKind.NODE_DOWN, node="n2"))
    assert told(allocated(1), e.JobEnding(7, 1, lost)) == ["state NODE_FAIL", "node n2 lost: Node n2 was lost."]


def test_a_pod_that_was_taken_from_a_node_is_no_failure_of_the_node() -> None:
    why = "the pod was evicted (EvictionByEvictionAPI): Eviction API: evicting"
    taken = Outcome("NODE_FAIL", reason=reason(ReasonKind.NODE_DOWN, node="n2", why=why))
    assert told(allocated(1), e.JobEnding(7, 1, taken)) == [f"lost on node n2: {why}"]


def test_the_latest_start_that_is_over_is_told() -> None:
    first = e.JobEnding(7, 1, Outcome("NODE_FAIL"), requeue=True)
    second = e.JobEnding(7, 2, Outcome("TIMEOUT"))
    assert told(allocated(1), first, allocated(2), second) == ["state TIMEOUT"]
    assert told(allocated(1), first, allocated(2), e.JobStarted(7, 2, 103.0)) == ["state NODE_FAIL"]


def test_one_that_could_not_be_started() -> None:
    why = reason(ReasonKind.LAUNCH_FAILED, tries=1, why="no such user")
    assert told(allocated(1), e.JobLaunchFailed(7, 1, why, False)) == ["reason LaunchFailed: no such user"]


def test_cancelled_before_it_ran() -> None:
    assert told(e.JobCancelled(7, Outcome("CANCELLED", by_uid=1000))) == ["state CANCELLED by uid 1000"]


def test_a_script_that_ran_out_of_memory() -> None:
    status = ExitStatus(0, 9, True)
    assert told(
        allocated(1),
        e.BatchExited(7, 1, status, NO_USAGE, 101.0),
        e.JobEnding(7, 1, Outcome("OUT_OF_MEMORY", status)),
    ) == ["out of memory (script)", "state OUT_OF_MEMORY", "out of memory"]


def test_no_story_no_start() -> None:
    assert latest_start(()) is None
