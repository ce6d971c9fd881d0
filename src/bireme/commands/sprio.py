"""sprio: what the priorities of waiting jobs are made of, as Slurm prints it."""

from __future__ import annotations

import json
from typing import Any

from bireme.commands import reports
from bireme.commands.optline import Opt, aliases, options
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.slurm.formats import fields, sprio_fields
from bireme.slurm.formats.layout import PercentFormat, parse_percent

TABLE: list[Opt] = aliases(
    options(
        "-M--clusters= --federation -o--format= --help -j--jobs[=] --local -l--long -h--noheader -n--norm"
        " -p--partition= --sibling -S--sort= --usage -u--user= -v--verbose -V--version -w--weights --json"
    ),
    cluster="clusters", users="user", partitions="partition", job="jobs",
)  # fmt: skip
_NO_FACTORS = """\
You are not running a supported priority plugin
({plugin}).
Only 'priority/multifactor' is supported."""


def main(argv: list[str]) -> int:
    return reports.guarded("sprio", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    asked, words = reports.options_of("sprio", TABLE, argv)
    if words and "jobs" in asked and asked["jobs"] is None:  # `-j 42` for what getopt only takes as `-j42`
        asked["jobs"] = words.pop(0)
    if words:
        reports.tell(f"sprio: error: Unrecognized option: {words[0]}")
        reports.print_help("sprio", TABLE, "usage")
        return 1
    if "format" in asked and "long" in asked:
        raise reports.CommandError(
            "sprio: fatal: Options -o(--format) and -l(--long) are mutually exclusive. Please remove one and retry."
        )
    return _print_priorities(asked)


def _print_priorities(asked: dict[str, str | None]) -> int:
    sort = fields.parse_sort(asked.get("sort") or "i")
    reports.keep_bounds(sort)
    _check_sort(fields.unknown_sorts(sort, sprio_fields.weight_fields()))
    reports.clusters_named("sprio", asked.get("clusters"))
    answer = _ask(asked)
    if answer["type"] != "priority/multifactor":
        raise reports.CommandError(_NO_FACTORS.format(plugin=answer["type"]))
    if "json" in asked:
        return _print_json(answer)
    weights = answer["weights"]
    table = sprio_fields.weight_fields() if "weights" in asked else sprio_fields.job_fields(weights)
    rows = [weights] if "weights" in asked else answer["priorities"]
    if asked.get("jobs") and not rows:
        reports.say("Unable to find jobs matching user/id(s) specified")
        return 0
    form = asked.get("format") or reports.environment().get("SPRIO_FORMAT")
    if form is None:
        form = sprio_fields.default_format(
            weights, normal="norm" in asked, long="long" in asked, user="user" in asked, cluster=_by_cluster(asked)
        )
    written = parse_percent(form)
    for spec in written.specs:
        if spec.type not in table.by_letter:
            reports.tell(f"sprio: error: Invalid job format specification: {spec.type}")
    known = PercentFormat(written.prefix, [spec for spec in written.specs if spec.type in table.by_letter])
    plan = fields.plan_percent(known, table, "")
    context = reports.make_context()
    if "weights" not in asked:
        fields.sort_records(rows, sort, table, context)
    reports.show_table(plan, rows, context, header="noheader" not in asked)
    return 0


def _by_cluster(asked: dict[str, str | None]) -> bool:
    return "sibling" in asked or "SPRIO_SIBLING" in reports.environment()


def _check_sort(unknown: list[str]) -> None:
    if unknown:
        raise reports.CommandError(f"sprio: error: Invalid sort specification: {unknown[0]}")


def _ask(asked: dict[str, str | None]) -> dict[str, Any]:
    query: dict[str, str] = {}
    for word in reports.words_of(asked.get("jobs")):
        if not word.isdecimal():
            raise reports.CommandError(f"sprio: error: Invalid job id: {word}")
    if asked.get("jobs"):
        query["job"] = asked["jobs"] or ""
    if asked.get("partition"):
        query["partition"] = asked["partition"] or ""
    if asked.get("user"):
        uids = reports.user_ids("sprio", asked["user"] or "")
        query["user"] = ",".join(map(str, sorted(uids))) or "-"  # a user that is nobody has no jobs
    try:
        found: dict[str, Any] = reports.transport().get("/v1/priorities", query)
    except (ApiError, BiremeUnavailable) as error:
        raise reports.failure("sprio", "sprio: error: Couldn't get priority factors from controller", error) from None
    return found


def _print_json(answer: dict[str, Any]) -> int:
    """Slurm's sprio has none; this is what the API says."""
    reports.say(json.dumps(answer, indent=2))
    return 0
