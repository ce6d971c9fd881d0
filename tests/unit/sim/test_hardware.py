"""Training on hardware that fails: drawn by seed, played on the real kernel, counted to the second."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.cli.simulator.run import main
from bireme.sim.clusters import spec_cluster
from bireme.sim.hardware.failures import Drawn, Hardware, draw
from bireme.sim.hardware.playing import Outcome, Training, play
from bireme.sim.hardware.policies import POLICIES
from bireme.sim.hardware.progress import Habits, Progress
from bireme.sim.hardware.rates import CAUSES, RATES, Effect

DAY_S = 86_400.0
CONFIG = spec_cluster("24x8:gpu")
NAMES = [node.name for node in CONFIG.nodes]
HABITS = Habits(checkpoint_s=900.0, save_s=10.0, load_s=300.0)
TRAINING = Training(jobs=1, nodes_each=20, gpus_each=8, habits=HABITS)
HARDWARE = Hardware(per_1000_node_days=150.0, repair_s=DAY_S / 4)
SPAN_S = 10 * DAY_S


def drawn(seed: int) -> Drawn:
    return draw(NAMES, SPAN_S, HARDWARE, seed)


def played(policy: str, seed: int, training: Training = TRAINING) -> Outcome:
    return play(CONFIG, drawn(seed).failures, training, POLICIES[policy], SPAN_S)


def effective(outcome: Outcome) -> float:
    return sum(progress.useful_s for progress in outcome.progress) / outcome.span_s


# -- what is published -----------------------------------------------------------------------------------------------


def test_the_causes_are_the_419_of_the_table() -> None:
    assert sum(cause.count for cause in CAUSES) == 419
    assert RATES["llama3"] == pytest.approx(3.79, abs=0.005)


def test_the_pool_fails_as_often_as_its_rate_says_and_lemons_oftener() -> None:
    nodes = [f"n{number}" for number in range(2_000)]
    found = draw(nodes, 300 * DAY_S, Hardware(per_1000_node_days=6.5), seed=1)
    assert len(found.failures) == pytest.approx(6.5 * 2 * 300, rel=0.05)
    assert len(found.lemons) == 24
    of_lemons = sum(failure.node in found.lemons for failure in found.failures)
    each = of_lemons / 24, (len(found.failures) - of_lemons) / (2_000 - 24)
    assert each[0] / each[1] == pytest.approx(10.0, rel=0.25)
    assert draw(nodes, 300 * DAY_S, Hardware(per_1000_node_days=6.5), seed=1) == found, "the same seed"


# -- what is counted -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 5_000), st.floats(0, 20_000)), max_size=20), st.sampled_from([600.0, inf]))
def test_all_time_is_counted_once(turns: list[tuple[float, float]], checkpoint_s: float) -> None:
    progress, now = Progress(Habits(checkpoint_s=checkpoint_s, save_s=10.0, load_s=100.0)), 0.0
    for waits_s, runs_s in turns:
        progress.begin(now := now + waits_s)
        progress.halt(now := now + runs_s)
    progress.end(now)
    parts = (progress.useful_s, progress.lost_s, progress.saving_s, progress.loading_s, progress.waiting_s)
    assert sum(parts) == pytest.approx(now)
    assert min(parts) >= 0.0
    if checkpoint_s < inf:
        assert progress.most_lost_s <= checkpoint_s
    elif turns:
        assert progress.useful_s == 0.0, "nothing was ever saved"


def test_what_was_done_since_the_last_checkpoint_is_lost() -> None:
    progress = Progress(Habits(checkpoint_s=600.0, save_s=10.0, load_s=100.0))
    progress.begin(50.0)
    progress.halt(50.0 + 100.0 + 2 * 610.0 + 30.0)
    assert (progress.waiting_s, progress.loading_s, progress.saving_s) == (50.0, 100.0, 20.0)
    assert (progress.useful_s, progress.lost_s) == (1_200.0, 30.0)


# -- what is decided -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_healing_never_loses_more_than_is_stated(seed: int) -> None:
    nothing, requeue, heal = (played(policy, seed) for policy in ("nothing", "requeue", "heal"))
    assert effective(heal) > effective(requeue) > effective(nothing)
    (job,) = heal.progress
    assert job.most_lost_s <= HABITS.checkpoint_s
    assert heal.by_people <= sum(failure.cause.effect is Effect.CORRUPTS for failure in drawn(seed).failures) * 2
    assert sorted(job.waits)[len(job.waits) // 2] <= 30.0, "detected, judged, and running again"
    assert heal.hits <= requeue.hits, "who keeps the broken out is not hit by it again"
    for outcome in (nothing, requeue, heal):
        assert sum(
            job.useful_s + job.lost_s + job.saving_s + job.loading_s + job.waiting_s for job in outcome.progress
        ) == (pytest.approx(SPAN_S))


def test_the_same_seed_gives_the_same_outcome() -> None:
    assert played("heal", 5).progress == played("heal", 5).progress


def test_without_failures_only_saving_and_loading_cost_anything() -> None:
    outcome = play(CONFIG, (), TRAINING, POLICIES["heal"], DAY_S)
    assert effective(outcome) == pytest.approx((DAY_S - 300.0) / DAY_S * 900 / 910, abs=0.005)
    assert outcome.hits == 0


# -- the command -----------------------------------------------------------------------------------------------------

WORDS = ["faults", "--nodes", "16", "--days", "4", "--rate", "100", "--spares", "2", "--jobs", "2", "--seed", "3"]


def test_the_command_shows_all_cases(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*WORDS, "-o", str(tmp_path / "report")]) == 0
    shown = capfd.readouterr().out
    assert [line.split("  ")[0] for line in shown.splitlines()[4:9]] == [
        "nothing", "requeue", "heal", "heal, no spares", "heal, no checkpoints",
    ]  # fmt: skip
    page = (tmp_path / "report" / "faults.html").read_text()
    assert "heal, no checkpoints" in page
    assert "faulty GPU" in page
    told = json.loads((tmp_path / "report" / "faults.json").read_text())
    by_name = {case["name"]: case["effective"] for case in told["cases"]}
    assert by_name["heal"] > by_name["requeue"] > by_name["nothing"]
    assert by_name["heal"] > by_name["heal, no checkpoints"]
    assert main([*WORDS, "--policy", "heal", "--json"]) == 0
    (case,) = json.loads(capfd.readouterr().out)["cases"]
    assert case["effective"] == by_name["heal"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "often"], "rsc1, rsc2, llama3"),
        (["--nodes", "0"], "--nodes"),
        (["--spares", "x"], "--spares"),
        (["--spares", "100%"], "none would be left"),
        (["--jobs", "9999"], "--jobs"),
        (["--checkpoint", "soon"], "a time"),
        (["--days", "0"], "--days"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_do(
    words: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["faults", *words]) != 0
    assert says in capfd.readouterr().err
