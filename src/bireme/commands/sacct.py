"""sacct: what ran, from the history and the queue, as Slurm prints it.

The time window follows Slurm's own table of defaults, which depends on --jobs and --state; `_window` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from bireme.commands import reports
from bireme.commands.optline import Opt, aliases, options
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.surroundings import around
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats import accounting, sacct_fields
from bireme.slurm.formats.accounting import name_lines
from bireme.slurm.formats.identity import JobSelector, parse_selectors
from bireme.slurm.formats.sacct_fields import IN_EVERY_LINE, OVER, SACCT_FIELDS, flags_of, rows_of
from bireme.slurm.formats.states import job_state
from bireme.slurm.formats.usage_values import FROM_MEASURED
from bireme.slurm.hostlist import expand
from bireme.slurm.json_shapes.accounting import accounting_shapes
from bireme.slurm.json_shapes.envelope import dump, envelope
from bireme.slurm.times import parse_job_time_limit, parse_timestamp

TABLE: list[Opt] = aliases(
    options(
        "-A--accounts= -L--allclusters -X--allocations -a--allusers -x--associations= -B--batch-script -b--brief"
        " -M--clusters= -c--completion -C--constraints= --delimiter= -D--duplicates -E--endtime= --env-vars"
        " --federation -f--file= -F--flags= -o--format= -g--group= -h--help -e--helpformat -j--jobs= --json[=]"
        " --local -l--long --name= -i--nnodes= -I--ncpus= --noconvert -N--nodelist= -n--noheader -p--parsable"
        " -P--parsable2 -r--partition= -q--qos= -R--reason= -S--starttime= -s--state= -K--timelimit-max="
        " -k--timelimit-min= -T--truncate -u--user= --units= --usage --use-local-uid -v--verbose -V--version"
        " -W--wckeys= --whole-hetjob[=] --yaml[=] --array --expand-patterns --autocomplete="
    ),
    uid="user", gid="group",
)  # fmt: skip
ADD_UP = frozenset({"accounts", "format", "group", "jobs", "name", "partition", "qos", "state", "user", "wckeys"})
"""Given again, they add to what was given before: `-j 1 -j 2`."""
REFUSED = {
    "associations": "associations have no numbers here: --accounts and --user say the same",
    "completion": "Slurm job completion is disabled",
    "file": "Slurm job completion is disabled",
}
"""Options of Slurm's that choose what there is not here, and what is said of them."""
FLAGS = frozenset({"none", "schedsubmit", "schedmain", "schedbackfill", "startrecieved", "startreceived"})
_WHOLE_RECORDS = frozenset({"json", "yaml", "array"})
"""What shows more of a record than its columns."""
_LIMITS = ("timelimit-min", "timelimit-max")
LOAD_ERROR = "sacct: error: Problem talking to the database"


class Window(NamedTuple):
    start: float
    end: float | None
    """None: until now, and whatever is still going on."""


def main(argv: list[str]) -> int:
    return reports.guarded("sacct", lambda: _main(argv), pointer=False)


def _main(argv: list[str]) -> int:
    asked, words = reports.options_of("sacct", TABLE, argv, ADD_UP)
    if words:
        raise reports.CommandError(f"sacct: error: Unknown arguments: {' '.join(words)}")
    if "helpformat" in asked:
        reports.show(name_lines(SACCT_FIELDS.values()))
        return 0
    report = _Report(asked)
    return max(report.print(), report.tell_damaged())


