"""squeue: the queue, as Slurm prints it.

Options and SQUEUE_* variables in, lines out. It asks the API only for the keys that its format, sort order and
filters read, which is what keeps ten thousand jobs under half a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bireme.commands import reports
from bireme.commands.optline import Opt, aliases, options
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats import fields, identity, layout, squeue_fields, states, step_fields
from bireme.slurm.formats.identity import label_in_steps
from bireme.slurm.formats.squeue_fields import JOB_FIELDS, UNSORTABLE
from bireme.slurm.formats.step_fields import STEP_FIELDS
from bireme.slurm.hostlist import expand
from bireme.slurm.json_shapes.envelope import dump, envelope
from bireme.slurm.json_shapes.jobs import NODE_FIELDS, job_shape, latest_pass

TABLE: list[Opt] = aliases(
    options(
        "-A--account= -a--all -r--array --array-unique -M--clusters= --federation -o--format= -O--Format= --help"
        " --hide -i--iterate= -j--jobs[=] --json[=] -L--licenses= --local -l--long --me -n--name= --noconvert"
        " -w--nodelist= -h--noheader --only-job-state -p--partition= -P--priority -q--qos= -R--reservation="
        " --sibling -S--sort= --start -s--steps[=] -t--states= --usage -u--user= -v--verbose -V--version"
        " --yaml[=] --notme --expand-patterns --autocomplete="
    ),
    users="user", nodes="nodelist", partitions="partition", accounts="account", names="name",
)  # fmt: skip

_VARIABLES = {
    "account": "SQUEUE_ACCOUNT",
    "licenses": "SQUEUE_LICENSES",
    "name": "SQUEUE_NAMES",
    "partition": "SQUEUE_PARTITION",
    "qos": "SQUEUE_QOS",
    "sort": "SQUEUE_SORT",
    "states": "SQUEUE_STATES",
    "user": "SQUEUE_USERS",
}
_FLAG_VARIABLES = {"all": "SQUEUE_ALL", "array": "SQUEUE_ARRAY", "priority": "SQUEUE_PRIORITY"}
_LIVE_STEPS = frozenset({"STARTING", "RUNNING", "SUSPENDED", "COMPLETING"})
LOAD_ERROR = "slurm_load_jobs error"


def main(argv: list[str]) -> int:
    return reports.guarded("squeue", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    asked, words = reports.options_of("squeue", TABLE, argv)
    reports.refuse_format_with_long("squeue", asked)
    _refuse_both_formats(asked)
    for optional in ("jobs", "steps"):  # `-j 42` for what getopt only takes as `-j42`
        if words and optional in asked and asked[optional] is None:
            asked[optional] = words.pop(0)
    if words:
        reports.tell(f"squeue: error: Unrecognized option: {words[0]}")
        reports.print_help("squeue", TABLE, "usage")
        return 1
    listing = _Listing(_with_environment(asked))
    return reports.repeat(listing.iterate, listing.print)


def _refuse_both_formats(asked: dict[str, str | None]) -> None:
    options = {"format": "-o (--format)", "Format": "-O (--Format)"}
    given = [options[name] for name in asked if name in options]
    if len(given) > 1:
        raise reports.CommandError(f"squeue: error: {given[1]} is incompatible with {given[0]}")


def _with_environment(asked: dict[str, str | None]) -> dict[str, str | None]:
    """The command line over SQUEUE_* variables."""
    merged: dict[str, str | None] = {}
    for name, variable in _VARIABLES.items():
        if reports.environment().get(variable):
            merged[name] = reports.environment()[variable]
    for name, variable in _FLAG_VARIABLES.items():
        if variable in reports.environment():
            merged[name] = None
    merged.update(asked)
    if "format" not in asked and "Format" not in asked:
        if reports.environment().get("SQUEUE_FORMAT2"):
            merged["Format"] = reports.environment()["SQUEUE_FORMAT2"]
        elif reports.environment().get("SQUEUE_FORMAT"):
            merged["format"] = reports.environment()["SQUEUE_FORMAT"]
    return merged


class _Listing:
    """One squeue command, checked before anything is asked of the daemon."""

    def __init__(self, asked: dict[str, str | None]) -> None:
        self.asked = asked
        self.cluster = ""
        self.iterate = reports.positive_seconds(asked["iterate"] or "", "iterate") if "iterate" in asked else 0
        self.steps = "steps" in asked
        self.selectors = identity.parse_selectors(asked.get("jobs") or "")
        self.step_selectors = self._step_selectors(asked.get("steps"))
        self.start = "start" in asked
        states_text = asked.get("states") or ("PD" if self.start else "")
        self.states = states.parse_job_states(states_text) if states_text else states.LIVE_STATES
        if states_text and self.states is not None and not self.states:
            self.states = states.LIVE_STATES
        self.uids = reports.user_ids("squeue", asked["user"] or "") if asked.get("user") else None
        if "me" in asked:
            self.uids = {reports.my_uid()}
        self.checks = [test_for(asked[option] or "") for option, test_for in _CHECKS.items() if option in asked]
        self.transport = reports.transport()
        self.sort = fields.parse_sort(self._sort_text())
        self._check_sort()
        reports.keep_bounds(self.sort, [*self.selectors, *self.step_selectors])

    def _step_selectors(self, text: str | None) -> list[Any]:
        chosen = []
        for item in identity.split_ids(text or ""):
            try:
                selector = identity.parse_selector(item)
            except SlurmSyntaxError:
                raise SlurmSyntaxError(f"Invalid job_step id: {item}") from None
            if selector.step is None:
                raise SlurmSyntaxError(f"Invalid job_step id: {item}.??")
            chosen.append(selector)
        return chosen

    def _sort_text(self) -> str:
        default = squeue_fields.START_SORT if self.start else squeue_fields.DEFAULT_SORT
        return self.asked.get("sort") or (step_fields.DEFAULT_STEP_SORT if self.steps else default)

    def _table(self) -> Any:
        return STEP_FIELDS if self.steps else JOB_FIELDS

    def _check_sort(self) -> None:
        unknown = fields.unknown_sorts(self.sort, self._table())
        unknown += [spec.letter for spec in self.sort if spec.letter in UNSORTABLE]
        if unknown and not self.steps:
            raise SlurmSyntaxError(f"Invalid sort specification: {unknown[0]}")

    def _plan(self) -> Any:
        table = self._table()
        complaint = f"Invalid {table.kind} format specification"
        if self.asked.get("Format"):
            plan = fields.plan_named(layout.parse_named(self.asked["Format"] or ""), table, complaint)
        else:
            text = self.asked.get("format")
            if text is None and self.steps:
                text = step_fields.DEFAULT_STEP_FORMAT
            elif text is None and self.start:
                text = squeue_fields.START_FORMAT
            elif text is None:
                text = squeue_fields.LONG_FORMAT if "long" in self.asked else squeue_fields.DEFAULT_FORMAT
            plan = fields.plan_percent(layout.parse_percent(text), table, complaint)
        for line in plan.complaints:
            reports.tell(f"squeue: error: {line}")
        return plan

    def print(self) -> int:
        header = "noheader" not in self.asked and not {"json", "yaml"} & self.asked.keys()
        return reports.each_cluster("squeue", self.asked.get("clusters"), self._print_one, header=header)

    def _print_one(self, cluster: str) -> int:
        self.cluster = cluster
        if "json" in self.asked or "yaml" in self.asked:
            return self._print_data()
        plan = self._plan()
        if ("long" in self.asked or self.iterate) and "noheader" not in self.asked:
            reports.show([reports.date_line()])
        if self.steps:
            return self._print_steps(plan)

        jobs, now = self._jobs(plan.needs() | self._sort_needs())
        context = reports.make_context(convert="noconvert" not in self.asked, now=now)
        jobs.sort(key=lambda job: job["job_id"])
        fields.sort_records(jobs, self.sort, self._table(), context)
        reports.show_table(plan, jobs, context, header="noheader" not in self.asked)
        return 0

    def _sort_needs(self) -> set[str]:
        by_letter = self._table().by_letter
        return {need for spec in self.sort if spec.letter in by_letter for need in by_letter[spec.letter].needs}

    def _jobs(self, needs: set[str]) -> tuple[list[dict[str, Any]], float]:
        """The jobs that pass the filters, each with the keys in `needs`."""
        self._check_nodes()
        keys = needs | {"job_id", "state", "array_job_id", "array_task_id", "array_tasks", "het_job_id"}
        keys |= {key for option, key in _FILTER_KEYS.items() if option in self.asked}
        if self.uids is not None:
            keys.add("user_id")
        if self.selectors:
            keys.add("het_offset")
        if self.cluster:
            keys.add("cluster")
        params: dict[str, str | int | float | None] = {"fields": ",".join(sorted(keys))}
        try:
            answer = self._ask(params)
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("squeue", LOAD_ERROR, error) from None
        jobs = [job for job in answer["jobs"] if self._wanted(job)]
        return self._spread(jobs), float(answer.get("now") or 0)

    def _check_nodes(self) -> None:
        """-w with a node nobody has is an error, found before the queue is asked for."""
        if not self.asked.get("nodelist"):
            return

        try:
            nodes = self.transport.get("/v1/nodes", {"fields": "name,hostname"})["nodes"]
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("squeue", LOAD_ERROR, error) from None
        known = {node["name"] for node in nodes} | {node.get("hostname") for node in nodes}
        for name in expand(self.asked["nodelist"] or ""):
            if name not in known:
                raise SlurmSyntaxError(f"Invalid node name {name}")

    def _ask(self, params: dict[str, str | int | float | None]) -> dict[str, Any]:
        """One job is asked for by its id, so that an unknown one is an error, as in Slurm; several by a filter."""
        if len(self.selectors) == 1 and not self.steps:
            return dict(self.transport.get(path_of("jobs", self.selectors[0].job_id), params))
        if self.selectors:
            params["job"] = ",".join(str(selector.job_id) for selector in self.selectors)
        if self.states is not None:
            params["state"] = ",".join(sorted(self.states))
        if self.uids:
            params["user"] = ",".join(map(str, sorted(self.uids)))
        params["name"], params["account"] = self.asked.get("name"), self.asked.get("account")
        return dict(self.transport.get("/v1/jobs", params))

    def _wanted(self, job: dict[str, Any]) -> bool:
        if self.states is not None and job["state"] not in self.states:
            return False
        if self.selectors and not any(selector.matches(job) for selector in self.selectors):
            return False
        if self.uids is not None and job.get("user_id") not in self.uids:
            return False
        if self.cluster and job.get("cluster") != self.cluster:
            return False
        return not self.checks or all(check(job) for check in self.checks)

    def _spread(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """--array: a line for each waiting task. --priority: a line for each partition of a waiting job."""
        if "array" in self.asked:
            jobs = reports.each_task(jobs)
        if "priority" in self.asked:
            wanted = reports.words_of(self.asked.get("partition"))
            jobs = [
                {**job, "partition": partition}
                for job in jobs
                for partition in str(job.get("partition") or "").split(",")
                if not wanted or partition in wanted
            ]
        return jobs

    def _print_steps(self, plan: Any) -> int:
        wanted = {"user_name", "user_id", "array_job_id", "array_throttle", "het_offset", "partition"}
        jobs, now = self._jobs(wanted)
        context = reports.make_context(now=now)
        steps: list[dict[str, Any]] = []
        for job in jobs:
            if job["state"] in ("PENDING", "CONFIGURING"):
                continue
            for step in self.transport.get(path_of("jobs", job["job_id"], "steps"))["steps"]:
                own = step["job_id"] == job["job_id"]  # an array's or a heterogeneous job's id means all of it
                if own and step.get("state") in _LIVE_STEPS and self._wanted_step(job, step):
                    about = {key: job.get(key) for key in ("user_name", "array_job_id", "array_task_id")}
                    steps.append({**step, **about, "job_label": label_in_steps(job)})
        fields.sort_records(steps, self.sort, self._table(), context)
        reports.show_table(plan, steps, context, header="noheader" not in self.asked)
        return 0

    def _wanted_step(self, job: dict[str, Any], step: dict[str, Any]) -> bool:
        return not self.step_selectors or any(
            selector.matches(job) and selector.step == str(step["step_id"]) for selector in self.step_selectors
        )

    def _print_data(self) -> int:
        """--json and --yaml: everything, in the shape of Slurm's own; filters by job and user still hold."""
        try:
            answer = self._ask({})
            nodes = self.transport.get("/v1/nodes", {"fields": ",".join(NODE_FIELDS)})["nodes"]
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("squeue", LOAD_ERROR, error) from None
        by_name = {node["name"]: node for node in nodes}
        wanted = [job for job in answer["jobs"] if self._wanted(job)]
        reports.keep_few_shapes(wanted)
        jobs = [job_shape(job, by_name) for job in wanted]
        update = {"last_backfill": int(latest_pass(answer["jobs"])), "last_update": int(answer.get("now") or 0)}
        reports.write(dump(envelope("squeue", {"jobs": jobs}, update), yaml="yaml" in self.asked))
        return 0


