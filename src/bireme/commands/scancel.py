"""scancel: ends jobs and steps, or sends them signals.

Ids and filters go to the daemon as they are: one request and one commit, however many jobs they mean. Only with -i (or
with a step and filters) the queue is read first and matched here, so that each job can be asked about. As in Slurm, a
job that is not there (any more) is no error worth a word unless -v or -i was given, or a signal is sent: nobody got it.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sequence
from typing import Any

from bireme.commands.clusters import VARIABLE, UnknownClusterError, chosen_clusters
from bireme.commands.optline import options, read
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.surroundings import Port, around
from bireme.commands.voice import CommandFailure, Voice, refused_by_daemon, run_command
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand
from bireme.slurm.signals import parse_signal
from bireme.slurm.version import VERSION_LINE

TABLE = options(
    "-A--account= -b--batch --ctld -c--cron -f--full --help -H--hurry -i--interactive -M--clusters= --me -n--name="
    " --jobname= -w--nodelist= -p--partition= -q--qos= -Q--quiet -R--reservation= --sibling= -s--signal= -t--state="
    " --usage -u--user= -v--verbose -V--version --wckey="
)
_FILTERS = ("account", "name", "nodelist", "partition", "qos", "reservation", "state", "user", "wckey")
_ENVIRONMENT = {
    "account": "SCANCEL_ACCOUNT",
    "cluster": VARIABLE,
    "name": "SCANCEL_NAME",
    "partition": "SCANCEL_PARTITION",
    "qos": "SCANCEL_QOS",
    "state": "SCANCEL_STATE",
    "user": "SCANCEL_USER",
    "wckey": "SCANCEL_WCKEY",
}
_FLAG_ENVIRONMENT = {"batch": "SCANCEL_BATCH", "full": "SCANCEL_FULL", "interactive": "SCANCEL_INTERACTIVE"}
_STATES = {"PENDING": "PENDING", "PD": "PENDING", "RUNNING": "RUNNING", "R": "RUNNING", "SUSPENDED": "SUSPENDED",
           "S": "SUSPENDED"}  # fmt: skip
_ID = re.compile(
    r"(?P<job>\d+)(?:_(?P<tasks>\d+|\[[0-9,:%-]+\])|\+(?P<offset>\d+))?(?:\.(?P<step>\d+|batch))?", re.ASCII
)
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
_FIELDS = (
    "job_id,array_job_id,array_task_id,array_tasks,het_job_id,het_offset,name,partition,user_name,user_id,account,qos,"
    "reservation,wckey,state,node_list,cluster"
)
_NOT_THERE = frozenset({"ESLURM_INVALID_JOB_ID", "ESLURM_ALREADY_DONE"})
_LIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED"})
HELP = """\
Usage: scancel [OPTIONS] [JOB[_TASK|_[TASKS]][.STEP]...]
Ends jobs or steps, or sends them a signal. Without ids, the filters choose among all of your jobs.

  -A, --account=NAME        jobs of this account
  -b, --batch               signal only the batch script
  -f, --full                signal the batch script and all steps
  -i, --interactive         ask before each job
      --me                  my own jobs
  -n, --name=NAME           jobs of this name
  -p, --partition=NAME      jobs of this partition
  -q, --qos=NAME            jobs of this QOS
  -Q, --quiet               say nothing about jobs that are over
  -R, --reservation=NAME    jobs of this reservation
  -s, --signal=NAME|NUMBER  send this signal instead of ending the job
  -t, --state=STATE         jobs in this state: PENDING, RUNNING or SUSPENDED
  -u, --user=NAME           jobs of this user
  -v, --verbose             say what is done
  -V, --version             the version
  -w, --nodelist=NODES      jobs on these nodes
      --wckey=KEY           jobs with this key
"""


class Order:
    """What was asked on one command line. A plain class: `dataclasses` alone would cost a tenth of the start."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self.filters: dict[str, str] = {}
        self.signal: int | None = None
        self.batch = False
        self.full = False
        self.interactive = False
        self.quiet = False
        self.verbose = 0

    @property
    def sends_signal(self) -> bool:
        """Whether it sends a signal that does not end the job: who is not there did not get what was asked for."""
        return self.signal is not None or self.batch

    def body(self) -> dict[str, Any]:
        return {"signal": self.signal, "batch_only": self.batch, "full": self.full}