class _Report:
    """One sacct command, checked before anything is asked of the daemon."""

    def __init__(self, asked: dict[str, str | None]) -> None:
        self.asked = asked
        self.now = time.time()
        try:
            self.selectors = parse_selectors(asked.get("jobs") or "")
        except SlurmSyntaxError as error:
            word = str(error).rpartition(" ")[2]
            raise reports.CommandError(f"sacct: fatal: Bad job/step specified: {word}") from None
        self.selectors = self._of_components(self.selectors)
        reports.keep_bounds((), self.selectors)
        for name in asked.keys() & REFUSED:
            said = REFUSED[name]
            raise reports.CommandError(said if said.startswith("Slurm") else f"sacct: error: --{name}: {said}")
        self.limits = self._time_limits()
        self.flags = self._flags()
        self.states = self._states()
        self.window = self._window()
        self.uids = self._uids()
        self.checks = [check.made(asked[name] or "") for name, check in _CHECKS.items() if asked.get(name)]
        self.columns = self._columns()
        unit = (asked.get("units") or "").upper()
        if unit and unit not in ("K", "M", "G", "T", "P"):
            raise reports.CommandError(f"sacct: error: Invalid unit type: {asked['units']}")
        self.context = reports.make_context(convert="noconvert" not in asked, unit=unit, now=self.now)
        self.transport = reports.transport()
        self.damaged: list[str] = []
        """Records that the store has and cannot show, a sentence each."""

    def _of_components(self, selectors: list[JobSelector]) -> list[JobSelector]:
        """--whole-hetjob: `7+1` is all of 7; with `no`, 7 is its first component alone."""
        if "whole-hetjob" not in self.asked:
            return selectors
        wanted = self.asked["whole-hetjob"]
        if wanted not in (None, "", "yes", "no"):
            raise reports.CommandError(
                f'sacct: error: Invalid --whole-hetjob value "{wanted}". Valid values: [yes|no].'
            )
        if wanted == "no":
            return selectors
        return [each._replace(het_offset=None) for each in selectors]

    def tell_damaged(self) -> int:
        """What is missing in what was shown, and what to do; the exit code says so too."""
        for sentence in self.damaged:
            reports.tell(f"sacct: error: {sentence}")
        if self.damaged:
            reports.tell(
                "sacct: error: the others are shown; `bireme store verify` says more, `bireme store recover` mends"
            )
        return int(bool(self.damaged))

    def _states(self) -> frozenset[str] | None:
        states: set[str] = set()
        for word in reports.words_of(self.asked.get("state")):
            state = job_state(word)
            if state is None:
                raise reports.CommandError(f"sacct: fatal: unrecognized job state value '{word}'")
            states.add(state)
        return frozenset(states) or None

    def _time_limits(self) -> tuple[float, float] | None:
        """The least and the greatest limit, in seconds. As in Slurm, --timelimit-max alone chooses nothing."""
        given = {name: _limit_s(self.asked[name] or "") for name in _LIMITS if name in self.asked}
        if "timelimit-min" not in given:
            return None
        return given["timelimit-min"], given.get("timelimit-max", given["timelimit-min"])

    def _flags(self) -> frozenset[str] | None:
        """The words of --flags, in small letters; None: whatever the flags."""
        if "flags" not in self.asked:
            return None
        for word in (self.asked["flags"] or "").split(","):
            if word.lower() not in FLAGS:
                raise reports.CommandError(f"sacct: error: str_2_job_flags: Invalid job flag {word}")
        return frozenset((self.asked["flags"] or "").lower().split(","))

    def _window(self) -> Window:
        """Midnight to now; from the epoch with --jobs; the present moment with --state alone."""
        start = self._moment("starttime")
        end = self._moment("endtime")
        if start is None and self.selectors:
            start = 0.0
        elif start is None and self.states:
            start = self.now
        elif start is None:
            start = time.mktime((*time.localtime(self.now)[:3], 0, 0, 0, 0, 0, -1))
        if (end or self.now) < start:
            first, last = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) for at in (start, end or self.now))
            raise reports.CommandError(f"sacct: error: Start time ({first}) requested is after end time ({last}).")
        return Window(start, end)

    def _moment(self, name: str) -> float | None:
        text = self.asked.get(name)
        if not text:
            return None
        try:
            return parse_timestamp(text, self.now, lambda at: time.localtime(at).tm_gmtoff, past=True)
        except SlurmSyntaxError:
            raise reports.CommandError(f"Invalid time specification (pos=0): {text}") from None

    def _uids(self) -> set[int] | None:
        """Whose jobs are shown; None is everybody: root's default, --allusers, and whoever asks for jobs by id."""
        self._ids("group", around().group_id)
        if self.asked.get("user"):
            return self._ids("user", around().user_id)
        if "allusers" in self.asked or self.selectors or reports.my_uid() == 0:
            return None
        return {reports.my_uid()}

    def _ids(self, what: str, id_of: Callable[[str], int | None]) -> set[int]:
        """The numbers of the users or groups that an option names; the command ends where nobody has such a name."""
        ids: set[int] = set()
        names = dict.fromkeys(reports.words_of(self.asked.get(what)))
        around().keep_small(len(names), reports.MOST_NAMES)
        for name in names:
            found = int(name) if name.isascii() and name.isdecimal() and len(name) < 12 else id_of(name)
            if found is None:
                raise reports.CommandError(f"sacct: error: Invalid {what} id: {name}")
            ids.add(found)
        return ids

    def _columns(self) -> Any:
        if self.asked.get("format"):
            text = self.asked["format"] or ""
        elif "brief" in self.asked:
            text = sacct_fields.BRIEF_FORMAT
        elif "long" in self.asked:
            text = sacct_fields.LONG_FORMAT
        else:
            text = reports.environment().get("SACCT_FORMAT") or sacct_fields.DEFAULT_FORMAT
        return accounting.choose_columns(text, sacct_fields.SACCT_FIELDS, sacct_fields.SACCT_ALIASES)

    def _load(self) -> list[dict[str, Any]]:
        params: dict[str, str | int | float | None] = {
            "start": self.window.start or None,
            "end": self.window.end,
            "job": ",".join(dict.fromkeys(str(selector.job_id) for selector in self.selectors)) or None,
            "user": ",".join(map(str, sorted(self.uids))) if self.uids is not None else None,
            "account": self.asked.get("accounts"),
            "partition": self.asked.get("partition"),
            "name": self.asked.get("name"),
            "steps": None if "allocations" in self.asked else 1,
            "duplicates": 1 if "duplicates" in self.asked else None,
            "measured": 1 if self._shows_measured() else None,
            "fields": self._fields(),
        }
        try:
            answer = self.transport.get("/v1/history", params)
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("sacct", LOAD_ERROR, error) from None
        self.damaged += answer.get("damaged") or []
        jobs: list[dict[str, Any]] = answer["jobs"]
        return [job for job in jobs if self._wanted(job)]

    def _shows_measured(self) -> bool:
        """What was measured is read for who looks at it alone: the default columns do not."""
        if "allocations" in self.asked:
            return False
        whole = self.asked.keys() & {"json", "yaml"}
        return bool(whole) or any(column.field.name in FROM_MEASURED for column in self.columns)

    def _fields(self) -> str | None:
        """Keys of the records that are chosen by or printed, a hundred less than there are; None: all of them."""
        if self.asked.keys() & _WHOLE_RECORDS:
            return None
        needs = {*IN_EVERY_LINE, *(key for column in self.columns for key in column.field.needs)}
        needs.update(key for name, check in _CHECKS.items() if self.asked.get(name) for key in check.needs)
        return ",".join(sorted(needs | ({"time_limit_s"} if self.limits is not None else set())))

    def _wanted(self, job: dict[str, Any]) -> bool:
        if self.uids is not None and job.get("user_id") not in self.uids:
            return False
        if self.selectors and not any(selector.matches(job) for selector in self.selectors):
            return False
        if self.asked.get("whole-hetjob") == "no" and not self._is_the_component(job):
            return False
        if self.limits is not None and not self.limits[0] <= (job.get("time_limit_s") or inf) <= self.limits[1]:
            return False
        if self.flags is not None and flags_of(job).lower() not in self.flags:
            return False
        if self.states is not None and not self._was_in_states(job):
            return False
        if self.states is None and not self.selectors and not self._in_window(job):
            return False
        return all(check(job) for check in self.checks)

    def _is_the_component(self, job: dict[str, Any]) -> bool:
        """Whether it is named by itself; the job's own id is its first component's."""
        offset = job.get("het_offset")
        return not offset or any(each.het_offset == offset for each in self.selectors if each.matches(job))

    def _in_window(self, job: dict[str, Any]) -> bool:
        """Jobs that were eligible or running at some time of the window."""
        over = job["state"] in OVER
        began = job.get("eligible_time") or job.get("start_time") or (job.get("end_time") if over else None)
        if began is None:
            return False  # held or waiting for another job: shown only when asked for by id
        ended = job.get("end_time") if over else None
        return bool(began <= (self.window.end or self.now + 1) and (ended is None or ended >= self.window.start))

    def _was_in_states(self, job: dict[str, Any]) -> bool:
        """In one of the asked states at some time of the window: waiting, running, or ended so within it."""
        assert self.states is not None
        low, high = self.window.start, self.window.end or self.now + 1
        over = job["state"] in OVER
        started = job.get("start_time")
        ended = job.get("end_time") if over else None
        if over and job["state"] in self.states and low <= (ended or 0) <= high:
            return True
        if not over and job["state"] in self.states:
            return True
        if "RUNNING" in self.states and started is not None:
            return bool(started <= high and (ended is None or ended >= low))
        if "PENDING" in self.states and job.get("eligible_time") is not None:
            left_queue = started if started is not None else ended
            return bool(job["eligible_time"] <= high and (left_queue is None or left_queue >= low))
        return False

    def _rows(self, jobs: list[dict[str, Any]]) -> list[Any]:
        rows = [row for job in jobs for row in rows_of(job, steps="allocations" not in self.asked)]
        asked_steps = [selector for selector in self.selectors if selector.step is not None]
        if not asked_steps:
            return rows
        whole = [selector for selector in self.selectors if selector.step is None]
        return [
            row
            for row in rows
            if any(selector.matches(row.job) for selector in whole)
            or (
                row.step is not None
                and any(s.matches(row.job) and s.step == str(row.step["step_id"]) for s in asked_steps)
            )
        ]

    def print(self) -> int:
        if "batch-script" in self.asked or "env-vars" in self.asked:
            return self._print_scripts()
        jobs = self._load()
        if "array" in self.asked:
            jobs = reports.each_task(jobs)
        if "json" in self.asked or "yaml" in self.asked:
            return self._print_data(jobs)
        if "truncate" in self.asked:
            jobs = [self._truncated(job) for job in jobs]
        form = None
        if "parsable" in self.asked or "parsable2" in self.asked:
            ending = "parsable" in self.asked and "parsable2" not in self.asked
            form = reports.Parsable(self.asked.get("delimiter") or "|", ending)
        header = "noheader" not in self.asked
        reports.show_columns(self.columns, self._rows(jobs), self.context, header=header, parsable=form)
        return 0

    def _truncated(self, job: dict[str, Any]) -> dict[str, Any]:
        """--truncate: times outside the window are shown as its edges, and elapsed is what lies within."""
        start, end = job.get("start_time"), job.get("end_time")
        if start is None:
            return job
        low = max(start, self.window.start)
        high = min(end if end is not None else self.now, self.window.end or self.now)
        return {**job, "start_time": low, "end_time": high, "elapsed_s": max(0, int(high - low))}

    def _script(self, job_id: int) -> str:
        try:
            return self.transport.get_bytes(path_of("jobs", job_id, "script")).decode("utf-8", "replace")
        except ApiError:
            return "NONE"

    def _print_scripts(self) -> int:
        if not self.selectors:
            raise reports.CommandError("sacct: error: --batch-script and --env-vars need --jobs")
        for job in self._load():
            script = self._script(job["job_id"]) if "batch-script" in self.asked else "NONE"
            what = "Batch Script" if "batch-script" in self.asked else "Environment used"
            title = f"{what} for {job['job_id']}"
            reports.say(f"{title}\n{'-' * 80}\n{script}")
        return 0

    def _print_data(self, jobs: list[dict[str, Any]]) -> int:
        reports.keep_few_shapes(jobs)
        body = {"jobs": accounting_shapes(jobs)}
        reports.write(dump(envelope("sacct", body), yaml="yaml" in self.asked))
        return 0


