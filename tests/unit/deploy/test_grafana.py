"""Dashboards and alert rules: the files are what the lists make, and name only what is exported."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from deploy.grafana.__main__ import COLUMNS, HERE, files
from deploy.grafana.alerts import RULES
from deploy.grafana.panels import DASHBOARDS
from tests.support import prometheus

from bireme.core.telemetry.metrics import METRICS

QUERIES = [query.expr for board in DASHBOARDS for panel in board.panels for query in panel.queries]
_NAME = re.compile(r"\b(?:DCGM_FI_\w+|bireme_(?:gpu|node)_\w+)")
_OF_THE_DAEMON = {
    "bireme_gpu_job", "bireme_node_up", "bireme_node_drained", "bireme_node_cpus", "bireme_node_cpus_allocated",
    "bireme_node_gpus", "bireme_node_gpus_allocated",
}  # fmt: skip


def test_the_files_are_what_the_lists_make() -> None:
    made = files()
    there = {path.name: path.read_text() for path in HERE.iterdir() if path.suffix in (".json", ".yml")}
    assert there == made, "run: python -m deploy.grafana"


def test_the_five_dashboards_are_there() -> None:
    assert [board.name for board in DASHBOARDS] == ["cluster", "job", "user", "services", "health"]


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.name)
def test_panels_lie_beside_each_other_and_choose_the_job_that_is_scraped(board: object) -> None:
    name: str = getattr(board, "name")  # noqa: B009
    made = json.loads(files()[f"{name}.json"])
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert all(x < COLUMNS for x, _ in cells)
        taken |= cells
        for target in panel["targets"]:
            assert 'job=~"$job"' in target["expr"]
            assert "$J" not in target["expr"]
    names = {variable["name"] for variable in made["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", json.dumps([panel["targets"] for panel in made["panels"]])))
    assert used - {"__rate_interval"} <= names


def test_queries_and_rules_ask_for_metrics_that_are_on_the_list() -> None:
    known = {metric.prometheus for metric in METRICS} | _OF_THE_DAEMON
    asked = {name for expr in (*QUERIES, *(rule.expr for rule in RULES)) for name in _NAME.findall(expr)}
    assert asked <= known


def test_every_rule_says_what_to_do() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.summary and rule.todo.endswith(".") for rule in RULES)


# --- what the rules alert to, by promtool -----------------------------------------------------------------------------

Series = dict[str, str]
CASES: dict[str, tuple[int, dict[str, str], Series]] = {
    "GpuHeldIdle": (
        90,
        {"UUID": "GPU-a", "gpu": "0", "Hostname": "n1"},
        {
            'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a",gpu="0",Hostname="n1"}': "0x120",
            'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-b",gpu="1",Hostname="n1"}': "0x120",
            'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-c",gpu="2",Hostname="n1"}': "90x120",
            'bireme_gpu_job{UUID="GPU-a",Hostname="n1",job_id="7"}': "1x120",
            'bireme_gpu_job{UUID="GPU-c",Hostname="n1",job_id="7"}': "1x120",
        },
    ),
    "GpuXid": (
        7,
        {"node": "n1", "kind": "xid"},
        {
            'bireme_happenings_total{node="n1",kind="xid"}': "0 0 0 0 0 1 1 1",
            'bireme_happenings_total{node="n2",kind="xid"}': "3x8",
        },
    ),
    "GpuHeldBack": (
        20,
        {"UUID": "GPU-a", "gpu": "0", "Hostname": "n1"},
        {
            'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{UUID="GPU-a",gpu="0",Hostname="n1"}': "68x30",  # too hot, and a power cap
            'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{UUID="GPU-b",gpu="1",Hostname="n1"}': "4x30",
            'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{UUID="GPU-c",gpu="2",Hostname="n1"}': "257x30",  # idle, with a display
        },
    ),
    "ServiceDown": (
        5,
        {"service": "a"},
        {
            'bireme_service_replicas_wanted{service="a"}': "2x10",
            'bireme_service_replicas_ready{service="a"}': "0x10",
            'bireme_service_replicas_wanted{service="b"}': "0x10",
            'bireme_service_replicas_ready{service="b"}': "0x10",
        },
    ),
}
"""By rule: after so many minutes it alerts to what has these labels, and to nothing else of these series."""


@pytest.mark.skipif(not prometheus.program("promtool"), reason="needs promtool: python -m tests.prepare")
@pytest.mark.parametrize("name", CASES)
def test_a_rule_alerts_to_what_it_is_about_and_to_nothing_else(name: str, tmp_path: Path) -> None:
    minute, labels, series = CASES[name]
    rule = next(rule for rule in RULES if rule.name == name)
    told = {"summary": _filled(rule.summary, labels), "description": _filled(rule.todo, labels)}
    alert = {"exp_labels": {**labels, "severity": rule.severity}, "exp_annotations": told}
    question = {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": [alert]}
    inputs = [{"series": each, "values": values} for each, values in series.items()]
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": [question]}
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(HERE / "alerts.yml")], "tests": [test]}))
    words = [str(prometheus.program("promtool")), "test", "rules", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _filled(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)


@pytest.mark.skipif(not prometheus.program("promtool"), reason="needs promtool: python -m tests.prepare")
def test_promtool_takes_the_rules() -> None:
    words = [str(prometheus.program("promtool")), "check", "rules", str(HERE / "alerts.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, f"{len(RULES)} rules found" in done.stdout) == (0, True), done.stdout + done.stderr