def main(argv: list[str]) -> int:
    return run_command("scancel", lambda: _main(argv), getopt_exit=1)


def _main(argv: list[str]) -> int:
    given, words = read(TABLE, argv)
    asked = dict(given)
    if "help" in asked or "usage" in asked:
        around().write(HELP)
        return 0
    if "version" in asked:
        around().write(f"{VERSION_LINE}\n")
        return 0
    order = read_order(given, words)
    voice = Voice("scancel", quiet=order.quiet, verbose=order.verbose)
    if order.interactive:
        around().only_near()  # to ask
    transport = around().port(acts=True)
    _check_clusters(transport, order)
    steps = any("." in word for word in order.ids)
    if order.interactive or (order.filters and steps):
        return _cancel_matching(transport, order, voice)
    if order.filters:
        return _cancel_filtered(transport, order, voice)
    return _cancel_named(transport, order, voice)


def _check_clusters(transport: Port, order: Order) -> None:
    if "cluster" in order.filters:
        try:
            order.filters["cluster"] = ",".join(chosen_clusters(transport, order.filters["cluster"]))
        except UnknownClusterError as error:
            raise CommandFailure(*str(error).splitlines()) from None


def read_order(given: Sequence[tuple[str, str | None]], words: Sequence[str]) -> Order:
    """The command line, with SCANCEL_ variables beneath it; raises Slurm's refusals."""
    order = Order(ids=[part for word in words for part in _split_ids(word)])
    for name, variable in _ENVIRONMENT.items():
        if around().environment.get(variable):
            order.filters[name] = around().environment[variable]
    for name, variable in _FLAG_ENVIRONMENT.items():
        if around().environment.get(variable, "").lower() in ("t", "true", "1", "yes"):
            setattr(order, name, True)
    for name, value in given:
        _apply(order, "name" if name == "jobname" else name, value or "")
    for word in order.ids:
        if _ID.fullmatch(word) is None:
            raise CommandFailure(f"Invalid job id {word}")
    if not order.ids and not order.filters.keys() - {"cluster"}:
        raise CommandFailure("No job identification provided")
    return order


def _split_ids(word: str) -> list[str]:
    return [part for part in re.split(r",(?![^\[]*\])", word) if part]


def _apply(order: Order, name: str, value: str) -> None:
    if name == "me":
        order.filters["user"] = str(around().uid)
    elif name == "state":
        if value.upper() not in _STATES:
            raise CommandFailure(
                f"Invalid job state specified: {value}",
                "Valid job states are PENDING, RUNNING, and SUSPENDED",
                bare=True,
            )
        order.filters["state"] = _STATES[value.upper()]
    elif name == "user":
        order.filters["user"] = str(_uid(value))
    elif name == "clusters":
        order.filters["cluster"] = value
    elif name in _FILTERS:
        order.filters[name] = value
    elif name == "signal":
        order.signal = _signal(value)
    elif name == "verbose":
        order.verbose += 1
    elif name in ("batch", "full", "interactive", "quiet"):
        setattr(order, name, True)


def _uid(name: str) -> int:
    number = name.isascii() and name.isdigit() and len(name) < 12
    uid = int(name) if number else around().user_id(name)
    if uid is None:
        raise CommandFailure(f"Invalid user name: {name}")
    return uid


def _signal(text: str) -> int:
    try:
        return parse_signal(text)
    except SlurmSyntaxError:
        raise CommandFailure(f"Unknown job signal: {text}", bare=True) from None


# --- by id -------------------------------------------------------------------------------------------------


def _cancel_named(transport: Port, order: Order, voice: Voice) -> int:
    """A job by itself has a route of its own, which is open to it from inside too; steps have theirs."""
    jobs = [word for word in order.ids if "." not in word]
    together = len(jobs) > 1 or any("[" in word for word in jobs)
    code = _cancel_together(transport, order, voice, jobs) if together else 0
    for word in order.ids:
        if not together or "." in word:
            code = max(code, _cancel_one(transport, order, voice, word))
    return code