Test = Callable[[dict[str, Any]], bool]


def _in_list(key: str) -> Callable[[str], Test]:
    def test_for(text: str) -> Test:
        wanted = set(text.split(","))
        return lambda job: str(job.get(key) or "") in wanted

    return test_for


def _in_partition(text: str) -> Test:
    wanted = set(text.split(","))
    return lambda job: not wanted.isdisjoint(str(job.get("partition") or "").split(","))


def _uses_license(text: str) -> Test:
    wanted = set(text.split(","))

    def uses(job: dict[str, Any]) -> bool:
        held = {item.partition(":")[0].partition("=")[0] for item in str(job.get("licenses") or "").split(",")}
        return not held.isdisjoint(wanted)

    return uses


def _on_nodes(text: str) -> Test:
    wanted = set(expand(text))
    return lambda job: not wanted.isdisjoint(expand(job.get("node_list") or ""))


_CHECKS = {
    "account": _in_list("account"),
    "name": _in_list("name"),
    "qos": _in_list("qos"),
    "reservation": _in_list("reservation"),
    "partition": _in_partition,
    "licenses": _uses_license,
    "nodelist": _on_nodes,
}
_FILTER_KEYS = {
    "account": "account",
    "name": "name",
    "qos": "qos",
    "reservation": "reservation",
    "partition": "partition",
    "licenses": "licenses",
    "nodelist": "node_list",
    "priority": "partition",
    "array": "array_tasks",
}
