"""sshare: shares, usage and fair share of accounts and users, as Slurm prints them."""

from __future__ import annotations

from typing import Any

from bireme.commands import reports
from bireme.commands.optline import Opt, aliases, options
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.surroundings import around
from bireme.slurm.formats import share_fields as forms
from bireme.slurm.formats.accounting import choose_columns
from bireme.slurm.formats.share_fields import SHARE_FIELDS
from bireme.slurm.json_shapes.envelope import dump, envelope

_OPTIONS = (
    "-A--accounts= -a--all -M--clusters= -o--format= -e--helpformat --help --json[=] -l--long -n--noheader -p--parsable"
    " -P--parsable2 -m--partition --usage -u--users= -U--Users -v--verbose -V--version --yaml[=] --autocomplete="
)
TABLE: list[Opt] = [*aliases(options(_OPTIONS), uid="users"), Opt("h", "no-header", "", "noheader")]
LOAD_ERROR = "Couldn't get shares from controller"
Row = dict[str, Any]


def main(argv: list[str]) -> int:
    return reports.guarded("sshare", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    asked, words = reports.options_of("sshare", TABLE, argv)
    if words:
        raise reports.CommandError(f"sshare: error: Unknown arguments: {' '.join(words)}")
    if "helpformat" in asked:
        names = [field.name for field in SHARE_FIELDS.values()]
        reports.show(" ".join(f"{name:<17}" for name in names[at : at + 4]) for at in range(0, len(names), 4))
        return 0
    if (clusters := asked.get("clusters")) is not None:
        reports.clusters_named("sshare", clusters)
    answer = _load()
    rows = _chosen(answer["shares"], asked)
    if "json" in asked or "yaml" in asked:
        return _print_data(answer, rows, "yaml" in asked)
    columns = choose_columns(_format(asked, answer["fair_tree"]), SHARE_FIELDS, {})
    context = reports.make_context(cluster=answer["cluster"])
    parsable = "parsable" in asked or "parsable2" in asked
    form = reports.Parsable(ending="parsable" in asked) if parsable else None
    reports.show_columns(columns, rows, context, header="noheader" not in asked, parsable=form)
    return 0


def _load() -> dict[str, Any]:
    try:
        answer: dict[str, Any] = reports.transport().get("/v1/accounting/shares")
    except (ApiError, BiremeUnavailable) as error:
        raise reports.failure("sshare", LOAD_ERROR, error) from None
    return answer


def _format(asked: dict[str, str | None], fair_tree: bool) -> str:
    if asked.get("format"):
        return asked["format"] or ""
    text = forms.DEFAULT_FORMAT
    if "long" in asked:
        text = forms.LONG_FAIR_TREE if fair_tree else forms.LONG_CLASSIC
    return forms.with_partition(text) if "partition" in asked else text


def _chosen(rows: list[Row], asked: dict[str, str | None]) -> list[Row]:
    """Without -a or -u the caller's own lines; every account around them, unless -U or -A say otherwise."""
    users = None if "all" in asked else set(reports.words_of(asked.get("users"))) or {_myself()}
    accounts = set(reports.words_of(asked.get("accounts")))
    only_users = "Users" in asked
    shown: list[Row] = []
    depths: dict[str, int] = {}
    for row in rows:
        if accounts and row["account"] not in accounts:
            continue
        if row["user"] and users is not None and row["user"] not in users:
            continue
        if only_users and not row["user"]:
            continue
        above = row["account"] if row["user"] else row["parent"]
        depth = 0 if only_users else depths.get(above, -1) + 1
        if not row["user"]:
            depths[row["account"]] = depth
        shown.append({**row, "shown_depth": depth})
    return shown


def _myself() -> str:
    return around().user


def _print_data(answer: dict[str, Any], rows: list[Row], yaml: bool) -> int:
    body = {"shares": {"shares": [{**row, "cluster": answer["cluster"]} for row in rows], "total_shares": len(rows)}}
    reports.write(dump(envelope("sshare", body), yaml=yaml))
    return 0
