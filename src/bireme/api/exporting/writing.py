"""The page itself: families of samples from what was taken. Runs in a thread, and lets the loop have its turn.

How many samples there are is bounded, whatever users do: a series of its own has a GPU (times its metrics), a node, a
service, a job that holds resources (six, of at most MOST_JOBS jobs), a user in an account that has jobs (at most
MOST_USERS). Waiting jobs are counted, by partition and by reason; ended ones by how they ended.
Who may see what is `api/privacy`'s: jobs, users and services of others are left out where PrivateData says so, and so
is everything that names a node.

Invariant: what was left out for being too many is told (`bireme_jobs_unlisted`, `bireme_users_unlisted`).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from bireme.api.exporting.taken import Taken
from bireme.core.jobs.states import NOT_CONSIDERED, phase_state
from bireme.core.model.jobs import HOLDING, ArrayWaiting, Job, Pending, Suspended
from bireme.core.model.nodes import Health, Node
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.telemetry.exported import tell_hardware
from bireme.exposition import Page

MOST_JOBS = 5_000
MOST_USERS = 2_000
_BREATH = 1_000
"""After so many jobs the loop may have its turn."""
OF_USERS = ("jobs", "users", "usage", "accounts")
"""Words of PrivateData that what one user has falls under."""

Figures = Mapping[int, Mapping[str, float]]
"""By job: what its tasks do."""


def write(taken: Taken, figures: Callable[[], Figures]) -> str:
    """`figures`: what is measured of jobs' tasks, asked for here, beside the loop."""
    page = Page()
    _about(page, taken)
    _queue(page, taken)
    _scheduler(page, taken)
    _users(page, taken)
    _jobs(page, taken, figures())
    _nodes(page, taken)
    _services(page, taken)
    _gpu_jobs(page, taken)
    _findings(page, taken)
    _healings(page, taken)
    if not taken.viewer.hidden("nodes"):
        tell_hardware(page, taken.measured)
        what = "The time of the newest round of figures that a machine told."
        told = (({"node": one.node}, one.at) for one in taken.rounds if one.at is not None)
        page.tell("bireme_latest_round_timestamp_seconds", "gauge", what, told)
    return page.text() + ("" if taken.viewer.hidden("jobs") else taken.router_page)


def _in_breaths(jobs: Iterable[Job]) -> Iterable[Job]:
    for no, job in enumerate(jobs):
        if no % _BREATH == 0:
            time.sleep(0)  # a thread that only computes would keep the loop waiting for its turn
        yield job


def _held(job: Job) -> Allocation | None:
    """What it has. Its phase is read once: on the loop it may become another at any moment."""
    phase = job.phase
    return phase.allocation if isinstance(phase, HOLDING) else None


def _tasks(job: Job) -> int:
    """How many wait in its record."""
    array = job.array
    return len(array.waiting) if isinstance(array, ArrayWaiting) else 1


def _about(page: Page, taken: Taken) -> None:
    who = {"cluster": taken.cluster, "engine": taken.engine, "version": taken.version}
    page.tell("bireme_info", "gauge", "The cluster, its engine and the release of the daemon.", [(who, 1)])
    what = "When this daemon started."
    page.tell("bireme_start_time_seconds", "gauge", what, [({}, taken.up_since)])
    what = "1: this part does not work; `bireme status` says why."
    page.tell("bireme_problem", "gauge", what, (({"part": part}, is_so) for part, is_so in taken.problems.items()))
    page.tell("bireme_events_total", "counter", "Events in the journal.", [({}, taken.events)])


