"""bireme why: why a job waits and when it will start, why it runs where it does, or how it ended; and why a service has
fewer ready replicas than it wants.

The daemon answers with data (`core/why/answers.py`); here it becomes text of at most 80 columns, or JSON as it came.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.faults.findings import where_of
from bireme.cli.parsing import Arguments
from bireme.cli.serving.pages import why_lines
from bireme.cli.serving.services import router_of
from bireme.cli.serving.tails import tails_of
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.paths import path_of
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command
from bireme.core.explain.wording import counted
from bireme.core.model.serving.names import is_service_name
from bireme.slurm.formats.visible import visible_values
from bireme.slurm.hostlist import compress
from bireme.slurm.sizes import format_memory
from bireme.slurm.times import format_elapsed

WIDTH = 80
LABEL = 16
_POD = "pod/"
_NAMED = 4
"""So many other jobs are named before it says how many more there are."""

_NOT_FAILED = ("COMPLETED", "CANCELLED", "PREEMPTED")
_QUOTED = 200
"""Characters of a line that are quoted."""
_SAID_ALREADY = ("None", "NonZeroExitCode", "RaisedSignal", "OutOfMemory")
"""Reasons that say no more than how the job ended."""

Record = dict[str, Any]


def main(argv: list[str]) -> int:
    return run_command("bireme why", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme why",
        description="Why a job waits and when it starts, why it runs where it does, how it ended; why a service has "
        "fewer ready replicas than it wants.",
    )
    parser.add_argument(
        "job",
        help="job id: 42, an array 42 or a task 42_3; or the name of a service; or pod/NAME, pod/NAMESPACE/NAME",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--quick", action="store_true", help="leave out what would start it sooner")
    given = parser.parse_args(argv)
    params = {"suggestions": 0} if given.quick else None
    if is_service_name(given.job) and not set(given.job) <= set("0123456789"):
        return _why_service(given.job, as_data=given.json, params=params)
    with make_transport() as transport:
        try:
            told = transport.get(_path(given.job), params)
        except ApiError as error:
            if error.code == "ESLURM_INVALID_JOB_ID":
                if given.job.startswith(_POD):
                    raise CommandFailure(
                        f"{given.job} is not in the queue; see `kubectl describe {given.job}`"
                    ) from error
                raise CommandFailure(f"there is no job {given.job}; `sacct` lists those that were") from error
            raise refused_by_daemon("", error) from error
        if not given.quick:
            _diagnose_first(transport, told["jobs"])
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(text_of(visible_values(told), make_stamp("", told["now"]))))
    return 0


def _diagnose_first(transport: Transport, jobs: list[Record]) -> None:
    """Puts a diagnosis to the first that failed, where the caller may see one."""
    failed = (job for job in jobs if "ended" in job and job["state"] not in _NOT_FAILED and job["ended"]["start_time"])
    for job in failed:
        with suppress(ApiError, BiremeUnavailable):
            job["diagnosis"] = transport.get(path_of("jobs", job["job"], "diagnosis"))
        return


def _why_service(name: str, *, as_data: bool, params: dict[str, int] | None) -> int:
    """Of a service; and of the first of its replicas that waits, all that is said of such a job."""
    with make_transport() as transport:
        try:
            told = transport.get(path_of("services", name))
            tails = tails_of(transport, told["service"])
            job = _why_first_waiting(transport, told["service"], params)
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("", error) from error
        router = router_of(transport)
    if as_data:
        more = {} if job is None else {"waiting": job}
        print(json.dumps({"reasons": told["service"]["reasons"], "service": told["service"], **more}, indent=2))
        return 0
    print("\n".join(why_lines(visible_values(told["service"]), told["now"], tails, router)))
    if job is not None:
        print()
        print("\n".join(text_of(visible_values(job), make_stamp("", job["now"]))))
    return 0


def _why_first_waiting(transport: Transport, service: Record, params: dict[str, int] | None) -> Record | None:
    waiting = (each["job_id"] for each in service["reasons"] if each["kind"] == "waiting" and each["job_id"])
    first = next(waiting, None)
    if first is None:
        return None
    try:
        told: Record = transport.get(_path(str(first)), params)
    except ApiError as error:
        if error.code != "ESLURM_INVALID_JOB_ID":
            raise
        return None  # it waits no more
    return told if any("waiting" in job for job in told["jobs"]) else None


def _path(job: str) -> str:
    """The route that explains a job, or a pod as kubectl names it; without a namespace it is in `default`."""
    if not job.startswith(_POD):
        return f"/v1/jobs/{job}/why"
    namespace, _, name = job.removeprefix(_POD).rpartition("/")
    return f"/v1/pods/{namespace or 'default'}/{name}/why"


def text_of(told: Record, stamp: Callable[[float], str]) -> Iterator[str]:
    """The whole answer, as lines."""
    if told.get("outside"):
        yield from _wrapped(f"It waits and is not in the queue: {told['outside']}")
    for number, job in enumerate(told["jobs"]):
        if number:
            yield ""
        yield from _Page(told["now"], stamp).lines(job)
    if told.get("left_out"):
        yield f"\n... and {told['left_out']} more records; ask for one of them, like {told['jobs'][0]['job_id']}_3"


@dataclass(frozen=True, slots=True)
class _Page:
    now: float
    stamp: Callable[[float], str]

    def lines(self, job: Record) -> Iterator[str]:
        kind = next(key for key in ("waiting", "running", "ended") if key in job)
        yield from _wrapped(f'Job {job["job"]} "{job["name"]}" of {job["user"]}: {job["state"]}')
        rows = getattr(self, f"_{kind}")(job)
        yield from _rows(chain(rows, _labelled("Healing", job.get("healed") or ())))

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _waiting(self, job: Record) -> Iterator[tuple[str, str]]:
        told = job["waiting"]
        yield from _labelled("Expected start", self._expected(told))
        yield from _labelled("Blocked by", self._blocks(told))
        if told["sent_back"] is not None:
            yield from _labelled("Before", [self._before(told["sent_back"])])
        yield from _labelled("Place", self._places(told))
        yield from _labelled("Priority", (_priority(each) for each in told["priorities"]))
        if "suggestions" in job:
            yield from _labelled("Sooner", self._sooner(job))

    def _before(self, sent_back: Record) -> str:
        restarts = f" ({counted(sent_back['restarts'], 'restart')})" if sent_back["restarts"] else ""
        return f"{sent_back['text']} {self._when(sent_back['at'])}{restarts}"

    def _expected(self, told: Record) -> Iterator[str]:
        expected = told["expected"]
        start = expected["start"]
        if start is None:
            yield "unknown"
        else:
            yield self._when(start) + (f", on {compress(expected['nodes'])}" if expected["nodes"] else "")
        yield self._how_sure(told)

    def _how_sure(self, told: Record) -> str:
        expected = told["expected"]
        before = expected["slots_before"]
        match expected["certainty"]:
            case "now":
                return "The next look at the queue starts it."
            case "slot":
                ahead = f", behind {counted(before, 'other')} with a slot" if before else ""
                return (
                    f"A slot is booked{ahead}. Sooner if jobs end before their time limits; later only if jobs come "
                    "that go before it, or nodes fail."
                )
            case "theirs" if expected["start"] is None:
                return "Slurm keeps it back for the reason below, and does not say until when."
            case "theirs":
                return "That is when Slurm expects it to start; until then it keeps it back."
            case "preempts":
                return f"It takes the place of {_jobs(expected['preempts'])}, and starts when they are gone."
            case "gated" if [block["reason"] for block in told["blocks"]] == ["BeginTime"]:
                return "It stands in line from its begin time on."
            case "gated" if expected["lifts_at"] is not None:
                by = f", with {_jobs(expected['lifted_by'])}" if expected["lifted_by"] else ""
                return f"What blocks it is over {self._when(expected['lifts_at'])} at the latest{by}."
            case "gated" if any(block["reason"] == "DependencyNeverSatisfied" for block in told["blocks"]):
                return "It never starts like this."
            case "gated":
                return "Nobody can tell before what blocks it has happened."
            case "limited" if expected["lifts_at"] is not None:
                return (
                    f"The limit lets it go {self._when(expected['lifts_at'])} at the latest, with the end of "
                    f"{_jobs(expected['lifted_by'])}, unless others start under it before."
                )
            case "limited":
                return "It starts when enough of what counts against that limit has ended."
            case "blocked":
                return "Nothing that runs will free what it lacks."
            case "strict_order":
                return "The queue is worked off in strict order (sched/builtin): no slots are booked."
            case "not_tested":
                return "It stands too far behind to get a slot now (bf_max_job_test and the like)."
            case "no_time_limit":
                return f"Jobs without a time limit hold what it needs, or go before it: {_jobs(expected['endless'])}."
            case "beyond_window":
                window = format_elapsed(int(expected["window_s"]))
                return f"What it needs is not free within the next {window} (bf_window)."
            case "never_together":
                window = format_elapsed(int(expected["window_s"]))
                return (
                    f"Each of its {told['components']} components would have room within the next {window}, but never "
                    "all of them at one moment: they start together or not at all. Ask for less, or for other nodes."
                )
            case _:
                return "It starts when all of its components fit at once; no slot is booked for that."

    def _blocks(self, told: Record) -> Iterator[str]:
        rooms = {room["partition"]: room for room in told["rooms"]}
        for block in told["blocks"]:
            room = rooms.get(dict(block["facts"]).get("partition"))
            if block["reason"] in ("Resources", "Priority") and room is not None:
                yield f"{block['reason']}: {self._room(room, told.get('components', 1) > 1)}"
            elif block["reason"] == "BeginTime" and (begin := dict(block["facts"]).get("at")):
                yield f"BeginTime: not before {self._when(begin)}"
            else:
                yield f"{block['reason']}: {block['text']}"
        for room in told["rooms"]:
            for closed in room["reserved"]:
                nodes, until = compress(closed["nodes"]), self._when(closed["end"])
                begin = "" if closed["begin"] <= self.now else f" from {self._when(closed['begin'])}"
                yield f"reservation {closed['reservation']} has {nodes}{begin} until {until}"
            yield from room.get("fenced", ())[:_NAMED]
        yield from self._releases(told["expected"])
        if not told["blocks"]:
            yield "nothing: it is about to start"

    def _room(self, room: Record, is_part: bool) -> str:
        """`is_part`: of a heterogeneous job, whose other components need room at the same time."""
        name, able, long_enough = room["partition"], room["nodes_now"], room["nodes_long_enough"]
        text = f"needs {room['needs']}; {counted(able, 'node')} of {name} {_have(able)} that free now"
        if room["nodes_needed"] == 1 and able == 0:
            text = f"needs {room['needs']}; no node of {name} has that free now"
        if able < room["nodes_needed"] and room.get("spare"):
            most = ", ".join(f"{each['free']} of {each['of']} {each['what']}" for each in room["spare"])
            text += f" (on one node at most {most})"
        if long_enough is not None and long_enough < able:
            if long_enough:
                text += f", only {long_enough} of them for all of its time limit: the rest is promised to others"
            else:
                text += ", but promised to others before its time limit would be over"
        elif room["fits_now"]:
            text += ", but not beside its other components" if is_part else ", but promised to others"
        elif is_part:
            text += "; its other components need room at the same moment"
        return text

    def _releases(self, expected: Record) -> Iterator[str]:
        releases = expected["waits_for"]
        if len(releases) > _NAMED:
            yield f"{counted(len(releases) - _NAMED, 'job')} more must end before; the last ones:"
        for each in releases[-_NAMED:]:
            who = f"job {each['job']}" if each["running"] else f"job {each['job']}, which waits too,"
            yield f"{who} frees {compress(each['nodes'])} {self._when(each['at'])} at the latest"

    def _places(self, told: Record) -> Iterator[str]:
        for place in told["places"]:
            aside = f" ({_aside(place['aside'])} for something else)" if place["aside"] else ""
            if not place["position"]:
                are = "is" if place["in_line"] == 1 else "are"
                yield f"not in line; {counted(place['in_line'], 'job')} of partition {place['partition']} {are}"
                continue
            yield f"{_ordinal(place['position'])} of {place['in_line']} in partition {place['partition']}{aside}"
            if place["before"]:
                yield "behind " + self._behind(place)

    def _behind(self, place: Record) -> str:
        nearest = place["before"][-_NAMED:]
        more = place["position"] - 1 - len(nearest)
        words = [_other(each) for each in nearest]
        return ", ".join(words) + (f" and {more} more" if more else "")

    def _sooner(self, job: Record) -> Iterator[str]:
        found = sorted(job["suggestions"], key=lambda each: (not each["starts_now"], each["start"]))
        for each in found:
            when = "now" if each["starts_now"] else self._when(each["start"])
            yield f"{each['what']}: {when}, on {compress(each['nodes'])}"
            if each["command"]:
                yield f"  {each['command']}"
        if not found and job["waiting"]["expected"]["certainty"] == "theirs":
            yield "ask Slurm what its reason means: its limits and reservations are not mirrored, and not tried here"
        elif not found:
            yield "no change that was tried would start it sooner"
        elif any(not each["command"] for each in found):
            yield "Without a command: submit it again like that."
        if not job.get("all_tried", True):
            yield "Not every kind of change was tried: the queue is long."

    # -- running and ended -------------------------------------------------------------------------------------------

    def _running(self, job: Record) -> Iterator[tuple[str, str]]:
        told = job["running"]
        whole = ", whole" if told["whole_nodes"] else ""
        yield "Where", f"{compress(told['nodes'])}{whole}, in partition {told['partition']}"
        yield "Holds", ", ".join(f"{name}={_amount(name, amount)}" for name, amount in told["holds"] if amount)
        if told["leaves"]:
            used, best = len(told["leaves"]), told["fewest_leaves"]
            good = "the fewest possible" if used <= best else f"{best} would be the fewest possible"
            over = (
                f"in {counted(used, 'block')}"
                if told.get("in_blocks")
                else f"under {counted(used, 'switch', 'switches')}"
            )
            yield "Network", f"{over} ({compress(told['leaves'])}); {good}"
        waited = format_elapsed(int(told["waited_s"]))
        yield "Since", f"{self._when(told['started_at'])}, after waiting {waited}"
        for node, images in (told.get("images") or {}).items():
            yield "Waits for", f"its image on {node}: {', '.join(images)}"
        if told["suspended_at"] is not None:
            who = f"for job {told['suspended_for']}" if told["suspended_for"] else "by an operator (scontrol resume)"
            goes_on = "; it goes on by itself when its CPUs are free" if told["suspended_for"] else ""
            yield "Suspended", f"{self._when(told['suspended_at'])}, {who}{goes_on}"
        yield from _wrong(job.get("findings") or ())
        if told.get("idle_notice"):
            yield "Idle", told["idle_notice"]
        if told["checkpointed_at"] is not None:
            yield "Checkpoint", f"{self._when(told['checkpointed_at'])}: what it did before is saved"
        if (found := told.get("checkpoint")) is not None:
            yield from _labelled("Goes on", _of_checkpoint(found))
        if told.get("sent_back"):
            yield "Before", self._before(told["sent_back"])
        displaced = told["displaced"]
        yield "Displaced", _jobs(displaced) if displaced else "no job"
        ends = told["ends_at"]
        yield "Ends", "by itself: it has no time limit" if ends is None else f"{self._when(ends)} at the latest"

    def _ended(self, job: Record) -> Iterator[tuple[str, str]]:
        told = job["ended"]
        yield "How", told["text"]
        more = (each for each in told.get("reasons") or () if each["kind"] not in _SAID_ALREADY)
        for text in (each["text"] for each in more):
            yield "" if told["start_time"] is not None else "Waited for", text
        yield "Exit code", f"{told['exit_code'] or 0}:{told['exit_signal'] or 0}"
        if told["start_time"] is not None:
            limit = told["time_limit_s"]
            of = "" if limit is None else f" of {format_elapsed(int(limit))} allowed"
            yield "Ran", f"{format_elapsed(int(told['elapsed_s'] or 0))}{of}, on {told['node_list']}"
        yield "Ended", self._when(min(told["end_time"], self.now), is_past=True)
        if told["std_out"] and told["start_time"] is not None:
            yield "Output", told["std_out"]
            if told["std_err"] not in ("", None, told["std_out"]):
                yield "Errors", told["std_err"]
            yield "", f"bireme logs -n 20 {job['job']}"
        if "diagnosis" in job:
            yield from self._diagnosed(job["job"], job["diagnosis"])

    def _diagnosed(self, job: str, told: Record) -> Iterator[tuple[str, str]]:
        sure = "not explained" if told["confidence"] == "none" else f"confidence: {told['confidence']}"
        yield "Cause", f"{told['title']} ({sure}). {told['summary']}"
        for quoted in told["evidence"][:1]:
            place = f"{quoted['file']}:{quoted['line']}" if quoted["line"] else quoted["file"] or quoted["source"]
            yield "Seen in", f"{place}:"
            yield "", f"  {quoted['text'][:_QUOTED]}"
        yield from _labelled("Do", told["actions"][:2])
        yield "", f"bireme diagnose {job} tells more."

    def _when(self, at: float, *, is_past: bool = False) -> str:
        away = round(at - self.now)
        words = f"in {format_elapsed(away)}" if away >= 0 and not is_past else f"{format_elapsed(-away)} ago"
        return f"{self.stamp(at)} ({words})"


# -- words -----------------------------------------------------------------------------------------------------------


def _wrong(findings: Iterable[Record]) -> Iterator[tuple[str, str]]:
    """What is found about the job and where it runs."""
    label = "Wrong"
    for found in findings:
        yield label, f"{found['title']} ({found['gravity']}, {where_of(found)}): bireme findings show {found['id']}"
        label = ""


def _of_checkpoint(found: Record) -> Iterator[str]:
    """Where it goes on if it is started again, and what newer ones are no good."""
    step = "" if found["step"] is None else f" (step {found['step']})"
    yield f"from {found['path']}{step} if it is started again"
    yield from (f"not from {text}" for text in found["passed_over"][:2])


def _labelled(label: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        yield label, text
        label = ""


def _rows(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    for label, text in rows:
        yield from _wrapped(text, f"{label:<{LABEL}}", " " * LABEL)


def _wrapped(text: str, first: str = "", then: str = "") -> list[str]:
    body = text.lstrip()
    indent = " " * (len(text) - len(body))
    if body.startswith("scontrol "):  # a command must stay in one piece to be copied
        return [f"{first}{indent}{body}"]
    return textwrap.wrap(
        body, WIDTH, initial_indent=first + indent, subsequent_indent=then + indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _priority(told: Record) -> str:
    if told["set_by_operator"]:
        return f"{told['value']}, set by an operator"
    if not told["parts"]:
        return f"{told['value']} (priority/basic: first come, first served)"
    summands = " + ".join(f"{each['name']} {each['value']:.0f}" for each in told["parts"])
    return f"{told['value']} in {told['partition']} = {summands}".replace("+ nice -", "- nice ")


def _other(told: Record) -> str:
    return told["job"] if told["job"] == "?" else f"{told['job']} ({told['user']}, {told['name']})"


def _jobs(labels: list[str]) -> str:
    shown = ", ".join(labels[:_NAMED])
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return f"job{'s' * (len(labels) > 1)} {shown}{more}"


def _amount(tres: str, amount: int) -> str:
    return format_memory(amount) if tres == "mem" else str(amount)


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _aside(count: int) -> str:
    return "1 more is held or waits" if count == 1 else f"{count} more are held or wait"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
