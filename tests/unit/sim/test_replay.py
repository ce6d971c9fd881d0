"""Whole simulations: what happens to jobs, what is measured, what is written."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bireme.cli.main import run as command
from bireme.ports import HistoryQuery
from bireme.runtime.kernel import load
from bireme.sim.clusters import read_cluster
from bireme.sim.compare import Case, compare, workload_of_seed
from bireme.sim.metrics import Watts, jain, measure
from bireme.sim.policies import POLICIES, find_policy
from bireme.sim.replay import Options, Result, simulate
from bireme.sim.specs import exact_limit, ladder_limit, limit_rule
from bireme.sim.workloads.reading import read_workload
from bireme.sim.workloads.trace import BadTraceError, TraceJob, Workload
from bireme.store.journal import SqliteStore

EXACT = Options(rule=exact_limit)
HOUR = 3600.0


def job(at: float, run_s: float, gpus: int, **more: Any) -> TraceJob:
    return TraceJob(submit=1000.0 + at, run_s=run_s, gpus=gpus, account="lab", **{"user": "ada", **more})


def workload(*jobs: TraceJob) -> Workload:
    numbered = [TraceJob(**{**_fields(each), "line": number}) for number, each in enumerate(jobs, start=1)]
    return Workload(source="test", jobs=tuple(numbered))


def _fields(each: TraceJob) -> dict[str, Any]:
    return {name: getattr(each, name) for name in TraceJob.__slots__}


def starts(result: Result) -> list[float]:
    return [run.first_start - 1000.0 for run in result.runs if run.first_start is not None]


def test_backfill_starts_what_delays_nobody() -> None:
    """Eight GPUs: a long half, a whole that must wait, and a short half that ends before the whole begins."""
    jobs = workload(job(0, 100 * 60, 4), job(10, 3600, 8), job(20, 50 * 60, 4))
    found = {
        name: starts(simulate(jobs, read_cluster("1x8:h100"), find_policy(name), EXACT))
        for name in ("fifo", "backfill")
    }
    assert found == {"fifo": [0, 6000, 9600], "backfill": [0, 6000, 20]}


def test_shortest_first_knows_and_prediction_learns() -> None:
    long, short = job(1, 7200, 7, user="bob", limit_s=9000), job(2, 60, 8, limit_s=9000)
    known = [job(-6000 + 900 * n, 60, 8, limit_s=9000) for n in range(5)]
    jobs = workload(*known, job(0, 600, 8, limit_s=9000), long, short)
    found = {name: starts(simulate(jobs, read_cluster("1x8:h100"), find_policy(name), EXACT))[-2:] for name in POLICIES}
    assert found["fifo"] == [600, 7800]
    assert found["sjf"] == [660, 600]
    assert found["predicted"] == [660, 600], "jobs of ada are short: five have shown it"


def test_a_result_measured() -> None:
    jobs = workload(job(0, HOUR, 8), job(0, HOUR, 4, user="bob"))
    report = measure(
        simulate(jobs, read_cluster("1x8:h100"), find_policy("fifo"), EXACT), Watts(gpu=1000, idle=100, node=0)
    )
    numbers = report.numbers
    assert numbers["wait_s"]["mean"] == HOUR / 2
    assert numbers["turnaround_s"]["max"] == 2 * HOUR
    assert numbers["slowdown"]["max"] == 2.0
    assert numbers["utilisation"]["mean"] == pytest.approx(0.75)
    assert numbers["makespan_s"] == 2 * HOUR
    assert numbers["energy"]["kwh"] == pytest.approx(8 + 4 + 4 * 0.1)
    assert [row["name"] for row in numbers["by_size"]] == ["3-4", "5-8"]
    assert numbers["fairness"]["jain_slowdown"] == pytest.approx(jain([1.0, 2.0]))
    assert json.loads(json.dumps(numbers)) == numbers


def test_a_preempted_job_loses_its_work(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nGresTypes=gpu\nSelectTypeParameters=CR_CPU\n"
        "NodeName=g1 CPUs=8 Gres=gpu:a100:8\nPartitionName=low Nodes=g1 Default=YES PriorityTier=1\n"
        "PartitionName=high Nodes=g1 PriorityTier=10\n"
    )
    jobs = workload(job(0, HOUR, 8, partition="low"), job(600, HOUR, 8, partition="high"))
    numbers = measure(simulate(jobs, read_cluster(str(conf)), find_policy("as-configured"), EXACT)).numbers
    assert (numbers["preemptions"], numbers["requeues"]) == (1, 1)
    assert numbers["lost_gpu_hours"] == pytest.approx(8 * 600 / 3600)
    assert numbers["states"] == {"COMPLETED": 2}


def test_a_job_larger_than_the_cluster_is_named_or_skipped() -> None:
    jobs = workload(job(0, 60, 1), job(1, 60, 64))
    with pytest.raises(BadTraceError, match="test:2: this cluster can never run it"):
        simulate(jobs, read_cluster("1x8:h100"), find_policy("fifo"), EXACT)
    result = simulate(jobs, read_cluster("1x8:h100"), find_policy("fifo"), Options(rule=exact_limit, skip_bad=True))
    assert (len(result.runs), [problem.line for problem in result.problems]) == (1, [2])


def test_the_journal_of_a_simulation_replays(tmp_path: Path) -> None:
    kept = str(tmp_path / "journal.db")
    jobs = read_workload("generate:jobs=40 seed=2 days=1")
    simulate(jobs, read_cluster("16x8:h100"), find_policy("backfill"), Options(rule=exact_limit, journal=kept))
    store = SqliteStore(kept)
    state = load(store)
    state.validate()
    assert (state.submissions, len(state.pending), len(state.holding)) == (40, 0, 0)
    assert len(store.finished(HistoryQuery())) == 40, "a journal that is kept has its history"


def test_the_same_again_is_the_same() -> None:
    jobs, cluster = read_workload("generate:jobs=60 seed=4 days=1"), read_cluster("8x8:h100 leaf=4")
    one, two = (simulate(jobs, cluster, find_policy("fairshare"), EXACT) for _ in range(2))
    assert starts(one) == starts(two)


def test_seeds_shake_a_trace_and_keep_its_jobs() -> None:
    jobs = workload(*(job(100.0 * n, 60, 1) for n in range(50)))
    moved = workload_of_seed(jobs, "trace.swf", 3)
    assert sorted(each.line for each in moved.jobs) == [each.line for each in jobs.jobs]
    assert moved.jobs != jobs.jobs
    assert moved == workload_of_seed(jobs, "trace.swf", 3)
    assert workload_of_seed(jobs, "trace.swf", 0) is jobs


def test_a_comparison_is_against_the_first_case_seed_by_seed() -> None:
    text = "generate:jobs=40 seed=2 days=0.2"
    small, large = read_cluster("2x8:h100"), read_cluster("64x8:h100")
    cases = [Case("small", small, find_policy("fifo")), Case("large", large, find_policy("fifo"))]
    skipping = Options(rule=exact_limit, skip_bad=True)
    one, two = compare(read_workload(text), text, cases, 2, skipping)
    assert one.values["wait_mean_s"]["difference"] == 0
    wait = two.values["wait_mean_s"]
    assert wait["difference"] == pytest.approx(wait["mean"] - one.values["wait_mean_s"]["mean"])
    assert wait["difference"] < 0
    assert len(two.reports) == 2


def test_limits_where_a_trace_names_none() -> None:
    assert ladder_limit(job(0, 3000, 1)) == 3600
    assert ladder_limit(job(0, 3500, 1)) == 7200, "some headroom"
    assert limit_rule("x3")(job(0, 100, 1)) == 300
    for wrong in ("x0.5", "3", "guess"):
        with pytest.raises(ValueError, match="limits are ladder, exact"):
            limit_rule(wrong)


def test_the_command_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    workload_text = "generate:jobs=30 seed=1 days=1 users=3"
    assert command("sim", ["run", "-w", workload_text, "-c", "4x8:h100 leaf=2", "--skip-bad", "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "wait" in shown
    assert "Jain" in shown
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 6
    for reference in ("<script", "src=", "@import", "url("):
        assert reference not in page.replace("url(#", ""), "the page needs nothing else"
    assert json.loads((out / "report.json").read_text())["jobs"]["submitted"] <= 30
    rows = list(csv.DictReader((out / "jobs.csv").open()))
    assert {row["state"] for row in rows} <= {"COMPLETED", "FAILED"}
    assert (out / "plots" / "utilisation.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_compares_policies_and_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload_text = "generate:jobs=30 seed=1 days=0.5 sizes=1:3,8:1"
    assert command("sim", ["compare", "fifo", "backfill", "-w", workload_text, "-c", "2x8:h100", "--seeds", "2"]) == 0
    assert "± " in capsys.readouterr().out
    out = tmp_path / "out"
    assert command("sim", ["compare", "2x8:h100", "4x8:h100", "-w", workload_text, "-o", str(out), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], second["name"]) == ("2x8:h100", "4x8:h100")
    assert second["values"]["wait_mean_s"]["difference"] < 0
    assert "Side by side" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-w", "no-such-file"], "no-such-file: No such file or directory"),
        (["-w", "generate:jobs=3", "-p", "lifo"], "'lifo' is no file and no policy"),
        (["-w", "generate:jobs=3", "-c", "lots"], "'lots' is not NODESxGPUS:TYPE"),
        (["-w", "generate:jobs=3", "--set", "Fairness"], "--set Fairness: not KEY=VALUE"),
        (["-w", "generate:jobs=3", "--set", "Fairness=1"], "unrecognized key: Fairness"),
        (["-w", "generate:jobs=3", "--watts", "lots"], "write it as gpu=700"),
        (["-w", "generate:jobs=3", "--limits", "none"], "limits are ladder, exact"),
        (["-w", "generate:jobs=9 sizes=64", "-c", "1x8:h100"], "this cluster can never run it"),
    ],
)
def test_what_a_user_can_get_wrong(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert command("sim", ["run", *words]) == 1
    assert said in capfd.readouterr().err
