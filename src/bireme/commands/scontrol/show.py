"""`scontrol show ...`: fetches records and prints them in full, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bireme.commands import reports
from bireme.commands.paths import path_of
from bireme.commands.scontrol import local, reservations
from bireme.commands.scontrol.session import Session
from bireme.commands.surroundings import around
from bireme.core.model.cluster import ClusterConfig, NodeConfig
from bireme.slurm.conf.show import DaemonFacts, render_config
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.filenames import NO_TASK
from bireme.slurm.formats.identity import expand_tasks, label_in_steps, parse_selector
from bireme.slurm.formats.show.association_manager import manager_lines
from bireme.slurm.formats.show.cluster import node_block, partition_block, topology_lines
from bireme.slurm.formats.show.job import block_text, job_block, step_block
from bireme.slurm.formats.values import long_duration
from bireme.slurm.hostlist import expand
from bireme.slurm.json_shapes.envelope import dump, envelope
from bireme.slurm.json_shapes.jobs import job_shape, latest_pass
from bireme.slurm.json_shapes.nodes import node_shape, partition_shape
from bireme.slurm.version import SLURM_VERSION

_Shower = Callable[[Session, list[str]], int]
LOAD_JOBS = "slurm_load_jobs error"


def show(session: Session, words: list[str]) -> int:
    """`show ENTITY [ID]` or `show ENTITY=ID`; the entity may be shortened."""
    if not words:
        raise reports.CommandError("too few arguments for keyword:show")
    name, equals, value = words[0].partition("=")
    ids = ([value] if equals else []) + words[1:]
    shower = _shower(name.lower())
    if shower is None:
        raise reports.CommandError(f"invalid entity:{words[0]} for keyword:show ")
    return shower(session, ids)


def _shower(name: str) -> _Shower | None:
    exact = _ENTITIES.get(name)
    if exact is not None:
        return exact
    return next((_ENTITIES[entity] for entity in _ENTITIES if name and entity.startswith(name)), None)


def _print_blocks(session: Session, blocks: Iterable[Sequence[str]]) -> None:
    for block in blocks:
        reports.write(block_text(block, oneliner=session.oneliner))


def _print_data(session: Session, body: dict[str, Any], **times: float) -> int:
    """`times`: when what is shown was looked at, as Slurm says it behind the records."""
    whole = {name: int(at) for name, at in times.items()}
    reports.write(dump(envelope("scontrol", body, whole), yaml=session.has("yaml")))
    return 0


def jobs(session: Session, ids: list[str]) -> int:
    if not ids:
        answer = session.get("/v1/jobs", LOAD_JOBS)
    else:
        selector = _selector(ids[0], parse_selector)
        answer = session.get(path_of("jobs", selector.job_id), LOAD_JOBS)
        answer["jobs"] = [job for job in answer["jobs"] if selector.matches(job)]
        if not answer["jobs"]:
            reports.say(f"Job {ids[0]} not found")  # where Slurm says it
            return 1
        if len(selector.tasks) == 1:  # one task of those that still wait under one record
            answer["jobs"] = [_as_task(job, selector.tasks[0], expand_tasks) for job in answer["jobs"]]
    if session.wants_data:
        nodes = {node["name"]: node for node in session.get("/v1/nodes", LOAD_JOBS)["nodes"]}
        reports.keep_few_shapes(answer["jobs"])
        shapes = [job_shape(job, nodes) for job in answer["jobs"]]
        times = {"last_backfill": latest_pass(answer["jobs"]), "last_update": answer.get("now") or 0}
        return _print_data(session, {"jobs": shapes}, **times)
    if not answer["jobs"]:
        reports.say("No jobs in the system")
        return 0
    context = session.context(answer)
    _print_blocks(session, (job_block(job, context, details=session.has("details")) for job in answer["jobs"]))
    return 0


def _as_task(job: dict[str, Any], task: int, expand: Callable[[str], list[int]]) -> dict[str, Any]:
    waits = job.get("array_task_id") is None and task in expand(job.get("array_tasks") or "")
    if not waits:
        return job

    named = {name: job[name] for name in ("std_in", "std_out", "std_err") if job.get(name)}
    files = {name: path.replace(str(NO_TASK), str(task)) for name, path in named.items()}
    return {**job, **files, "array_task_id": task, "array_tasks": ""}


def _selector(text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except SlurmSyntaxError:
        raise reports.CommandError("scontrol_print_job error: Invalid job id specified") from None


def steps(session: Session, ids: list[str]) -> int:
    what = "slurm_get_job_steps error"
    selector = _selector(ids[0], parse_selector) if ids else None
    answer = session.get(path_of("jobs", selector.label) if selector else "/v1/jobs", what)
    context = session.context(answer)
    blocks: list[list[str]] = []
    found: list[dict[str, Any]] = []
    for job in answer["jobs"]:
        if job["state"] not in ("RUNNING", "SUSPENDED", "COMPLETING"):
            continue
        for step in session.get(path_of("jobs", job["job_id"], "steps"), what)["steps"]:
            if step["job_id"] != job["job_id"] or step.get("state") not in ("RUNNING", "STARTING", "SUSPENDED"):
                continue
            if selector is None or selector.step in (None, str(step["step_id"])):
                found.append(step)
                blocks.append(step_block(step, context, f"{label_in_steps(job)}.{step['step_id']}"))
    if session.wants_data:
        return _print_data(session, {"steps": found})
    if not blocks:
        if selector is not None and selector.step is not None:
            raise reports.CommandError(f"Job step {ids[0]} not found")
        reports.say("No job steps in the system")
        return 0
    _print_blocks(session, blocks)
    return 0


def nodes(session: Session, ids: list[str]) -> int:
    answer = session.get("/v1/nodes", "slurm_load_node error")
    known = {node["name"]: node for node in answer["nodes"]}
    names = list(dict.fromkeys(expand(",".join(ids)))) if ids and ids[0].upper() != "ALL" else list(known)
    code, found = 0, []
    for name in names:
        if name in known:
            found.append(known[name])
        else:
            reports.say(f"Node {name} not found")
            code = 1
    if session.wants_data:
        return _print_data(session, {"nodes": [node_shape(node) for node in found]}, last_update=answer.get("now") or 0)
    context = session.context(answer)
    _print_blocks(session, (node_block(node, context, details=session.has("details")) for node in found))
    return code


def partitions(session: Session, ids: list[str]) -> int:
    answer = session.get("/v1/partitions", "slurm_load_partitions error")
    chosen = [
        partition
        for partition in answer["partitions"]
        if (partition["name"] in ids[0].split(",") if ids else session.has("all") or not partition.get("hidden"))
    ]
    if ids and not chosen:
        reports.say(f"Partition {ids[0]} not found")
        return 1
    if session.wants_data:
        shapes = [partition_shape(partition) for partition in chosen]
        return _print_data(session, {"partitions": shapes}, last_update=answer.get("now") or 0)
    context = session.context(answer)
    _print_blocks(session, (partition_block(partition, context) for partition in chosen))
    return 0


def topology(session: Session, ids: list[str]) -> int:
    lines = topology_lines(session.get("/v1/topology", "slurm_load_topo error"), ids[0] if ids else "")
    if not lines and ids:
        reports.tell(f"scontrol: error: Topology information contains no switch or node named {ids[0]}")
    elif not lines:
        reports.tell("scontrol: error: No topology information available")
    reports.show(lines)
    return 0


def config(session: Session, ids: list[str]) -> int:
    """slurm.conf with Slurm's defaults, then what `bireme.toml` says."""
    answer = session.get("/v1/config", "slurm_load_ctl_conf error")
    alive = session.get("/v1/ping", "slurm_load_ctl_conf error")
    hosts = session.get("/v1/nodes", "slurm_load_ctl_conf error", {"fields": "name,hostname,cpus"})["nodes"]
    made = ClusterConfig(
        name=answer["cluster"],
        source=answer.get("source") or "",
        raw={"ClusterName": answer["cluster"], **answer["raw"]},
        nodes=tuple(NodeConfig(name=n["name"], cpus=n["cpus"], hostname=n.get("hostname") or "") for n in hosts),
    )
    context = session.context(alive)
    facts = DaemonFacts(
        now=context.stamp(context.now),
        boot_time=context.stamp(alive.get("up_since") or context.now),
        next_job_id=answer.get("next_job_id") or 1,
        version=SLURM_VERSION,
    )
    reports.write(render_config(made, facts))
    extra = answer.get("bireme") or {}
    if extra:
        reports.show(["", "Bireme Configuration:", *(f"{key:<23} = {value}" for key, value in sorted(extra.items()))])
    reports.say(f"\nSlurmctld(primary) at {around().host} is UP")
    return 0