def _cancel_together(transport: Port, order: Order, voice: Voice, words: list[str]) -> int:
    for word in words:
        _checked_ranges(word)
        _tell(voice, order, f"job {word}")
    try:
        answer = transport.post("/v1/cancel", {**order.body(), "jobs": words})
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon(f"Kill job error on job id {words[0]}", error) from error
    return _tell_refusals(order, voice, answer["errors"])


def _tell_refusals(order: Order, voice: Voice, errors: list[dict[str, Any]]) -> int:
    code = 0
    for refused in errors:
        gone, why = refused["error"]["code"] in _NOT_THERE, refused["error"]["message"]
        if gone and order.sends_signal:
            why = "Invalid job id specified"  # whether it is over or never was
            told, failed = not order.quiet, True
        else:
            told, failed = not gone or order.verbose > 0 or order.interactive, not gone or order.interactive
        if told:
            voice.error(f"Kill job error on job id {refused['job']}: {why}")
        code = max(code, int(failed))
    return code


def _checked_ranges(word: str) -> None:
    """Refuses what is no list of tasks, as Slurm does before it asks for anything."""
    for part in word.partition("[")[2].rstrip("]").partition("%")[0].split(",") if "[" in word else ():
        match = _RANGE.fullmatch(part)
        if match is None or match[3] == "0":
            raise CommandFailure(f"Invalid job id {word}")


def _cancel_one(transport: Port, order: Order, voice: Voice, word: str) -> int:
    match = _ID.fullmatch(word)
    assert match is not None, "ids were checked when the command line was read"
    if match["step"]:
        return _cancel_step(transport, order, voice, word, match)
    if "[" in word:
        return _cancel_together(transport, order, voice, [word])
    _tell(voice, order, f"job {word}")
    try:
        transport.post(path_of("jobs", word, "cancel"), order.body())
    except BiremeUnavailable as error:
        raise refused_by_daemon(f"Kill job error on job id {word}", error) from error
    except ApiError as error:
        refused = {"job": word, "error": {"code": error.code, "message": error.message}}
        return _tell_refusals(order, voice, [refused])
    return 0


def _cancel_step(transport: Port, order: Order, voice: Voice, word: str, match: re.Match[str]) -> int:
    job = word.partition(".")[0]
    _tell(voice, order, f"step {word}")
    try:
        if match["step"] == "batch":
            transport.post(path_of("jobs", job, "cancel"), {"signal": order.signal or 9, "batch_only": True})
        else:
            transport.post(path_of("jobs", job, "steps", match["step"], "cancel"), {"signal": order.signal})
    except BiremeUnavailable as error:
        raise refused_by_daemon(f"Kill job error on job step id {word}", error) from error
    except ApiError as error:
        if error.code == "ESLURM_ALREADY_DONE" and not order.verbose:
            return 0
        if not order.quiet:
            voice.error(f"Kill job error on job step id {word}: {error.message}")
        return 1
    return 0


def _tell(voice: Voice, order: Order, what: str) -> None:
    if order.signal is None:
        voice.detail(f"Terminating {what}")
    elif what.startswith("step"):
        voice.detail(f"Signal {order.signal} to {what}")
    else:
        part = "batch " if order.batch else "full " if order.full else ""
        voice.detail(f"Signal {order.signal} to {part}{what}")


# --- by filter ---------------------------------------------------------------------------------------------


def _cancel_filtered(transport: Port, order: Order, voice: Voice) -> int:
    for word in order.ids:
        _checked_ranges(word)
    body = {**order.body(), **_filters_sent(order.filters), "jobs": order.ids}
    try:
        answer = transport.post("/v1/cancel", body)
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon("slurm_load_jobs error", error) from error
    chosen_by_more = order.filters.keys() - {"cluster"}  # with a cluster alone, ids are told of as without
    unknown = [refused for refused in answer["errors"] if refused.get("unknown") and chosen_by_more]
    for refused in unknown:
        if not order.quiet:
            voice.error(f"Kill job error on job id {refused['job']}: {refused['error']['message']}")
    others = [refused for refused in answer["errors"] if refused not in unknown]
    for name in [*answer["cancelled"], *(refused["job"] for refused in others)] if order.verbose else ():
        _tell(voice, order, f"job {name}")
    return max(_tell_refusals(order, voice, others), int(bool(unknown)))


