"""The flags of a service: one row for each, in the order in which help, documentation and `explain` show them.

A row says the flag's name, how its value is written and read, the field of ServiceSpec that it fills (`place`), its
default, and a sentence. `reading` finds them in scripts and on command lines; `building` makes a ServiceSpec of them;
`tests/unit/slurm/test_serving_flags.py` holds the defaults to those of the fields, and docs/services.md to this table.
Invariant: none has the name of an option of sbatch: the two are read from one command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.model.serving.scaling import Measure
from bireme.core.scaling.checking import MOST_REPLICAS
from bireme.slurm.options.catalogue.table import Arity, Command, Kind, Option
from bireme.slurm.serving import values as v


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag of `bireme serve`, and the `#BIREME` line that says the same: a row of the table."""

    name: str
    argument: str
    """How the value is written, for help."""
    read: v.Reader
    section: str
    summary: str
    place: str = ""
    """The field of ServiceSpec, through its parts: `scaling.idle_s`. Empty: `building` says what becomes of it."""
    default: str = ""
    """As one would write it; empty where there is none."""
    many: bool = False
    """Every occurrence counts, not the last one alone; those of the command line replace the script's."""


SERVICE, PROBES, SCALING, ROUTING, UPDATES = "The service", "Probes", "Scaling", "Requests", "Updates"