def aliases(session: Session, ids: list[str]) -> int:
    """Node names of a host; of this one when none is named."""
    host = ids[0] if ids else around().host
    answer = session.get("/v1/nodes", "slurm_load_node error", {"fields": "name,hostname"})
    reports.say(" ".join(node["name"] for node in answer["nodes"] if host in (node.get("hostname"), node["name"])))
    return 0


def completing(session: Session, words: list[str]) -> int:
    """`scontrol completing`: jobs whose nodes are being cleared."""
    answer = session.get("/v1/jobs", LOAD_JOBS, {"state": "COMPLETING"})
    context = session.context(answer)
    for job in answer["jobs"]:
        if job["state"] != "COMPLETING":
            continue
        end = job.get("end_time") or context.now
        reports.say(
            f"JobId={job['job_id']} EndTime={context.stamp(end)} "
            f"CompletingTime={_clock(context.now - end)} Nodes(COMPLETING)={job.get('node_list')}"
        )
    return 0


def _clock(seconds: float) -> str:
    return long_duration(max(0, seconds))


def _nothing(text: str, named: str = "") -> _Shower:
    """Things Slurm has and this cluster has none of. `named`: what is said, with exit code 1, when one is asked for."""

    def shower(session: Session, ids: list[str]) -> int:
        if ids and named:
            reports.say(named.format(ids[0]))
            return 1
        if text:
            reports.say(text)
        return 0

    return shower