def _limit_s(text: str) -> float:
    try:
        return parse_job_time_limit(text) or inf
    except SlurmSyntaxError:
        raise reports.CommandError("sacct: fatal: Invalid time limit specification") from None


Test = Callable[[dict[str, Any]], bool]


def _in_list(key: str) -> Callable[[str], Test]:
    def test_for(text: str) -> Test:
        wanted = set(text.split(","))
        return lambda job: str(job.get(key) if job.get(key) is not None else "") in wanted

    return test_for


def _in_clusters(text: str) -> Test:
    """As in Slurm, a filter like the others: what has run may be of a cluster that nobody has any more."""
    return (lambda job: True) if text == "all" else _in_list("cluster")(text)


def _in_partition(text: str) -> Test:
    wanted = set(text.split(","))
    return lambda job: not wanted.isdisjoint(str(job.get("partition") or "").split(","))


def _in_group(text: str) -> Test:
    wanted = set(text.split(","))
    return lambda job: not wanted.isdisjoint((str(job.get("group_id")), str(job.get("group_name"))))


def _between(text: str) -> Callable[[float], bool]:
    first, _, last = text.partition("-")
    low = int(first) if first.isdecimal() else None
    high = int(last) if last.isdecimal() else low
    if low is None or last.isdecimal():
        return lambda value: (low is None or value >= low) and (high is None or value <= high)
    return lambda value: value == low