FLAGS = (
    Flag(
        name="name", argument="NAME", read=v.service_name, section=SERVICE, default="the script's file name",
        summary="What it is called: in its address, in squeue, in every command. The same name again is an update.",
    ),
    Flag(
        name="replicas", argument="N|MIN-MAX", read=v.replicas, section=SERVICE, default="1",
        summary="So many replicas; or as many as the load needs, within these bounds. From 0 it sleeps when idle.",
    ),
    Flag(
        name="health", argument="PATH", read=v.path_question, section=PROBES,
        summary="A replica can take requests when GET of this path answers 200 to 399: startup and readiness at once.",
        default="its port takes connections",
    ),
    Flag(
        name="startup", argument="PROBE", read=v.probe_needed, section=PROBES, default="as --health, period=1s",
        summary="Has it started? Nothing else is asked before.",
    ),
    Flag(
        name="startup-timeout", argument="TIME", read=v.duration(1.0), section=PROBES, default="30m",
        summary="So long a replica may load; then it is ended and counts as crashed.",
    ),
    Flag(
        name="readiness", argument="PROBE", read=v.probe_needed, section=PROBES, default="as --health, period=2s",
        summary="Can it take requests now? While not, it gets none.",
    ),
    Flag(
        name="liveness", argument="PROBE|none", read=v.question, section=PROBES, default="none",
        summary="Is it alive? When it has failed often enough, the replica is ended and replaced.",
    ),
    Flag(
        name="target-concurrency", argument="N", read=v.per_replica(Measure.CONCURRENCY), section=SCALING,
        summary="One replica for so many requests in flight or queued.",
        default="without any target 16, or 0.7 of --max-concurrency",
    ),
    Flag(
        name="target-rps", argument="N", read=v.per_replica(Measure.RATE), section=SCALING,
        summary="One replica for so many requests a second.",
    ),
    Flag(
        name="target", argument="METRIC=N", read=v.metric_target, section=SCALING, many=True,
        summary="One replica for so much of a metric that the replicas export: vllm:num_requests_waiting=4.",
    ),
    Flag(
        name="query", argument="PROMQL=N", read=v.query_target, section=SCALING, many=True,
        summary="One replica for so much of what a Prometheus query answers.",
    ),
    Flag(
        name="at", argument="'DAYS TIME BOUNDS'", read=v.shift, section=SCALING, many=True, place="scaling.shifts",
        summary="Other bounds from a time on: 'Mon-Fri 08:00 min=4', 'daily 20:00 min=0 max=2'.",
    ),
    Flag(
        name="stable-window", argument="TIME", read=v.duration(1.0), section=SCALING, default="60s",
        place="scaling.stable_window_s", summary="The load is averaged over so long.",
    ),
    Flag(
        name="panic-window", argument="TIME", read=v.duration(1.0), section=SCALING, default="6s",
        place="scaling.panic_window_s", summary="Bursts are seen in this shorter window.",
    ),
    Flag(
        name="panic-threshold", argument="N", read=v.number(1.0), section=SCALING, default="2",
        place="scaling.panic_threshold",
        summary="A burst: the short window asks for so many times the replicas that are ready; then none goes.",
    ),
    Flag(
        name="up-rate", argument="N", read=v.number(1.0, above=True), section=SCALING, default="1000",
        place="scaling.up_rate", summary="At most so many times as many replicas at once.",
    ),
    Flag(
        name="down-rate", argument="N", read=v.number(1.0, above=True), section=SCALING, default="2",
        place="scaling.down_rate", summary="At most divided by this at once.",
    ),
    Flag(
        name="down-delay", argument="TIME", read=v.duration(), section=SCALING, default="5m",
        place="scaling.down_delay_s", summary="It gets fewer only when it has needed no more for so long.",
    ),
    Flag(
        name="idle", argument="TIME", read=v.duration(), section=SCALING, default="5m",
        place="scaling.idle_s", summary="Without a request for so long it goes to none, where --replicas begins at 0.",
    ),
    Flag(
        name="standby", argument="N", read=v.whole(0, MOST_REPLICAS), section=SCALING, default="0",
        place="scaling.standby", summary="So many replicas more than the load needs are kept ready.",
    ),
    Flag(
        name="max-concurrency", argument="N", read=v.whole(1), section=ROUTING,
        place="routing.max_concurrency", summary="Requests that one replica has at once; the others wait in the queue.",
        default="no limit",
    ),
    Flag(
        name="queue", argument="N", read=v.whole(0, 1_000_000), section=ROUTING, default="1000",
        place="routing.queue_limit", summary="So many requests may wait; the next one is answered with 503.",
    ),
    Flag(
        name="queue-timeout", argument="TIME", read=v.duration(0.1), section=ROUTING, default="10m",
        place="routing.queue_timeout_s", summary="A request waits so long for a replica, also for the first one.",
    ),
    Flag(
        name="connect-timeout", argument="TIME", read=v.duration(0.01), section=ROUTING, default="5s",
        place="routing.connect_timeout_s", summary="So long until some replica has taken the connection.",
    ),
    Flag(
        name="first-byte-timeout", argument="TIME", read=v.duration(0.1), section=ROUTING, default="10m",
        place="routing.first_byte_timeout_s", summary="From the whole request to the first byte of the answer.",
    ),
    Flag(
        name="idle-timeout", argument="TIME", read=v.duration(0.1), section=ROUTING, default="5m",
        place="routing.idle_timeout_s", summary="Between two pieces of a body or of an answer.",
    ),
    Flag(
        name="timeout", argument="TIME|none", read=v.duration_or_none, section=ROUTING, default="none",
        place="routing.total_timeout_s", summary="A whole request.",
    ),
    Flag(
        name="affinity-header", argument="NAME", read=v.header, section=ROUTING, place="routing.affinity_header",
        summary="Requests with the same value of this header go to one replica while its load is near the others'.",
    ),
    Flag(
        name="affinity-cookie", argument="NAME", read=v.header, section=ROUTING, place="routing.affinity_cookie",
        summary="The same by a cookie.",
    ),
    Flag(
        name="model", argument="NAME", read=v.model, section=ROUTING, many=True, place="routing.models",
        summary="Requests to /v1/... find the service by this name too, besides its own.",
    ),
    Flag(
        name="host", argument="NAME", read=v.host, section=ROUTING, many=True, place="routing.hosts",
        summary="All requests to this host name are for this service. For operators, and names in router.hosts.",
    ),
    Flag(
        name="body-limit", argument="SIZE|none", read=v.size, section=ROUTING, default="none",
        place="routing.body_limit", summary="The largest body of a request.",
    ),
    Flag(
        name="surge", argument="N|N%", read=v.amount, section=UPDATES, default="1", place="updating.surge",
        summary="During an update there may be so many more replicas than wanted.",
    ),
    Flag(
        name="unavailable", argument="N|N%", read=v.amount, section=UPDATES, default="0", place="updating.unavailable",
        summary="During an update there may be so many fewer ready ones than wanted.",
    ),
    Flag(
        name="ready-within", argument="TIME", read=v.duration(1.0), section=UPDATES, default="40m",
        place="updating.ready_within_s",
        summary="A revision that makes no progress for so long is given up, and the one before comes back.",
    ),
    Flag(
        name="canary", argument="N%", read=v.percent, section=UPDATES, place="updating.canary_percent",
        summary="Only this part of the requests goes to the new revision, until `promote` or `rollback`.",
    ),
    Flag(
        name="drain", argument="TIME", read=v.duration(), section=UPDATES, default="60s", place="drain_s",
        summary="A replica that is to go finishes its requests, for so long at most.",
    ),
)  # fmt: skip

BY_NAME = {flag.name: flag for flag in FLAGS}
SECTIONS = (SERVICE, PROBES, SCALING, ROUTING, UPDATES)

AS_OPTIONS = tuple(
    Option(
        name=flag.name,
        arity=Arity.REQUIRED,
        argument=flag.argument,
        kind=Kind.TEXT,
        commands=frozenset({Command.SBATCH}),
        variables={},
        summary=flag.summary,
        section=flag.section,
    )
    for flag in FLAGS
)
"""The same as rows of sbatch's catalogue: what a command line is read with (`reading`)."""
