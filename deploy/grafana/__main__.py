"""`python -m deploy.grafana`: writes the dashboards and alert rules beside this file. A test says whether they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from deploy.grafana.alerts import RULES, Rule
from deploy.grafana.panels import DASHBOARDS, Dashboard, Panel, Variable

HERE = Path(__file__).resolve().parent
COLUMNS = 24
_SIZES = {"stat": (4, 4), "timeseries": (12, 8), "table": (24, 5)}
"""Of each shape: columns and rows."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN_JOB = 'job=~"$job"'


def files() -> dict[str, str]:
    """All that is made, by name."""
    made = {f"{each.name}.json": json.dumps(_dashboard(each), indent=1) + "\n" for each in DASHBOARDS}
    return {**made, "alerts.yml": _rules()}


def in_prometheus(expr: str) -> str:
    """A query of the list as Grafana keeps it."""
    return expr.replace("$J", _CHOSEN_JOB)


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"bireme-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.what,
        "tags": ["bireme"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["bireme"], "title": "Bireme", "asDropdown": True}],
        "templating": {
            "list": [_source_variable(), *map(_variable, (Variable("job", "bireme_info"), *dashboard.variables))]
        },
        "panels": _placed(dashboard.panels),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    selected = "" if variable.name == "job" else f"{{{_CHOSEN_JOB}}}"
    query = f"label_values({variable.metric}{selected}, {variable.name})"
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 3 if variable.name == "job_id" else 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """In rows, from the left."""
    made, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        w, h = _SIZES[panel.shape]
        if x + w > COLUMNS or (height and h != height):
            x, y = 0, y + height
        made.append({"id": number, "gridPos": {"x": x, "y": y, "w": w, "h": h}, **_panel(panel)})
        x, height = x + w, h
    return made


def _panel(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.shape == "timeseries":
        defaults["custom"] = custom
    targets = [_target(place, query.expr, query.legend, panel) for place, query in enumerate(panel.queries)]
    return {
        "type": panel.shape,
        "title": panel.title,
        "description": panel.what,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def _target(place: int, expr: str, legend: str, panel: Panel) -> dict[str, Any]:
    is_now = panel.shape == "table"
    return {
        "refId": chr(ord("A") + place),
        "datasource": _SOURCE,
        "expr": in_prometheus(expr),
        "legendFormat": legend or "__auto",
        **({"format": "table", "instant": True} if is_now else {}),
    }


def _rules() -> str:
    """JSON's texts are YAML's."""
    lines = [
        "# Made by `python -m deploy.grafana` of deploy/grafana/alerts.py.",
        "groups:",
        "  - name: bireme",
        "    rules:",
    ]
    for rule in RULES:
        lines += _rule(rule)
    return "\n".join(lines) + "\n"


def _rule(rule: Rule) -> list[str]:
    return [
        f"      - alert: {rule.name}",
        f"        expr: {json.dumps(rule.expr)}",
        f"        for: {rule.for_}",
        f"        labels: {{severity: {rule.severity}}}",
        "        annotations:",
        f"          summary: {json.dumps(rule.summary)}",
        f"          description: {json.dumps(rule.todo)}",
    ]


def main() -> int:
    for name, text in files().items():
        (HERE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
