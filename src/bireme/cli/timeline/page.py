"""A timeline as one page: a picture that zooms and pans, and tables that say the same. It asks no network for anything.

Style, script and data are in the file, and its policy (Content-Security-Policy) lets nothing else in: no request, no
script but ours, by its hash. The tables are made here, so the page can be read without a script.
Invariant: no text of a job (its name, a comment, a line of its output) is ever markup, nor a terminal's code.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from bireme.cli.timeline.drawn import lasted
from bireme.cli.top.figures import figure
from bireme.core.telemetry.timeline import Span, times_of
from bireme.slurm.formats.visible import visible_values
from bireme.web import one_file

Record = dict[str, Any]
OWN_STYLE = """
main { max-width: 110rem; margin: 0 auto; padding-top: 1.5rem; }
h2 { margin: 2rem 0 .5rem; }
td.at { white-space: nowrap; font-variant-numeric: tabular-nums; color: var(--quiet); }
td.text { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .82rem; white-space: pre-wrap; }
td.bad { color: var(--bad); font-weight: 600; } td.good { color: var(--good); }
main > details > summary { cursor: pointer; font-size: 1.05rem; font-weight: 600; margin: 2rem 0 .5rem; }
.absent { color: var(--quiet); padding-left: 1.2rem; }
"""
_TONES = {"RUNNING": "run", "COMPLETED": "good", "PENDING": "wait", "COMPLETING": "run", "CONFIGURING": "run"}


def page_of(told: Record) -> str:
    """`told`: what the daemon answered, with the lines of output beside it (`log`)."""
    told = visible_values(told)
    style, script = one_file.style("plot.css") + OWN_STYLE, one_file.script("one_file.js")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    sections = "\n".join(_section(timeline) for timeline in told["timelines"])
    more = f"<p>{told['left_out']} more of this array are not shown: name one task.</p>" if told["left_out"] else ""
    first = told["timelines"][0]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Job {_safe(first["job"])} {_safe(first["name"])}: timeline</title>
<style>{style}</style>
</head>
<body>
{sections}
{more}
<script type="application/json" id="told">{_data(told)}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(told: Record) -> str:
    """JSON that no markup can end: its letters are ASCII, and those that markup is made of are escaped."""
    text = json.dumps(told, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _safe(text: object) -> str:
    return html.escape(str(text), quote=True)


def _when(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _section(timeline: Record) -> str:
    parts = [_head(timeline), '<div class="chart"></div>', _reasons(timeline), _events(timeline), _steps(timeline)]
    parts += [_measured(timeline), *(_output(output) for output in timeline.get("log", ())), _absent(timeline)]
    return f'<main aria-label="Job {_safe(timeline["job"])}">' + "\n".join(filter(None, parts)) + "</main>"


def _head(timeline: Record) -> str:
    tone = _TONES.get(timeline["state"], "note" if timeline["state"] == "CANCELLED" else "bad")
    until = timeline["end"] if timeline["is_over"] else timeline["now"]
    facts = {
        "submitted": _when(timeline["start"]),
        "ended" if timeline["is_over"] else "seen": _when(until),
        "in all": lasted(until - timeline["start"]),
        "user": timeline["user"],
    }
    if timeline["expected_start"] is not None:
        facts["expected to start"] = _when(timeline["expected_start"])
    shown = "".join(f"<span>{_safe(name)} <b>{_safe(value)}</b></span>" for name, value in facts.items())
    return (
        f"<h1>Job {_safe(timeline['job'])} {_safe(timeline['name'])} "
        f'<span class="state {tone}">{_safe(timeline["state"])}</span></h1><div class="facts">{shown}</div>'
    )


Cell = tuple[str, object]
"""Its class, and its text."""


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, folded: bool = False) -> str:
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{_safe(text)}</td>' for kind, text in row) + "</tr>" for row in rows
    )
    if not body:
        return ""
    top = "".join(f'<th scope="col">{_safe(head)}</th>' for head in heads)
    table = f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    if folded:
        return f"<details><summary>{_safe(title)}</summary>{table}</details>"
    return f"<h2>{_safe(title)}</h2>{table}"


def _lane(timeline: Record, name: str) -> Record | None:
    return next((lane for lane in timeline["lanes"] if lane["name"] == name), None)


def _reasons(timeline: Record) -> str:
    lane = _lane(timeline, "reasons")
    if lane is None:
        return ""
    spans = [Span(one["start"], one["end"], one["text"], "wait", one["more"]) for one in lane["spans"]]
    now = timeline["end"] if timeline["is_over"] else timeline["now"]
    total = ", ".join(f"{words} {lasted(seconds)}" for words, seconds in times_of(spans, now).items())
    rows = [
        (
            ("at", _when(span.start)),
            ("at", _when(span.end) or "now"),
            ("n", lasted((now if span.end is None else span.end) - span.start)),
            ("", span.text),
            ("", span.more),
        )
        for span in spans
    ]
    return _table(f"Why it waited: {total}", ("from", "until", "lasted", "reason", "which means"), rows)


def _events(timeline: Record) -> str:
    marks = sorted((mark for lane in timeline["lanes"] for mark in lane["marks"]), key=lambda mark: mark["at"])
    rows = [(("at", _when(mark["at"])), (mark["tone"], mark["text"]), ("", mark["more"])) for mark in marks]
    return _table("What happened", ("when", "what", "more"), rows)


def _steps(timeline: Record) -> str:
    lane = _lane(timeline, "steps")
    if lane is None:
        return ""
    now = timeline["end"] if timeline["is_over"] else timeline["now"]
    rows = [
        (
            ("at", _when(span["start"])),
            ("n", lasted((now if span["end"] is None else span["end"]) - span["start"])),
            (span["tone"] if span["tone"] == "bad" else "", span["text"]),
            ("", span["more"]),
        )
        for span in lane["spans"]
    ]
    return _table("Steps", ("started", "lasted", "step", "more"), rows)


def _measured(timeline: Record) -> str:
    rows: list[Sequence[Cell]] = []
    for lane in timeline["lanes"]:
        for line in lane["lines"]:
            low, mean, high = (_known(line[name]) for name in ("low", "mean", "high"))
            if mean:
                shown = (min(low), sum(mean) / len(mean), max(high))
                rows.append(
                    (("", lane["title"]), ("", line["name"]), *(("n", figure(value, lane["unit"])) for value in shown),
                     ("", lane["about"]))
                )  # fmt: skip
    return _table("What was measured", ("what", "of", "least", "mean", "most", "which is"), rows)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _output(output: Record) -> str:
    title = f"{'Output' if output['stream'] == 'out' else 'Errors'}: {output['path']}"
    if output["problem"]:
        return f"<h2>{_safe(title)}</h2><p>{_safe(output['problem'])}</p>"
    rows = [(("at", _written(line)), ("n", line["number"] or ""), ("text", line["text"])) for line in output["lines"]]
    passed = f" ({output['skipped']:,} bytes between its beginning and its end not shown)" if output["skipped"] else ""
    heads = ("written (= by its own time, else between two looks)", "line", "text")
    return _table(title + passed, heads, rows, folded=len(rows) > 200)


def _written(line: Record) -> str:
    if line["start"] is None:
        return "not known"
    if line["source"] == "own":
        return f"= {_when(line['start'])}"
    return f"{_when(line['start'])} to {_when(line['end'])[11:]}"


def _absent(timeline: Record) -> str:
    items = "".join(f"<li>{_safe(sentence)}</li>" for sentence in timeline["absent"])
    return f'<h2>What is not known</h2><ul class="absent">{items}</ul>' if items else ""