def _queue(page: Page, taken: Taken) -> None:
    states: Counter[tuple[str, str]] = Counter()
    waiting: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    named = not taken.viewer.hidden("partitions")
    for job in _in_breaths(taken.pending):
        phase = job.phase
        if not isinstance(phase, Pending):
            continue  # it was started meanwhile
        partition = job.spec.partitions[0] if named and job.spec.partitions else ""
        tasks = _tasks(job)
        states["PENDING", partition] += tasks
        verdict = taken.verdicts.get(job.id)
        reasons = (verdict.reasons if verdict else phase.reasons) or NOT_CONSIDERED
        waiting[reasons[0].kind.value] += tasks
        if phase.free_to_go and phase.eligible_at is not None:
            oldest[partition] = min(oldest.get(partition, taken.now), phase.eligible_at)
    for job in _in_breaths(taken.holding):
        held = _held(job)
        states[phase_state(job.phase), held.partition if named and held is not None else ""] += 1
    what = "Jobs and waiting tasks of arrays that are not over, by state and partition (the first that a job names)."
    page.tell("bireme_jobs", "gauge", what, (({"state": s, "partition": p}, n) for (s, p), n in sorted(states.items())))
    what = "Jobs and tasks of arrays that wait, by the first of their reasons."
    page.tell("bireme_jobs_waiting", "gauge", what, (({"reason": why}, n) for why, n in sorted(waiting.items())))
    what = "How long the job that could have begun first has waited since then."
    samples = (({"partition": name}, round(taken.now - at, 3)) for name, at in sorted(oldest.items()))
    page.tell("bireme_queue_longest_wait_seconds", "gauge", what, samples)
    page.tell("bireme_jobs_submitted_total", "counter", "Jobs that were accepted.", [({}, taken.submitted)])
    what = "Starts of jobs since this daemon started."
    page.tell("bireme_jobs_started_total", "counter", what, [({}, taken.ended.started)])
    what = "Runs of jobs that ended, by how, and jobs cancelled while they waited, since this daemon started."
    ended = (({"state": state}, n) for state, n in sorted(taken.ended.by_state.items()))
    page.tell("bireme_jobs_ended_total", "counter", what, ended)


def _scheduler(page: Page, taken: Taken) -> None:
    if taken.planned_at is not None:
        what = "When the latest pass looked at the queue."
        page.tell("bireme_scheduler_latest_pass_timestamp_seconds", "gauge", what, [({}, taken.planned_at)])
    work = taken.work
    if work is None:
        return
    page.tell("bireme_scheduler_passes_total", "counter", "Passes over the queue.", [({}, work.passes)])
    what = "Time that passes over the queue took."
    page.tell("bireme_scheduler_pass_seconds_total", "counter", what, [({}, round(work.passing_s, 6))])
    what = "How long the latest pass over the queue took."
    page.tell("bireme_scheduler_latest_pass_seconds", "gauge", what, [({}, round(work.latest_pass_s, 6))])
    page.tell("bireme_journal_commits_total", "counter", "Groups of events written.", [({}, work.commits)])
    what = "Time that groups of events took until they were on disk."
    page.tell("bireme_journal_commit_seconds_total", "counter", what, [({}, round(work.committing_s, 6))])


def _users(page: Page, taken: Taken) -> None:
    jobs: Counter[tuple[str, str, str]] = Counter()
    cpus: Counter[tuple[str, str]] = Counter()
    gpus: Counter[tuple[str, str]] = Counter()
    for job in _in_breaths(taken.pending):
        jobs[job.spec.owner.user, job.spec.account, "PENDING"] += _tasks(job)
    for job in _in_breaths(taken.holding):
        who = (job.spec.owner.user, job.spec.account)
        jobs[(*who, phase_state(job.phase))] += 1
        if (held := _held(job)) is not None:
            cpus[who] += held.cpus
            gpus[who] += sum(map(_gpus, held.shares))
    seen = {who for who in {key[:2] for key in jobs} if taken.viewer.sees_user(*who, *OF_USERS)}
    listed = sorted(seen, key=lambda who: (-gpus[who], -cpus[who], who))[:MOST_USERS]
    what = "Jobs (and waiting tasks of arrays) of a user in an account, by state."
    chosen = set(listed)
    mine = ((key, n) for key, n in sorted(jobs.items()) if key[:2] in chosen)
    page.tell("bireme_user_jobs", "gauge", what, (({"user": u, "account": a, "state": s}, n) for (u, a, s), n in mine))
    what = "CPUs that jobs of a user in an account hold."
    page.tell("bireme_user_cpus", "gauge", what, (({"user": u, "account": a}, cpus[u, a]) for u, a in listed))
    what = "GPUs that jobs of a user in an account hold."
    page.tell("bireme_user_gpus", "gauge", what, (({"user": u, "account": a}, gpus[u, a]) for u, a in listed))
    what = f"Users in accounts with jobs beyond the {MOST_USERS:,} that are listed."
    page.tell("bireme_users_unlisted", "gauge", what, [({}, len(seen) - len(listed))])