def _filters_sent(filters: dict[str, str]) -> dict[str, list[str]]:
    sent = {name: [value] if name in ("user", "partition") else value.split(",") for name, value in filters.items()}
    if sent.get("state") == ["RUNNING"]:
        sent["state"] = ["RUNNING", "CONFIGURING"]
    if "nodelist" in sent:
        sent["nodes"] = list(expand(filters["nodelist"]))
        del sent["nodelist"]
    return sent


def _cancel_matching(transport: Port, order: Order, voice: Voice) -> int:
    try:
        records = transport.get("/v1/jobs", {"fields": _FIELDS})["jobs"]
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon("slurm_load_jobs error", error) from error
    live = [record for record in records if record["state"] in _LIVE]
    code = 0
    if not order.ids:
        for record in live:
            if matches(record, order.filters):
                code = max(code, _confirm_and_cancel(transport, order, voice, record))
        return code
    for word in order.ids:
        named = [record for record in live if is_named(record, word)]
        if not named:
            if not order.quiet:
                voice.error(f"Kill job error on job id {word}: Invalid job id specified")
            code = 1
        for record in named:
            if matches(record, order.filters):
                code = max(code, _confirm_and_cancel(transport, order, voice, record, word))
    return code


def matches(record: dict[str, Any], filters: dict[str, str]) -> bool:
    """Whether a job passes every filter."""
    for name, wanted in filters.items():
        if name == "user":
            passed = str(record.get("user_id")) == wanted or record.get("user_name") == wanted
        elif name == "nodelist":
            passed = _on_one_of(wanted, record.get("node_list") or "")
        elif name == "partition":
            passed = wanted in (record.get("partition") or "").split(",")
        elif name == "state":
            passed = record["state"] == wanted or (wanted == "RUNNING" and record["state"] == "CONFIGURING")
        else:
            passed = str(record.get(name) or "") in wanted.split(",")
        if not passed:
            return False
    return True


def _on_one_of(wanted: str, held: str) -> bool:
    return not _names_in(wanted).isdisjoint(expand(held))


@functools.lru_cache(maxsize=1)
def _names_in(hostlist: str) -> frozenset[str]:
    """Of one command, which asks for each job."""
    return frozenset(expand(hostlist))


def is_named(record: dict[str, Any], word: str) -> bool:
    match = _ID.fullmatch(word)
    assert match is not None
    job = int(match["job"])
    if match["tasks"]:
        if record.get("array_job_id") != job:
            return False
        return bool(record.get("array_tasks")) or _names_task(match["tasks"], record.get("array_task_id"))
    if match["offset"]:
        return record.get("het_job_id") == job and record.get("het_offset") == int(match["offset"])
    return job in (record["job_id"], record.get("array_job_id"), record.get("het_job_id"))


def _names_task(text: str, task: int | None) -> bool:
    for part in text.strip("[]").partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        if match is None or match[3] == "0":
            raise CommandFailure(f"Invalid job id _{text}")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if task is not None and first <= task <= last and not (task - first) % step:
            return True
    return False


def label(record: dict[str, Any]) -> str:
    """The id as squeue shows it: `42`, `42_7`, `42_[8-9]`, `42+1`."""
    if record.get("array_tasks"):
        return f"{record['array_job_id']}_[{record['array_tasks'].strip('[]').partition('%')[0]}]"
    if record.get("array_task_id") is not None:
        return f"{record['array_job_id']}_{record['array_task_id']}"
    if record.get("het_job_id"):
        return f"{record['het_job_id']}+{record.get('het_offset') or 0}"
    return str(record["job_id"])


def _confirm_and_cancel(transport: Port, order: Order, voice: Voice, record: dict[str, Any], word: str = "") -> int:
    # Of a waiting array only the tasks that were named; a step stays a step.
    target = word if "_" in word or "." in word else label(record)
    if order.interactive and not _confirmed(target, record):
        return 0
    return _cancel_one(transport, order, voice, target)


def _confirmed(target: str, record: dict[str, Any]) -> bool:
    what = "step_id" if "." in target else "job_id"
    around().write(f"Cancel {what}={target} name={record['name']} partition={record['partition']} [y/n]? ")
    around().flush()
    return sys.stdin.readline().strip().lower().startswith("y")
