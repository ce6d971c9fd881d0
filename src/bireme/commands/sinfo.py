"""sinfo: partitions and nodes, as Slurm prints them, lines of like nodes put together."""

from __future__ import annotations

from typing import Any

from bireme.commands import reports
from bireme.commands.optline import Opt, options
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.slurm.formats import fields, layout, node_states, sinfo_fields
from bireme.slurm.formats import sinfo_fields as forms
from bireme.slurm.formats.show.reservation import reservation_lines
from bireme.slurm.hostlist import expand, sort_names
from bireme.slurm.json_shapes.envelope import dump, envelope
from bireme.slurm.json_shapes.nodes import sinfo_shape

TABLE: list[Opt] = options(
    "-a--all -M--clusters= -d--dead -e--exact --federation -o--format= -O--Format= --help --hide -i--iterate="
    " --json[=] -R--list-reasons --local -l--long --noconvert -N--Node -n--nodes= -h--noheader -p--partition="
    " -T--reservation -r--responding -S--sort= -t--states= -s--summarize --usage -v--verbose -V--version --yaml[=]"
    " --autocomplete="
)
_VARIABLES = {"partition": "SINFO_PARTITION", "sort": "SINFO_SORT"}
LOAD_ERROR = "slurm_load_partitions"


def main(argv: list[str]) -> int:
    return reports.guarded("sinfo", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    asked, _ = reports.options_of("sinfo", TABLE, argv)  # sinfo ignores other words
    reports.refuse_format_with_long("sinfo", asked)
    reports.keep_latest(asked, "format", "Format")
    if "reservation" in asked:
        return _reservations(asked)
    listing = _Listing(_with_environment(asked))
    return reports.repeat(listing.iterate, listing.print)


def _reservations(asked: dict[str, str | None]) -> int:
    try:
        answer = reports.transport().get("/v1/reservations")
    except (ApiError, BiremeUnavailable) as error:
        raise reports.failure("sinfo", "slurm_load_reservations", error) from None
    if not answer["reservations"]:
        reports.say("No reservations in the system")
        return 0
    reports.show(reservation_lines(answer["reservations"], reports.make_context(), header="noheader" not in asked))
    return 0


def _with_environment(asked: dict[str, str | None]) -> dict[str, str | None]:
    merged = {
        name: reports.environment()[variable]
        for name, variable in _VARIABLES.items()
        if reports.environment().get(variable)
    }
    flags = {"all": None} if "SINFO_ALL" in reports.environment() else {}
    text = reports.environment().get("SINFO_FORMAT")
    shape = {"format": text} if text and not {"format", "Format"} & asked.keys() else {}
    return {**merged, **flags, **shape, **asked}


class _Listing:
    """One sinfo command, checked before anything is asked of the daemon."""

    def __init__(self, asked: dict[str, str | None]) -> None:
        self.asked = asked
        self.iterate = reports.positive_seconds(asked["iterate"] or "", "iterate") if "iterate" in asked else 0
        self.per_node = "Node" in asked
        self.reasons = "list-reasons" in asked
        states = asked.get("states")
        self.state_test = node_states.parse_node_states(states) if states else None
        self.names = set(expand(asked["nodes"] or "")) if asked.get("nodes") else None
        self.partitions = reports.words_of(asked.get("partition"))
        default = sinfo_fields.NODE_SORT if self.per_node else sinfo_fields.DEFAULT_SORT
        self.sort = fields.parse_sort(asked.get("sort") or default)
        reports.keep_bounds(self.sort)
        self.transport = reports.transport()

    def _load(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        try:
            nodes = self.transport.get("/v1/nodes")["nodes"]
            partitions = self.transport.get("/v1/partitions")["partitions"]
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("sinfo", LOAD_ERROR, error) from None
        return nodes, partitions

    def _shows(self, node: dict[str, Any]) -> bool:
        silent = "NOT_RESPONDING" in (node.get("flags") or ())
        if ("dead" in self.asked and not silent) or ("responding" in self.asked and silent):
            return False
        if self.names is not None and node["name"] not in self.names and node.get("hostname") not in self.names:
            return False
        if self.reasons and not (node_states.is_out(node) and node.get("reason")):
            return False
        return self.state_test is None or self.state_test(node)

    def _format(self) -> str:
        long = "long" in self.asked
        if self.asked.get("format") is not None:
            return self.asked["format"] or ""
        if "summarize" in self.asked:
            return forms.SUMMARY_FORMAT
        if self.reasons:
            return forms.LONG_REASONS_FORMAT if long else forms.REASONS_FORMAT
        if self.per_node:
            return forms.LONG_NODE_FORMAT if long else forms.NODE_FORMAT
        return forms.LONG_FORMAT if long else forms.DEFAULT_FORMAT

    def print(self) -> int:
        header = "noheader" not in self.asked and not {"json", "yaml"} & self.asked.keys()
        return reports.each_cluster("sinfo", self.asked.get("clusters"), self._print_one, header=header)

    def _print_one(self, cluster: str) -> int:
        nodes, partitions = self._load()
        partitions = [each for each in partitions if not cluster or each["cluster"] == cluster]
        if "json" in self.asked or "yaml" in self.asked:
            return self._print_data(nodes, partitions)
        if ("long" in self.asked or self.iterate) and "noheader" not in self.asked:
            reports.show([reports.date_line()])
        shown = {node["name"]: node for node in nodes if self._shows(node)}
        wanted = [
            partition
            for partition in partitions
            if (partition["name"] in self.partitions if self.partitions else self._visible(partition))
        ]
        plan, groups = self._groups(wanted, shown)
        context = reports.make_context(convert="noconvert" not in self.asked)
        self._sort(groups, context)
        reports.show_table(plan, groups, context, header="noheader" not in self.asked)
        return 0

    def _visible(self, partition: dict[str, Any]) -> bool:
        return "all" in self.asked or not partition.get("hidden")

    def _groups(self, partitions: list[dict[str, Any]], shown: dict[str, Any]) -> tuple[Any, list[Any]]:
        """The lines to be, and the format with its `#` widths filled in, which depend on them."""
        table = sinfo_fields.SINFO_FIELDS
        named = self.asked.get("Format")
        if named is not None:
            specs = layout.parse_named(named)
            if any(spec.type == "all" for spec in specs):
                plan = fields.plan_percent(layout.parse_percent("%all"), table, "")
            else:
                plan = fields.plan_named(specs, table, "sinfo: error: Invalid job format specification")
        else:
            text = self._sized(self._format(), partitions, shown)
            plan = fields.plan_percent(layout.parse_percent(text), table, "Invalid node format specification")
        for complaint in plan.complaints:
            reports.tell(complaint)
        headers = {field.header for field in plan.fields}
        groups = sinfo_fields.group_nodes(
            partitions,
            lambda partition: [shown[name] for name in partition.get("nodes") or () if name in shown],
            headers,
            exact="exact" in self.asked,
            each_node=self.per_node and "NODELIST" in headers,
        )
        if self.reasons:
            groups = [group for group in groups if group.nodes]
        return plan, groups

    def _sized(self, text: str, partitions: list[dict[str, Any]], shown: dict[str, Any]) -> str:
        """`%#P` and `%#N`: as wide as the longest partition or node name, at least as the header."""
        widest_partition = max((len(p["name"]) + bool(p.get("default")) for p in partitions), default=0)
        widest_node = max(map(len, shown), default=0)
        text = text.replace("%#P", f"%{max(9, widest_partition)}P")
        text = text.replace("%.#P", f"%.{max(9, widest_partition)}P")
        return text.replace("%#N", f"%{max(9, widest_node)}N")

    def _sort(self, groups: list[Any], context: Any) -> None:
        table = sinfo_fields.SINFO_FIELDS
        for spec in reversed(self.sort):
            if spec.letter == "P" and spec.as_configured:
                groups.sort(key=lambda group: group.order, reverse=spec.descending)
            elif spec.letter == "N":
                firsts = sort_names({group.first["name"] for group in groups if group.nodes})
                rank = {name: index for index, name in enumerate(firsts)}
                groups.sort(key=lambda group: rank[group.first["name"]] if group.nodes else -1, reverse=spec.descending)
            else:
                fields.sort_records(groups, [spec], table, context)

    def _print_data(self, nodes: list[dict[str, Any]], partitions: list[dict[str, Any]]) -> int:
        shown = [node for node in nodes if self._shows(node)]
        wanted = [p for p in partitions if not self.partitions or p["name"] in self.partitions]
        body = {"sinfo": sinfo_shape(wanted, shown)}
        reports.write(dump(envelope("sinfo", body), yaml="yaml" in self.asked))
        return 0