def _jobs(page: Page, taken: Taken, figures: Figures) -> None:
    seen = [job for job in taken.holding if taken.viewer.sees_job(job.spec.owner.uid, job.spec.account)]
    seen.sort(key=lambda job: job.id)
    info = page.family("bireme_job_info", "gauge", "A job that holds resources: whose, where, and what it is called.")
    started = page.family("bireme_job_start_time_seconds", "gauge", "When a job started.")
    cpus = page.family("bireme_job_cpus", "gauge", "CPUs that a job holds.")
    gpus = page.family("bireme_job_gpus", "gauge", "GPUs that a job holds.")
    busy = page.family("bireme_job_cpus_busy", "gauge", "CPUs that a job's processes keep busy.")
    memory = page.family("bireme_job_memory_bytes", "gauge", "Resident memory of a job's processes.")
    named = not taken.viewer.hidden("partitions")
    for job in _in_breaths(seen[:MOST_JOBS]):
        held, spec = _held(job), job.spec
        if held is None:
            continue
        labels = {"job_id": job.id}
        whose = {"user": spec.owner.user, "account": spec.account, "qos": spec.qos, "name": spec.name}
        info.add(1, {**labels, **whose, "partition": held.partition if named else ""})
        if (began := getattr(job.phase, "started_at", None)) is not None:
            started.add(began, labels)
        cpus.add(held.cpus, labels)
        gpus.add(sum(map(_gpus, held.shares)), labels)
        measured = figures.get(job.id, {})
        if "cpu_user" in measured:
            busy.add(round(measured["cpu_user"] + measured.get("cpu_system", 0.0), 3), labels)
        if "memory" in measured:
            memory.add(measured["memory"] * 1024 * 1024, labels)
    what = f"Jobs that hold resources beyond the {MOST_JOBS:,} that are listed."
    page.tell("bireme_jobs_unlisted", "gauge", what, [({}, max(0, len(seen) - MOST_JOBS))])


def _gpus(share: NodeShare) -> int:
    return share.gres_count("gpu")


def _nodes(page: Page, taken: Taken) -> None:
    cpus: dict[str, int] = defaultdict(int)
    gpus: dict[str, int] = defaultdict(int)
    for job in _in_breaths(taken.holding):
        held, is_stopped = _held(job), isinstance(job.phase, Suspended)
        for share in held.shares if held is not None else ():
            cpus[share.node] += 0 if is_stopped else share.cpus  # others may have its CPUs meanwhile
            gpus[share.node] += _gpus(share)
    states = Counter(_node_state(node, cpus[node.name]) for node in taken.nodes)
    page.tell("bireme_nodes", "gauge", "Nodes by state.", (({"state": s}, n) for s, n in sorted(states.items())))
    totals = {node.name: sum(pool.count for pool in node.config.gres if pool.name == "gpu") for node in taken.nodes}
    page.tell("bireme_gpus", "gauge", "GPUs of all nodes.", [({}, sum(totals.values()))])
    what = "GPUs that jobs hold."
    page.tell("bireme_gpus_allocated", "gauge", what, [({}, sum(gpus.values()))])
    page.tell("bireme_cpus", "gauge", "CPUs of all nodes.", [({}, sum(node.config.cpus for node in taken.nodes))])
    page.tell("bireme_cpus_allocated", "gauge", "CPUs that jobs hold.", [({}, sum(cpus.values()))])
    if taken.viewer.hidden("nodes"):
        return
    each = [({"node": node.name}, node) for node in taken.nodes]
    what = "1: the node answers."
    page.tell("bireme_node_up", "gauge", what, ((labels, node.health is Health.UP) for labels, node in each))
    what = "1: the node is drained: it takes no new jobs."
    page.tell("bireme_node_drained", "gauge", what, ((labels, _is_drained(node)) for labels, node in each))
    page.tell("bireme_node_cpus", "gauge", "CPUs of a node.", ((labels, node.config.cpus) for labels, node in each))
    what = "CPUs of a node that jobs hold."
    page.tell("bireme_node_cpus_allocated", "gauge", what, ((labels, cpus[node.name]) for labels, node in each))
    with_gpus = [(labels, node) for labels, node in each if totals[node.name]]
    page.tell(
        "bireme_node_gpus", "gauge", "GPUs of a node.", ((labels, totals[node.name]) for labels, node in with_gpus)
    )
    what = "GPUs of a node that jobs hold."
    page.tell("bireme_node_gpus_allocated", "gauge", what, ((labels, gpus[node.name]) for labels, node in with_gpus))