def licences(session: Session, ids: list[str]) -> int:
    found = session.get("/v1/licenses", "slurm_load_licenses error")["licenses"]
    if session.wants_data:
        return _print_data(session, {"licenses": [licence_shape(each) for each in found]})
    if not found:
        reports.say("No licenses configured in Slurm.")
        return 0
    wanted = [each for each in found if not ids or each["name"] == ids[0]]
    join = " " if session.oneliner else "\n    "
    for each in wanted:
        counts = f"Total={each['total']} Used={each['used']} Free={each['free']} Reserved=0 Remote=no"
        reports.say(f"LicenseName={each['name']}{join}{counts}")
    return 0


def licence_shape(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "LicenseName": record["name"],
        "Total": record["total"],
        "Used": record["used"],
        "Free": record["free"],
        "Remote": False,
        "Reserved": 0,
    }


def slurmd(session: Session, ids: list[str]) -> int:
    """The nodes on this machine and whether they answer."""
    answer = session.get("/v1/nodes", "slurm_load_slurmd_status")
    context = session.context(answer)
    for node in answer["nodes"]:
        up = node.get("up_since")
        reports.say(f"NodeName                = {node['name']}")
        reports.say(f"Boot time               = {context.stamp(up) if up else 'None'}")
        reports.say(f"Hostname                = {node.get('hostname')}")
        reports.say(f"Actual CPUs             = {node.get('cpus')}")
        reports.say(f"Actual real memory      = {node.get('memory_mib')} MB")
        reports.say(f"Version                 = {node.get('version')}\n")
    return 0


def association_manager(session: Session, words: list[str]) -> int:
    """`users=`, `accounts=`, `qos=` name whom to show, `flags=` which kinds of records."""
    named: dict[str, list[str]] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key.lower() not in ("users", "accounts", "qos", "flags"):
            raise reports.CommandError(f"invalid option:{word} for assoc_mgr: users=, accounts=, qos=, flags=")
        named[key.lower()] = [each for each in value.lower().split(",") if each]
    answer = session.get("/v1/accounting/manager", "slurm_load_assoc_mgr_info error")
    kinds = [flag for flag in named.pop("flags", []) if flag != "all"]
    reports.say("\n".join(manager_lines(answer, kinds, named, _uid_of)))
    return 0


def _uid_of(user: str) -> int:
    """Slurm shows 4294967294 for a user that this machine does not know."""
    uid = around().user_id(user)
    return 0xFFFFFFFE if uid is None else uid


_ENTITIES: dict[str, _Shower] = {
    "jobs": jobs,
    "jobid": jobs,
    "nodes": nodes,
    "nodename": nodes,
    "partitions": partitions,
    "partitionname": partitions,
    "config": config,
    "hostnames": local.show_hostnames,
    "hostlist": local.show_hostlist,
    "hostlistsorted": local.show_hostlist_sorted,
    "steps": steps,
    "stepid": steps,
    "topology": topology,
    "daemons": local.show_daemons,
    "aliases": aliases,
    "licenses": licences,
    "reservations": reservations.show,
    "federation": _nothing(""),
    "frontend": _nothing("No nodes in the system"),
    "assoc_mgr": association_manager,
    "bbstat": _nothing(""),
    "burstbuffer": _nothing("No burst buffers"),
    "dwstat": _nothing(""),
    "slurmd": slurmd,
}
"""In the order in which a shortened name is looked up."""