def _node_range(text: str) -> Test:
    fits = _between(text)
    return lambda job: fits(int(job.get("node_count") or 0))


def _cpu_range(text: str) -> Test:
    fits = _between(text)
    return lambda job: fits(int((job.get("tres_allocated") or {}).get("cpu") or 0))


def _on_nodes(text: str) -> Test:
    wanted = set(expand(text))
    return lambda job: not wanted.isdisjoint(expand(job.get("node_list") or ""))


def _has_constraints(text: str) -> Test:
    words = text.split(",")
    return lambda job: all(word in str(job.get("features") or "") for word in words)


class _Check(NamedTuple):
    """What an option chooses jobs by: the test for its words, and the keys of a record that this reads."""

    made: Callable[[str], Test]
    needs: tuple[str, ...]


_CHECKS: dict[str, _Check] = {
    "accounts": _Check(_in_list("account"), ("account",)),
    "clusters": _Check(_in_clusters, ("cluster",)),
    "constraints": _Check(_has_constraints, ("features",)),
    "group": _Check(_in_group, ("group_id", "group_name")),
    "name": _Check(_in_list("name"), ("name",)),
    "ncpus": _Check(_cpu_range, ("tres_allocated",)),
    "nnodes": _Check(_node_range, ("node_count",)),
    "nodelist": _Check(_on_nodes, ("node_list",)),
    "partition": _Check(_in_partition, ("partition",)),
    "qos": _Check(_in_list("qos"), ("qos",)),
    "reason": _Check(_in_list("reason"), ("reason",)),
    "wckeys": _Check(_in_list("wckey"), ("wckey",)),
}
