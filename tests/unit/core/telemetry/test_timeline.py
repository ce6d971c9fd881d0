"""Timelines: stories become spans and marks, reasons stay within the waits, curves become lanes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from bireme.core.model import events as e
from bireme.core.model.jobs import Finished, Outcome, Pending, Running
from bireme.core.model.sightings import Sighting
from bireme.core.telemetry.curves import Curve, plain
from bireme.core.telemetry.lanes import MOST_LINES, Logged, lanes_of, logged_lanes, output_positions
from bireme.core.telemetry.subjects import Subject
from bireme.core.telemetry.telling import PASSED_OVER, TOLD, Run, Told, told_by_runs, told_by_story
from bireme.core.telemetry.timeline import Lane, Mark, Span, Timeline, laid_out, times_of, waiting_lane
from bireme.core.telemetry.waiting import Waited
from bireme.testing.scenario import Scenario


def story(world: Scenario, label: str) -> Told:
    job_id = world.id_of(label)
    return told_by_story(each for each in world.journal if getattr(each.event, "job_id", None) == job_id)


def states(told: Told) -> list[tuple[str, float, float | None]]:
    return [(span.text, span.start - 1_000_000, None if span.end is None else span.end - 1_000_000)
            for span in told.states]  # fmt: skip


def marks(told: Told) -> list[str]:
    return [mark.text for mark in told.marks]


def test_every_event_about_a_job_is_told_or_passed_over_by_name() -> None:
    about_jobs = {kind for kind in get_args(e.Event) if hasattr(kind, "job_id")}
    assert about_jobs == TOLD | PASSED_OVER
    assert not TOLD & PASSED_OVER


def test_a_job_waits_runs_and_ends() -> None:
    world = Scenario("1x2:h100")
    world.submit("first", gpus=2)
    world.settle()
    world.submit("second", gpus=2)
    world.settle()
    world.now += 60
    world.finish("first")
    world.settle()
    world.now += 40
    world.checkpoint("second")
    world.now += 20
    world.finish("second", code=3)
    world.settle()
    told = story(world, "second")
    assert [(text, start, end) for text, start, end in states(told) if end is None or end > start] == [
        ("waits", 0, 60), ("runs", 60, 120),
    ]  # fmt: skip
    assert [mark.at - 1_000_000 for mark in told.checkpoints] == [100]
    assert "its script exited with 3" in marks(told)
    assert any(mark.text == "ends as FAILED" and mark.tone == "bad" for mark in told.marks)
    (place,) = told.places
    assert (place.text, place.end) == ("n1", 1_000_120)
    assert "2 GPU(s) (n1: GPU 0, 1)" in place.more


def test_all_starts_of_a_requeued_job_are_on_one_axis() -> None:
    world = Scenario("1x2:h100")
    world.submit("again", gpus=1)
    world.settle()
    for _ in range(2):
        world.now += 30
        world.requeue("again")
        world.settle()
        world.now += 300
        world.settle()
    told = story(world, "again")
    assert len(told.starts) == 3
    assert marks(told).count("requeued") == 2
    assert len(told.places) == len(told.hosts) == 3
    assert all(one.end is not None and one.end <= other.start for one, other in pairwise(told.states))


def test_steps_have_their_own_spans() -> None:
    world = Scenario("2x2:h100")
    world.submit("train", nodes=2)
    world.settle()
    step = world.step("train", name="probe", ntasks=2)
    world.now += 10
    world.finish_step("train", step.id, code=1)
    world.settle()
    (span,) = story(world, "train").steps
    assert (span.text, span.tone) == ("0 probe", "bad")
    assert span.end == 1_000_010
    assert "exited with 1" in span.more


def test_a_suspended_job_is_not_started_twice() -> None:
    world = Scenario("1x2:h100")
    world.submit("train", gpus=1)
    world.settle()
    world.now += 10
    world.suspend("train")
    world.now += 10
    world.resume("train")
    world.settle()
    told = story(world, "train")
    assert [text for text, start, end in states(told) if end != start] == ["runs", "suspended", "runs"]
    assert len(told.starts) == 1


def test_the_history_alone_gives_the_runs() -> None:
    told = told_by_runs([Run(10.0, 70.0, 90.0, "COMPLETED", "n1"), Run(10.0, 20.0, 40.0, "PREEMPTED", "n2")])
    assert [(span.text, span.start, span.end) for span in told.states] == [
        ("waits", 10.0, 20.0), ("runs", 20.0, 40.0), ("waits", 40.0, 70.0), ("runs", 70.0, 90.0),
    ]  # fmt: skip
    assert [mark.text for mark in told.marks] == [
        "submitted", "started", "over: PREEMPTED", "requeued", "started", "over: COMPLETED",
    ]  # fmt: skip


# --- reasons ----------------------------------------------------------------------------------------------------


def waited(start: float, end: float | None, *words: str) -> Waited:
    return Waited(1, start, end, tuple((word, f"{word}.") for word in words))


def test_reasons_are_told_only_while_it_waited() -> None:
    waits = [Span(10.0, 50.0, "waits"), Span(100.0, None, "waits")]
    lane = waiting_lane(waits, [waited(0.0, 20.0, "Priority"), waited(20.0, 120.0, "Resources", "Licenses")])
    assert [(span.text, span.start, span.end) for span in lane.spans] == [
        ("Priority", 10.0, 20.0), ("Resources + Licenses", 20.0, 50.0), ("Resources + Licenses", 100.0, 120.0),
    ]  # fmt: skip
    assert times_of(lane.spans, 200.0) == {"Resources + Licenses": 50.0, "Priority": 10.0}


def test_a_span_that_nobody_closed_ends_where_the_next_begins() -> None:
    lane = waiting_lane([Span(0.0, 90.0, "waits")], [waited(0.0, None, "Priority"), waited(30.0, 90.0, "Resources")])
    assert [(span.start, span.end) for span in lane.spans] == [(0.0, 30.0), (30.0, 90.0)]


# --- curves -----------------------------------------------------------------------------------------------------


def curve(about: str, name: str, metric: str, *values: float) -> Curve:
    column = np.array(values)
    return Curve(Subject(about, "n1", name), metric, 100.0, 10.0, column - 1, column, column + 1)  # type: ignore[arg-type]


def test_few_gpus_have_a_line_each_and_many_have_one_together() -> None:
    few = [curve("gpu", f"GPU-{place}", "gpu_util", 10.0, 20.0) for place in range(2)]
    (lane,) = lanes_of(few, {"GPU-0": "n1 GPU 0"})
    assert [line.name for line in lane.lines] == ["n1 GPU 0", "GPU-1"]
    many = [curve("gpu", f"GPU-{place}", "gpu_util", float(place), np.nan) for place in range(MOST_LINES + 1)]
    (lane,) = lanes_of(many, {})
    (line,) = lane.lines
    assert line.name == f"{MOST_LINES + 1} GPUs: least, mean, most"
    assert (line.low[0], line.mean[0], line.high[0]) == (-1.0, MOST_LINES / 2, MOST_LINES + 1.0)
    assert np.isnan(line.mean[1])


def test_tasks_are_added_up_and_what_was_not_measured_stays_so() -> None:
    curves = [
        curve("task", "1.1.0.0", "memory", 5.0, np.nan, np.nan),
        curve("task", "1.1.0.1", "memory", 7.0, 3.0, np.nan),
    ]
    (lane,) = lanes_of(curves, {})
    assert lane.lines[0].name == "all 2 tasks"
    assert lane.lines[0].mean[:2].tolist() == [12.0, 3.0]
    assert np.isnan(lane.lines[0].mean[2])
    uses = [curve("use", f"1.1.0.{task}@GPU-{gpu}", "use_gpu_memory", 5.0) for task in (0, 1) for gpu in (0, 1)]
    (lane,) = lanes_of(uses, {})
    assert lane.lines[0].name == "all 2 tasks", "on two GPUs each"


def test_only_a_script_has_positions_in_its_output() -> None:
    curves = [
        curve("task", "1.1.0.0", "output_position", 5.0),
        curve("task", "1.1.-5.0", "output_position", 100.0, np.nan, 300.0),
    ]
    assert output_positions(curves, "output_position") == [(100.0, 110.0, 101.0), (120.0, 130.0, 301.0)]


# --- the whole --------------------------------------------------------------------------------------------------


def test_everything_lies_on_the_axis_and_empty_lanes_are_left_out() -> None:
    base = Timeline(
        job="7", job_id=7, name="x", user="u", state="RUNNING", start=100.0, end=200.0, now=200.0, is_over=False,
        expected_start=None, lanes=(), absent=(),
    )  # fmt: skip
    lanes = [
        Lane("state", "state", spans=(Span(50.0, 120.0, "waits"), Span(120.0, None, "runs"), Span(0.0, 20.0, "x"))),
        Lane("steps", "steps"),
        Lane("events", "events", marks=(Mark(300.0, "late"), Mark(150.0, "mid"))),
    ]
    laid = laid_out(base, lanes, ["nothing"])
    assert [lane.name for lane in laid.lanes] == ["state", "events"]
    assert [(span.start, span.end) for span in laid.lanes[0].spans] == [(100.0, 120.0), (120.0, None)]
    assert [mark.at for mark in laid.lanes[1].marks] == [150.0, 200.0]


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_a_mirrored_job_is_told_by_how_it_looked(state: str) -> None:
    world = Scenario("1x2:h100")
    world.submit("train", gpus=1)
    world.settle()
    job = world.job("train")
    assert isinstance(job.phase, Running)
    running = replace(job.phase, started_at=600.0)

    def seen(at: float, phase: object) -> e.Recorded:
        sighting = Sighting(job_id=job.id, spec=job.spec, submitted_at=500.0, phase=phase)  # type: ignore[arg-type]
        return e.Recorded(int(at), at, "engine", e.JobMirrored(job.id, sighting))

    over = Finished(Outcome(state), 900.0, 600.0, job.held)
    told = told_by_story([seen(501.0, Pending(500.0)), seen(601.0, running), seen(901.0, over)])
    assert told.states[0] == Span(500.0, told.states[0].end, "waits", "wait")
    assert told.states[-1].end == 900.0
    assert (told.places[0].text, told.places[0].end) == ("n1", 900.0)
    assert told.marks[-1].text == f"over: {state}"


def test_what_a_program_logged_has_a_lane_of_its_own_scale_for_each_metric() -> None:
    logged = Logged("http://mlflow/#/r", {"loss": [(10.0, 4.0), (11.0, 2.0), (29.9, 1.0)], "later": [(99.0, 1.0)]})
    run, loss = logged_lanes(logged, 10.0, 30.0, 4)
    assert (run.marks[0].at, run.marks[0].more) == (10.0, "http://mlflow/#/r")
    assert (loss.name, loss.title, loss.top) == ("logged loss", "loss", None)
    (line,) = loss.lines
    assert (line.start, line.step_s) == (10.0, 5.0)
    assert plain(line.mean) == [3.0, None, None, 1.0]
    assert plain(line.low)[0] == 2.0
    assert plain(line.high)[0] == 4.0


def test_a_run_without_figures_has_its_address_alone() -> None:
    assert [lane.name for lane in logged_lanes(Logged("x", {"loss": ()}), 10.0, 10.0, 4)] == ["run"]
    assert logged_lanes(Logged("", {}), 10.0, 20.0, 4) == []
