"""sstat: what running steps use right now, measured by the agents when asked."""

from __future__ import annotations

from typing import Any

from bireme.commands import reports
from bireme.commands.optline import Opt, aliases, options
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.slurm.formats import accounting, sstat_fields
from bireme.slurm.formats.identity import parse_selectors

TABLE: list[Opt] = aliases(
    options(
        "-a--allsteps -o--format= -h--help -e--helpformat -j--jobs= --noconvert -n--noheader -p--parsable"
        " -P--parsable2 -i--pidformat --usage -v--verbose -V--version --autocomplete="
    ),
    fields="format",
)
_NUMBERED_FIRST = {"batch": -3, "extern": -2, "interactive": -1}


def main(argv: list[str]) -> int:
    return reports.guarded("sstat", lambda: _main(argv), pointer=False)


def _main(argv: list[str]) -> int:
    asked, words = reports.options_of("sstat", TABLE, argv, ("format", "jobs"))

    if "helpformat" in asked:
        reports.show(accounting.name_lines(sstat_fields.SSTAT_FIELDS.values()))
        return 0
    ids = asked.get("jobs") or ",".join(words)
    if not ids:
        raise reports.CommandError("sstat: error: You didn't give me any jobs to stat.")
    default = sstat_fields.PID_FORMAT if "pidformat" in asked else sstat_fields.DEFAULT_FORMAT
    columns = accounting.choose_columns(
        asked.get("format") or default, sstat_fields.SSTAT_FIELDS, sstat_fields.SSTAT_ALIASES
    )
    context = reports.make_context(convert="noconvert" not in asked)
    rows = _live_steps(ids, all_steps="allsteps" in asked)
    form = None
    if "parsable" in asked or "parsable2" in asked:
        form = reports.Parsable(ending="parsable" in asked and "parsable2" not in asked)
    reports.show_columns(columns, rows, context, header="noheader" not in asked, parsable=form)
    return 0


def _live_steps(ids: str, *, all_steps: bool) -> list[dict[str, Any]]:
    """The running steps that were asked for: one named, all with --allsteps, else the first numbered one."""
    transport = reports.transport()
    rows: list[dict[str, Any]] = []
    selectors = list(dict.fromkeys(parse_selectors(ids)))
    reports.keep_bounds((), selectors)
    for selector in selectors:
        try:
            steps = transport.get(path_of("jobs", selector.label, "steps"))["steps"]
            usage = transport.get(path_of("jobs", selector.label, "usage"))["steps"]
        except BiremeUnavailable as error:
            raise reports.failure("sstat", "sstat: error", error) from None
        except ApiError:
            reports.tell(f"sstat: error: couldn't get steps for job {selector.label}")
            continue
        running = [step for step in steps if step.get("state") in ("RUNNING", "STARTING", "SUSPENDED")]
        chosen = _chosen(running, selector.step, all_steps)
        if not chosen:
            reports.tell(f"sstat: error: No steps running for job {selector.label}")
        for step in chosen:
            measured = usage.get(str(step["step_id"])) or step.get("usage") or {}
            label = f"{selector.label}.{step['step_id']}"
            rows.append({**step, "label": label, "usage": measured, "pids": measured.get("pids")})
    return rows


def _chosen(steps: list[dict[str, Any]], wanted: str | None, all_steps: bool) -> list[dict[str, Any]]:
    steps = sorted(steps, key=lambda step: _NUMBERED_FIRST.get(step["step_id"], step["step_id"]))
    if wanted is not None:
        return [step for step in steps if str(step["step_id"]) == wanted]
    if all_steps:
        return steps
    return [step for step in steps if isinstance(step["step_id"], int)][:1]