def _is_drained(node: Node) -> bool:
    return node.drained or node.closed is not None


def _node_state(node: Node, cpus: int) -> str:
    if node.health is Health.UNKNOWN:
        return "UNKNOWN"
    if node.health is not Health.UP:
        return "DOWN"
    if _is_drained(node):
        return "DRAINING" if cpus else "DRAINED"
    if not cpus:
        return "IDLE"
    return "ALLOCATED" if cpus >= node.config.cpus else "MIXED"


def _services(page: Page, taken: Taken) -> None:
    for service in taken.services:
        if not taken.viewer.sees_job(service.uid, service.account):
            continue
        labels = {"service": service.name}
        info = page.family("bireme_service_info", "gauge", "A service, and whose it is.")
        info.add(1, {**labels, "user": service.user, "account": service.account})
        what = "Replicas that a service is to have."
        page.family("bireme_service_replicas_wanted", "gauge", what).add(service.wanted, labels)
        what = "Replicas of a service that take requests."
        page.family("bireme_service_replicas_ready", "gauge", what).add(service.ready, labels)
        replicas = page.family("bireme_service_replicas", "gauge", "Replicas of a service, by where their jobs are.")
        for stand, count in sorted(service.by_stand.items()):
            replicas.add(count, {**labels, "state": stand})
        what = "Ends of a service's replicas of late that nobody asked for."
        page.family("bireme_service_crashes", "gauge", what).add(service.crashes, labels)


def _findings(page: Page, taken: Taken) -> None:
    """By detector and gravity; where nodes may be seen, also by node (as many series as nodes with findings)."""
    counted = Counter((each.trouble.detector, each.trouble.gravity.value, each.phase.value) for each in taken.findings)
    what = "Findings that stand, by the detector that saw them."
    samples = (({"detector": d, "gravity": g, "state": s}, n) for (d, g, s), n in sorted(counted.items()))
    page.tell("bireme_findings", "gauge", what, samples)
    page.tell("bireme_findings_opened_total", "counter", "Findings ever opened.", [({}, taken.findings_opened)])
    if taken.viewer.hidden("nodes"):
        return
    by_node = Counter(
        (each.trouble.place.node, each.trouble.gravity.value) for each in taken.findings if each.trouble.place.node
    )
    what = "Findings that stand about a node and its GPUs."
    page.tell(
        "bireme_node_findings", "gauge", what, (({"node": n, "gravity": g}, c) for (n, g), c in sorted(by_node.items()))
    )


def _healings(page: Page, taken: Taken) -> None:
    """What is out of service, and what was decided and stands: by what is done and how far it is."""
    fences = Counter("gpu" if each.of_gpu else "node" for each in taken.fences)
    what = "GPUs and nodes that are out of service because something is wrong with them."
    page.tell("bireme_fences", "gauge", what, (({"of": of}, fences[of]) for of in ("gpu", "node")))
    counted = Counter((each.proposal.act.value, each.phase.value) for each in taken.healings if each.phase.stands)
    what = "Decisions about what is wrong, by what is done (act) and whether it is (suggested: somebody is asked)."
    samples = (({"act": act, "state": state}, n) for (act, state), n in sorted(counted.items()))
    page.tell("bireme_healings", "gauge", what, samples)
    what = "Decisions ever made about what is wrong."
    page.tell("bireme_healings_decided_total", "counter", what, [({}, taken.healings_proposed)])


def _gpu_jobs(page: Page, taken: Taken) -> None:
    """Which job has which GPU: the one series that joins figures of GPUs with jobs."""
    if taken.viewer.hidden("nodes"):
        return
    holding = {job.id: job for job in taken.holding}
    family = page.family("bireme_gpu_job", "gauge", "1: this job has this GPU, or parts of it.")
    for gpu in taken.measured.gpus:
        known = gpu.labels
        place = {"uuid": gpu.uuid, **{name: known[name] for name in ("UUID", "GPU_I_ID", "gpu", "Hostname")}}
        for job_id in gpu.job_ids:
            job = holding.get(job_id)
            if job is not None and taken.viewer.sees_job(job.spec.owner.uid, job.spec.account):
                whose = {"job_id": job_id, "user": job.spec.owner.user, "account": job.spec.account}
                family.add(1, {**place, **whose})
