"""`bireme why`: what blocks a job in numbers, when it starts, and suggestions that hold when they are followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bireme.core.explain.wording import UNTOLD
from bireme.core.jobs.mirroring import take_standings
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.cluster import PrioritySettings, Settings
from bireme.core.model.jobs import JobSpec, Outcome, Owner, Pending, ResourceRequest
from bireme.core.model.policy import Policy, Preemption
from bireme.core.model.reasons import Reason, ReasonKind
from bireme.core.model.resources import GresRequest
from bireme.core.model.sightings import Sighting, Standing
from bireme.core.reservations.orders import ReservationOrder, create_reservation
from bireme.core.why.answers import Certainty, Suggestion, Waiting
from bireme.core.why.running import explain_running
from bireme.core.why.sooner import find_sooner
from bireme.core.why.waiting import explain_waiting
from bireme.testing.books import book_change
from bireme.testing.scenario import Scenario, caller_named

HOUR = 3600


def why(world: Scenario, label: str) -> Waiting:
    world.settle()
    return explain_waiting(world.state, world.job(label), world.now)[0]


def sooner(world: Scenario, label: str) -> dict[str, Suggestion]:
    """By what is suggested."""
    world.settle()
    job = world.job(label)
    _, trial = explain_waiting(world.state, job, world.now)
    found = find_sooner(world.state, job, caller_named("alice"), trial, world.now)
    return {each.what: each for each in found if each is not None}


def busy() -> Scenario:
    """Four nodes; one is busy for an hour, a gang waits for all four, and somebody stands behind it."""
    world = Scenario("4x8:h100", partitions={"main": {"nodes": "n[1-4]"}, "debug": {"nodes": "n4", "max_time_s": HOUR}})
    world.submit("prep", gpus_per_node=8, time_s=HOUR)
    world.submit("gang", nodes=4, gpus_per_node="h100:8", time_s=2 * HOUR)
    world.submit("late", gpus_per_node="h100:8", time_s=2 * HOUR)
    return world


# -- what and when -----------------------------------------------------------------------------------------------------


def test_a_gang_is_told_what_it_lacks_and_who_frees_it() -> None:
    world = busy()
    answer = why(world, "gang")
    [room] = answer.rooms
    assert room.needs == "4 nodes x 8 gpu:h100, 4 CPUs"
    assert (room.nodes_needed, room.nodes_now, room.fits_now) == (4, 3, False)
    assert answer.expected.certainty is Certainty.SLOT
    assert answer.expected.start == world.now + HOUR
    assert answer.expected.nodes == ("n1", "n2", "n3", "n4")
    [release] = answer.expected.waits_for
    assert (release.job, release.nodes, release.at, release.running) == ("1", ("n1",), world.now + HOUR, True)
    assert [block.reason for block in answer.blocks] == ["Resources"]


@pytest.mark.parametrize(
    ("first", "then", "scarce"),
    [
        ({"gpus_per_node": 6}, {"gpus_per_node": "h100:4"}, ("gpu:h100", 2, 8)),
        ({"gpus_per_node": 6}, {"gpus_per_node": 4}, ("gpu", 2, 8)),
        ({"cpus": 6}, {"cpus": 4}, ("CPUs", 2, 8)),
        ({"mem": 600}, {"mem": 500}, ("MiB", 400, 1000)),
    ],
)
def test_what_is_scarce_is_told_in_numbers(
    first: dict[str, Any], then: dict[str, Any], scarce: tuple[str, int, int]
) -> None:
    world = Scenario("1x8:h100", memory_mib=1000)
    world.submit("first", time_s=HOUR, **first)
    world.submit("then", time_s=HOUR, **then)
    [room] = why(world, "then").rooms
    assert scarce in [(each.what, each.free, each.of) for each in room.spare]


def test_whoever_stands_behind_sees_whose_slot_it_waits_for() -> None:
    world = busy()
    answer = why(world, "late")
    assert answer.expected.start == world.now + 3 * HOUR
    assert answer.expected.slots_before == 1
    assert [(each.job, each.running) for each in answer.expected.waits_for][-1] == ("2", False)
    [room] = answer.rooms
    assert (room.nodes_now, room.nodes_long_enough) == (3, 0)


def test_the_place_in_the_queue_leaves_out_who_does_not_stand_in_line() -> None:
    world = busy()
    world.submit("held", hold=True)
    world.submit("last", gpus_per_node=8, time_s=2 * HOUR)
    [place] = why(world, "last").places
    assert (place.position, place.in_line, place.aside) == (3, 3, 1)
    assert [each.job for each in place.before] == ["2", "3"]
    assert [each.position for each in why(world, "held").places] == [0]


def test_jobs_that_one_may_not_see_have_no_name() -> None:
    world = busy()
    world.settle()
    late = world.job("late")
    answer, _ = explain_waiting(world.state, late, world.now, lambda job: job is late)
    assert [each.job for each in answer.places[0].before] == ["?"]
    assert {each.job for each in answer.expected.waits_for} == {"?"}


def test_the_expected_start_is_the_one_that_comes_true() -> None:
    world = busy()
    expected = why(world, "gang").expected.start
    assert expected is not None
    world.wait(expected - world.now)
    world.settle()
    assert world.described()["gang"] == "runs n[1-4]"


# -- when there is no telling ------------------------------------------------------------------------------------------


def test_endless_jobs_are_named() -> None:
    world = Scenario("1x8")
    world.submit("endless", cpus=8)
    world.submit("waits", cpus=8, time_s=HOUR)
    answer = why(world, "waits")
    assert (answer.expected.start, answer.expected.certainty) == (None, Certainty.NO_TIME_LIMIT)
    assert answer.expected.endless == ("1",)


def test_endless_jobs_that_go_before_it_are_named_too() -> None:
    world = Scenario("1x8")
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit("endless", cpus=8)
    world.submit("waits", cpus=8, time_s=HOUR)
    answer = why(world, "waits")
    assert (answer.expected.certainty, answer.expected.endless) == (Certainty.NO_TIME_LIMIT, ("2",))


def test_held_and_dependent_jobs_are_gated_and_say_by_what() -> None:
    world = Scenario("1x8")
    world.submit("first", cpus=8, time_s=HOUR)
    world.submit("held", hold=True)
    world.submit("after", after="afterok:first")
    assert why(world, "held").expected.certainty is Certainty.GATED
    answer = why(world, "after")
    assert answer.expected.certainty is Certainty.GATED
    assert answer.blocks[0].text == "It waits for afterok:1. Job 1 is RUNNING."


def test_every_closed_gate_is_named() -> None:
    world = Scenario("1x8")
    world.submit("first", cpus=8, time_s=HOUR)
    world.submit("both", hold=True, after="afterok:first")
    assert [block.reason for block in why(world, "both").blocks] == ["JobHeldUser", "Dependency"]


@pytest.mark.parametrize(
    ("policy", "certainty"),
    [
        (Policy(backfill=False), Certainty.STRICT_ORDER),
        (Policy(bookings_max=0), Certainty.NOT_TESTED),
        (Policy(window_s=60.0), Certainty.BEYOND_WINDOW),
    ],
)
def test_the_policy_may_be_why_there_is_no_slot(policy: Policy, certainty: Certainty) -> None:
    world = Scenario("1x8", settings=Settings(policy=policy, memory_is_consumable=False))
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit("waits", cpus=8, time_s=HOUR)
    assert why(world, "waits").expected.certainty is certainty


def test_a_limit_is_named_with_its_numbers() -> None:
    settings = Settings(accounting_enforce=("associations", "limits"), memory_is_consumable=False)
    world = Scenario("1x8", settings=settings)
    world.record([book_change(world.state.accounts, {"lab": {}}, {"alice": {"max_jobs_per_user": 1}})])
    world.submit("first")
    world.submit("second")
    answer = why(world, "second")
    assert answer.expected.certainty is Certainty.LIMITED
    assert [(each.reason, each.text) for each in answer.blocks] == [
        ("AssocMaxJobsLimit", "Account lab for user alice lets 1 jobs run at once, and 1 do.")
    ]


def test_a_limit_is_lifted_when_enough_of_what_counts_has_ended() -> None:
    settings = Settings(accounting_enforce=("associations", "limits"), memory_is_consumable=False)
    world = Scenario("4x8", settings=settings)
    world.record([book_change(world.state.accounts, {"lab": {"grp_tres": (("cpu", 16),)}}, {"alice": {}})])
    world.submit("short", cpus=4, time_s=HOUR)
    world.submit("long", cpus=4, time_s=3 * HOUR)
    world.submit("middle", cpus=8, time_s=2 * HOUR)
    began = world.now
    world.submit("waits", cpus=8, time_s=HOUR)
    expected = why(world, "waits").expected
    assert expected.certainty is Certainty.LIMITED
    assert expected.lifts_at == began + 2 * HOUR
    assert expected.lifted_by == ("1", "3")


def test_a_limit_that_endless_jobs_use_up_is_not_foretold() -> None:
    settings = Settings(licenses="solver:1", memory_is_consumable=False)
    world = Scenario("2x8", settings=settings)
    world.submit("holds", licenses="solver", time_s=None)
    world.submit("waits", licenses="solver", time_s=HOUR)
    expected = why(world, "waits").expected
    assert (expected.certainty, expected.lifts_at) == (Certainty.LIMITED, None)


def test_a_dependency_is_over_with_the_last_of_the_jobs_it_names() -> None:
    world = Scenario("1x8")
    world.submit("runs", cpus=8, time_s=HOUR)
    world.submit("next", cpus=8, time_s=HOUR)
    began = world.now
    world.submit("both", after="afterok:runs,afterany:next")
    world.submit("either", after="afterok:runs?afterany:next")
    world.submit("begun", after="after:next+5")
    world.submit("held", after="afterok:runs", hold=True)
    opens = {label: why(world, label).expected for label in ("both", "either", "begun", "held")}
    assert {label: (each.lifts_at, each.lifted_by) for label, each in opens.items()} == {
        "both": (began + 2 * HOUR, ("1", "2")),
        "either": (began + HOUR, ("1",)),
        "begun": (began + HOUR + 300, ("2",)),
        "held": (None, ()),
    }


def test_a_throttled_task_goes_with_the_end_of_one_that_runs() -> None:
    world = Scenario("4x8")
    world.submit("sweep", array="1-5%2", cpus=8, time_s=HOUR)
    expected = why(world, "sweep").expected
    assert expected.certainty is Certainty.GATED
    assert (expected.lifts_at, len(expected.lifted_by)) == (world.now + HOUR, 1)


def test_a_dependency_that_can_never_be_met_may_be_dropped() -> None:
    world = Scenario("1x8")
    world.submit("first")
    world.submit("then", after="afterok:first")
    world.cancel("first")
    assert why(world, "then").blocks[0].reason == "DependencyNeverSatisfied"
    suggestion = sooner(world, "then")["without --dependency"]
    assert (suggestion.command, suggestion.starts_now) == ("scontrol update JobId=2 Dependency=", True)


def test_a_dependency_on_an_endless_job_is_not_foretold() -> None:
    world = Scenario("2x8")
    world.submit("endless", time_s=None)
    world.submit("waits", after="afterany:endless")
    assert why(world, "waits").expected.lifts_at is None


def test_a_time_limit_beyond_the_partitions_is_cut_to_what_it_allows() -> None:
    world = Scenario("2x8", partitions={"debug": {"nodes": "n[1-2]", "max_time_s": HOUR}})
    world.submit("long", partitions=("debug",), time_s=5 * HOUR)
    assert why(world, "long").blocks[0].text == "Partition debug allows at most 01:00:00."
    assert sooner(world, "long")["with a time limit of 01:00:00"].starts_now


def test_who_names_no_memory_is_told_that_it_asks_for_all_of_it() -> None:
    world = Scenario("1x8", memory_mib=4096)
    world.submit("half", cpus=4, memory_per_node_mib=1024, time_s=HOUR)
    world.submit("whole", cpus=2, time_s=HOUR)
    [room] = why(world, "whole").rooms
    assert room.needs == "1 node, 2 CPUs, all memory of a node (no --mem)"
    [(what, suggestion)] = [each for each in sooner(world, "whole").items() if "MiB" in each[0]]
    assert suggestion.starts_now, what
    assert suggestion.command.startswith("scontrol update JobId=2 MinMemoryNode=")


def test_a_preempted_job_is_told_for_whom_and_the_other_whom_it_displaced() -> None:
    tiers = {"low": {"priority_tier": 1}, "high": {"priority_tier": 2}}
    policy = Policy(preemption=Preemption("partition", "REQUEUE"))
    world = Scenario("1x8", partitions=tiers, settings=Settings(policy=policy, memory_is_consumable=False))
    world.submit("victim", cpus=8, time_s=HOUR)
    world.settle()
    world.submit("urgent", cpus=8, time_s=HOUR, partition="high")
    sent_back = why(world, "victim").sent_back
    assert sent_back is not None
    assert (sent_back.text, sent_back.restarts) == ("It was ended so that job 2 can run.", 1)
    assert explain_running(world.state, world.job("urgent")).displaced == ("1",)


def test_nodes_that_are_down_free_nothing() -> None:
    world = Scenario("2x8")
    world.node("n2", "DRAIN")
    world.submit("both", nodes=2, time_s=HOUR)
    assert why(world, "both").expected.certainty is Certainty.BLOCKED


def test_a_heterogeneous_job_waits_as_one() -> None:
    world = Scenario("2x8")
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit_het("het", {"cpus": 8, "time_s": HOUR}, {"cpus": 8, "time_s": HOUR})
    answer = why(world, "het")
    assert (answer.expected.certainty, answer.expected.start) == (Certainty.SLOT, world.now + HOUR)
    assert not sooner(world, "het"), "the other component needs a node of its own, whatever this one does"


def test_components_that_never_fit_at_one_moment_are_called_that_and_not_late() -> None:
    world = Scenario("1x8")
    world.submit_het("het", {"cpus": 6, "time_s": HOUR}, {"cpus": 6, "time_s": HOUR})
    answer = why(world, "het")
    assert (answer.expected.certainty, answer.components) == (Certainty.NEVER_TOGETHER, 2)
    assert answer.expected.slots_before == 0


def test_a_component_that_has_no_room_for_days_is_beyond_the_window() -> None:
    world = Scenario("2x8")
    world.submit("long", cpus=8, time_s=72 * HOUR)
    world.submit_het("het", {"cpus": 4, "time_s": HOUR}, {"cpus": 8, "nodes": 2, "time_s": HOUR})
    assert why(world, "het").expected.certainty is Certainty.BEYOND_WINDOW


def test_a_heterogeneous_job_does_not_stand_behind_itself() -> None:
    world = Scenario("2x8")
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit_het("het", {"cpus": 8, "time_s": HOUR}, {"cpus": 8, "time_s": HOUR})
    assert why(world, "het").expected.slots_before == 0


def test_the_parts_of_a_priority_add_up() -> None:
    weights = PrioritySettings(multifactor=True, weight_age=1000, weight_job_size=5000)
    world = Scenario("1x8", settings=Settings(priority=weights, memory_is_consumable=False))
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit("waits", cpus=4, time_s=HOUR)
    [priority] = why(world, "waits").priorities
    assert {each.name for each in priority.parts} <= {"age", "job size"}
    assert priority.value == int(sum(each.value for each in priority.parts)) > 0


def test_of_a_job_that_is_kept_back_for_a_while_nothing_is_said_to_be_sooner() -> None:
    """There is nothing that its owner could say to start it."""
    world = Scenario("1x8")
    world.submit("again")
    world.settle()
    world.record([e.JobEnding(1, 1, Outcome("FAILED"), requeue=True)])
    job = world.job("again")
    assert isinstance(job.phase, Pending)
    job.phase = replace(job.phase, not_before=world.now + 60.0)
    assert sooner(world, "again") == {}


# -- what would be sooner ----------------------------------------------------------------------------------------------


def test_a_shorter_limit_that_ends_before_the_slot_starts_now_when_it_is_set() -> None:
    world = busy()
    suggestion = sooner(world, "late")["with a time limit of 00:59:00"]
    assert suggestion.starts_now
    assert suggestion.sooner_by_s == 3 * HOUR
    assert suggestion.command == "scontrol update JobId=3 TimeLimit=00:59:00"
    world.now += 30  # it takes a while to type
    world.update("late", time_limit_s=59 * 60)
    world.settle()
    assert world.described()["late"].startswith("runs ")


def test_another_partition_and_its_time_limit() -> None:
    world = Scenario(
        "2x8",
        partitions={"main": {"nodes": "n1"}, "debug": {"nodes": "n2", "max_time_s": HOUR}, "off": {"nodes": "n2"}},
    )
    world.partition("off", state="DOWN")
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit("waits", cpus=8, time_s=2 * HOUR)
    found = sooner(world, "waits")
    assert list(found) == ["in partition debug with a time limit of 01:00:00"]
    world.update("waits", partitions=("debug",), time_limit_s=HOUR)
    world.settle()
    assert world.described()["waits"] == "runs n2"


def test_fewer_nodes_and_not_fewer_than_needed() -> None:
    world = busy()
    found = sooner(world, "gang")
    assert "on 3 nodes" in found
    assert not any(what.startswith("on 2") for what in found)
    world.update("gang", nodes_min=3, nodes_max=3)
    world.settle()
    assert world.described()["gang"] == "runs n[2-4]"


def test_fewer_gpus_are_as_many_as_are_free() -> None:
    world = Scenario("1x8:h100")
    world.submit("running", gpus_per_node=3, time_s=HOUR)
    world.submit("waits", gpus_per_node=8, time_s=HOUR)
    found = sooner(world, "waits")
    assert "with 6 GPUs on each node" not in found
    assert found["with 5 GPUs on each node"].command == "scontrol update JobId=2 Gres=gpu:5"


def test_gpus_of_any_type_or_fewer_of_the_whole_job() -> None:
    world = Scenario("1x8:h100+1x8:a100")
    world.submit("running", gpus="h100:8", time_s=HOUR)
    world.submit("waits", gpus="h100:8", time_s=HOUR)
    found = sooner(world, "waits")
    assert found["with GPUs of any type"].nodes == ("n2",)
    assert found["with GPUs of any type"].command == ""


def test_without_exclusive_a_constraint_or_a_node_list() -> None:
    world = Scenario("2x8", features={"n1": ("fast",), "n2": ("slow",)})
    world.submit("running", cpus=4, time_s=HOUR, on="n1")
    world.submit("alone", exclusive=True, time_s=HOUR, on="n1")
    world.submit("fast", cpus=8, constraint="fast", time_s=HOUR)
    assert {"without --exclusive", "without --nodelist"} <= set(sooner(world, "alone"))
    found = sooner(world, "fast")
    assert found["without --constraint"].nodes == ("n2",)


def test_a_reservation_in_the_way_is_named_and_what_ends_before_it_starts_now() -> None:
    world = Scenario("1x8")
    order = ReservationOrder(begin=world.now + HOUR, end=world.now + 2 * HOUR, nodes=("n1",), users=("bob",))
    world.record(create_reservation(world.state, caller_named("root"), "tuesday", order, world.now))
    world.submit("long", cpus=4, time_s=3 * HOUR)
    answer = why(world, "long")
    assert [block.reason for block in answer.blocks] == ["ReqNodeNotAvail"]
    assert "reserved for others" in answer.blocks[0].text
    assert [(each.reservation, each.nodes) for each in answer.rooms[0].reserved] == [("tuesday", ("n1",))]
    assert (answer.expected.certainty, answer.expected.start) == (Certainty.SLOT, world.now + 2 * HOUR)
    suggestion = sooner(world, "long")["with a time limit of 00:59:00"]
    assert suggestion.starts_now
    world.update("long", time_limit_s=59 * 60)
    world.settle()
    assert world.described()["long"] == "runs n1"


def test_a_held_job_is_told_when_it_would_start_if_it_were_released() -> None:
    world = Scenario("1x8")
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit("held", cpus=8, hold=True, time_s=HOUR)
    suggestion = sooner(world, "held")["released"]
    assert suggestion.start == world.now + HOUR
    assert suggestion.command == "scontrol release 2"


def test_the_throttle_of_an_array() -> None:
    world = Scenario("1x8")
    world.submit("array", array="1-4%1", cpus=1, time_s=HOUR)
    found = sooner(world, "array_2")
    assert found["without the array's throttle (%)"].starts_now


def test_nothing_is_suggested_that_would_be_refused() -> None:
    world = Scenario(
        "2x8", partitions={"main": {"nodes": "n1"}, "theirs": {"nodes": "n2", "allow_accounts": ("physics",)}}
    )
    world.submit("running", cpus=8, time_s=HOUR)
    world.submit("waits", cpus=8, time_s=HOUR)
    assert not any("theirs" in what for what in sooner(world, "waits"))


def test_asking_changes_nothing() -> None:
    world = busy()
    world.submit("array", array="1-9%2", cpus=8, time_s=HOUR)
    world.settle()
    before = world.described()
    for label in ("gang", "late", "array"):
        sooner(world, label)
    world.state.validate()
    assert world.described() == before
    world.expect(before)


# -- running -----------------------------------------------------------------------------------------------------------


def test_a_running_job_knows_how_tight_its_place_is() -> None:
    world = Scenario("4x8", leaves=["n[1-2]", "n[3-4]"])
    world.submit("tight", nodes=2, cpus=8, time_s=HOUR)
    world.submit("wide", nodes=1, cpus=4, time_s=HOUR)
    world.settle()
    answer = explain_running(world.state, world.job("tight"))
    assert (len(answer.leaves), answer.fewest_leaves) == (1, 1)
    assert answer.ends_at == world.now + HOUR
    assert answer.displaced == ()


# -- another scheduler's jobs ------------------------------------------------------------------------------------------


def mirrored(world: Scenario, *reasons: ReasonKind, expected: float | None = None) -> Waiting:
    """A job of one GPU that a scheduler of its own keeps waiting on an empty cluster."""
    world.settle()  # its nodes are up
    resources = ResourceRequest(gres_per_node=(GresRequest("gpu", None, 1),))
    owner = Owner(uid=1000, gid=1000, user="alice")
    spec = JobSpec(name="theirs", owner=owner, partitions=("main",), resources=resources, time_limit_s=HOUR)
    seen = Sighting(job_id=7, spec=spec, submitted_at=world.now, phase=Pending(world.now))
    world.report(o.JobSeen(seen, world.now))
    if reasons:
        take_standings(world.state, [Standing(7, 100, tuple(Reason(kind) for kind in reasons), expected)])
    return explain_waiting(world.state, world.state.jobs[7], world.now)[0]


@pytest.mark.parametrize("start", [None, HOUR])
def test_a_limit_that_only_the_other_scheduler_knows_is_believed(start: int | None) -> None:
    world = Scenario("1x8:h100", partitions={"main": {"nodes": "n1"}})
    expected = None if start is None else world.now + start
    answer = mirrored(world, ReasonKind.QOS_MAX_JOBS_PER_USER_LIMIT, expected=expected)
    assert (answer.expected.certainty, answer.expected.start) == (Certainty.THEIRS, expected)
    assert [block.reason for block in answer.blocks] == ["QOSMaxJobsPerUserLimit"]


def test_its_start_time_is_believed_where_only_it_knows_of_a_reservation() -> None:
    world = Scenario("1x8:h100", partitions={"main": {"nodes": "n1"}})
    answer = mirrored(world, ReasonKind.RESOURCES, expected=world.now + HOUR)
    assert (answer.expected.certainty, answer.expected.start) == (Certainty.THEIRS, world.now + HOUR)


def test_with_no_reason_of_its_own_it_is_about_to_start() -> None:
    world = Scenario("1x8:h100", partitions={"main": {"nodes": "n1"}})
    assert mirrored(world, ReasonKind.NONE).expected.certainty is Certainty.NOW


def test_of_a_job_that_was_just_submitted_the_other_scheduler_has_not_told_yet() -> None:
    world = Scenario("1x8:h100", partitions={"main": {"nodes": "n1"}})
    first = mirrored(world).blocks[0]
    assert (first.reason, first.text) == ("None", UNTOLD)
    assert UNTOLD not in [block.text for block in mirrored(world, ReasonKind.NONE).blocks]
