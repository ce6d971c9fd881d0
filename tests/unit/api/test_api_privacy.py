"""PrivateData on every route: one table of what each route can show, walked with every word and every role.

A route that is not in the table fails the walk. So does one that hides from somebody who may know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tests.support.unkept import Unkept
from tests.unit.api.conftest import SmallCluster, ask_as

from bireme.api.app import create_app
from bireme.api.cluster import Service
from bireme.api.privacy import WORDS, WORDS_OF
from bireme.api.routes import commands
from bireme.commands.parcels import pack
from bireme.core.lifecycle.apply import apply
from bireme.core.model import events as e
from bireme.core.model.accounts import Account, AdminLevel, Association, User
from bireme.core.model.finding.findings import Gravity, Place, Trouble
from bireme.core.model.healing.healings import HealingAct, HealingLife, Proposal
from bireme.core.model.idling.policy import IdleMode, IdlePolicy, IdleRule
from bireme.core.model.jobs import JobSpec, Outcome, Owner, TrackedRun
from bireme.core.model.reservations import Reservation
from bireme.core.model.resources import Allocation, Device, GresPool, GresShare, NodeShare
from bireme.core.model.serving.services import ServiceSpec
from bireme.core.telemetry.curves import Asked, Curve
from bireme.core.telemetry.digest import Digest, GpuDigest, Level
from bireme.core.telemetry.exported import GpuFigures
from bireme.core.telemetry.exported import Measured as Figures
from bireme.core.telemetry.subjects import Subject
from bireme.core.telemetry.waiting import Waited
from bireme.identity.sessions import Patience, Sessions
from bireme.ports import NewestRound, SeenGpu
from bireme.slurm.records.steps import history_rows
from bireme.store.journal import SqliteStore

OWNER, STRANGER, COORDINATOR, OPERATOR, ADMIN = 4001, 4002, 4003, 4004, 0
"""By uid, which is also the name: no machine knows them. OPERATOR by AdminLevel, ADMIN as the daemon's owner."""
WAITING, RUNNING, FORGOTTEN = 1, 2, 3
"""Jobs of OWNER."""
SERVICE = "quiet"
"""A service of OWNER: his name for it is not a secret to who asks for it by that name, but how it stands is."""

MARKS = {
    "job": "hush-job",
    "service": "hush-service",
    "account": "hush-account",
    "user": "hush-user",
    "usage": f'"user":"{OWNER}"',
    "reservation": "hush-reservation",
    "node": "hush-node",
    "partition": "hushpartition",
}
"""What gives a kind of data away in an answer."""
HIDDEN_BY = {
    "job": {"jobs"},
    "report": {"jobs", "usage"},
    "service": {"jobs"},
    "account": {"accounts"},
    "user": {"users", "accounts"},
    "usage": {"usage", "users", "accounts"},
    "reservation": {"reservations"},
    "node": {"nodes"},
    "partition": {"partitions"},
}
KNOWS = {
    "job": {OWNER, COORDINATOR, OPERATOR, ADMIN},
    "report": {OWNER, COORDINATOR, OPERATOR, ADMIN},
    "service": {OWNER, COORDINATOR, OPERATOR, ADMIN},
    "account": {OWNER, COORDINATOR, OPERATOR, ADMIN},
    "user": {OWNER, COORDINATOR, OPERATOR, ADMIN},
    "usage": {OWNER, COORDINATOR, OPERATOR, ADMIN},
    "reservation": {OWNER, OPERATOR, ADMIN},
    "node": {OPERATOR, ADMIN},
    "partition": {OPERATOR, ADMIN},
}
"""Who is told all the same."""

ONLY_IN = {"usage": "shares", "report": "/v1/report"}
"""Kinds whose marks say nothing on other routes than these: there the same words are something else. (`report`: what
is told of a job in a report of many, which is also what its owner used.)"""
NOTHING: tuple[str, ...] = ()
SHOWS: dict[tuple[str, str], tuple[str, ...]] = {
    ("GET", "/v1/jobs"): ("job",),
    ("GET", f"/v1/jobs/{WAITING}"): ("job",),
    ("GET", f"/v1/jobs/{WAITING}/wait?timeout=0"): ("job",),
    ("GET", f"/v1/jobs/{FORGOTTEN}/wait?timeout=0"): ("job",),
    ("GET", f"/v1/jobs/{WAITING}/why?suggestions=0"): ("job",),
    ("GET", f"/v1/jobs/{RUNNING}/why?suggestions=0"): ("job",),
    ("GET", f"/v1/jobs/{FORGOTTEN}/why"): ("job",),
    ("GET", f"/v1/jobs/{RUNNING}/steps"): NOTHING,
    ("GET", "/v1/history"): ("job",),
    ("GET", "/v1/history?steps=1&measured=1"): ("job",),
    ("GET", f"/v1/jobs/{RUNNING}/report"): ("job",),
    ("GET", f"/v1/jobs/{FORGOTTEN}/report"): ("job",),
    ("GET", f"/v1/report?user={OWNER}&start=0&end=2000"): ("report",),
    ("GET", "/v1/services"): ("service",),
    ("GET", f"/v1/services/{SERVICE}"): ("service",),
    ("GET", f"/v1/services/{SERVICE}/wait?timeout=0"): ("service",),
    ("GET", "/v1/priorities"): NOTHING,
    ("GET", "/v1/accounting/book"): ("account", "user"),
    ("GET", "/v1/accounting/manager"): ("user",),
    ("GET", "/v1/accounting/shares"): ("usage",),
    ("GET", "/v1/reservations"): ("reservation",),
    ("GET", "/v1/nodes"): ("node",),
    ("GET", "/v1/nodes/n1/events"): NOTHING,
    ("GET", "/v1/history?nodes=n1"): ("job",),
    ("GET", f"/v1/services/{SERVICE}/traffic"): NOTHING,
    ("GET", "/v1/partitions"): ("partition",),
    ("GET", "/v1/pods/ns/pod/why"): NOTHING,
    ("GET", "/v1/ping"): ("node",),
    ("GET", "/v1/licenses"): NOTHING,
    ("GET", "/v1/config"): NOTHING,
    ("GET", "/v1/topology"): NOTHING,
    ("GET", "/v1/idle?trial=0"): ("job",),
    ("GET", "/v1/findings"): ("node",),
    ("GET", "/v1/findings/1"): ("node",),
    ("GET", "/v1/healings"): ("node",),
    ("GET", "/v1/healings/1"): ("node",),
    ("GET", "/v1/changes"): NOTHING,
    ("GET", "/v1/gpus"): ("node",),
    ("GET", "/v1/queue"): ("job",),
    ("GET", "/v1/queue?q=hush&state=active"): ("job",),
    ("GET", "/v1/web/me"): NOTHING,
    ("GET", "/v1/web/sessions"): NOTHING,
    ("GET", "/v1/telemetry/metrics"): NOTHING,
    ("GET", "/metrics"): ("job", "node"),
    ("GET", "/v1/telemetry/now"): ("node",),
    ("GET", f"/v1/telemetry/series?job={RUNNING}"): ("job",),
    ("GET", f"/v1/telemetry/series?job={FORGOTTEN}"): ("job",),
    ("GET", "/v1/telemetry/series?node=n1"): ("node",),
    ("GET", f"/v1/jobs/{RUNNING}/timeline"): ("job",),
    ("GET", f"/v1/jobs/{WAITING}/timeline"): ("job",),
    ("GET", f"/v1/jobs/{FORGOTTEN}/timeline"): ("job",),
    ("GET", "/v1/telemetry/series?gpu=GPU-1"): ("node",),
    ("GET", f"/v1/jobs/{RUNNING}/log"): NOTHING,
    ("GET", f"/v1/jobs/{FORGOTTEN}/log"): NOTHING,
}
"""Reading routes: what a caller sees who may know it. Each is asked by everybody."""
OWN = (
    f"/v1/jobs/{RUNNING}/script",
    f"/v1/jobs/{RUNNING}/story",
    f"/v1/jobs/{FORGOTTEN}/story",
    f"/v1/jobs/{RUNNING}/environment",
    f"/v1/jobs/{RUNNING}/usage",
    f"/v1/jobs/{RUNNING}/experiment",
    f"/v1/jobs/{FORGOTTEN}/experiment",
    f"/v1/jobs/{RUNNING}/diagnosis",
    f"/v1/jobs/{FORGOTTEN}/diagnosis",
    f"/v1/jobs/{RUNNING}/evidence",
    f"/v1/jobs/{FORGOTTEN}/evidence",
    f"/v1/jobs/{RUNNING}/hold-open",
    f"/v1/services/{SERVICE}/logs",
    f"/v1/services/{SERVICE}/events",
    f"/v1/services/{SERVICE}/keys",
)
"""Reading routes that answer the owner and administrators alone, whatever is private."""
WHOLE = ("/v1/audit", "/v1/snapshot", "/v1/events?after=0")
"""Reading routes with everything in them: looked at below."""
VERBS = (
    "foresee",
    "cancel",
    "signal",
    "hold",
    "release",
    "requeue",
    "checkpoint",
    "suspend",
    "resume",
    "complete",
    "update",
)
CHANGES: dict[str, dict[str, Any]] = {
    "/v1/jobs": {"spec": {"name": "mine"}, "script": "#!/bin/sh\n"},
    "/v1/blobs": {},
    "/v1/findings/1/dismiss": {"why": "x"},
    "/v1/findings/1/mended": {},
    "/v1/healings": {"fence": "n2", "reason": "x"},
    "/v1/healings/1/approve": {},
    "/v1/healings/1/refuse": {},
    "/v1/healings/1/undo": {},
    "/v1/web/links": {},
    "/v1/web/links/whose": {"code": "guessed"},
    "/v1/web/sessions": {"code": "guessed"},
    "/v1/web/sessions/revoke": {"everybody": True},
    "/v1/web/off": {},
    "/v1/cancel": {"jobs": [str(WAITING)]},
    "/v1/orders": {"verb": "hold", "jobs": [str(WAITING)]},
    "/v1/top": {"jobs": [str(WAITING)]},
    "/v1/nodes/update": {"nodes": "n1", "state": "DRAIN", "reason": "x"},
    "/v1/partitions/main/update": {"changes": {"state": "DOWN"}},
    "/v1/reconfigure": {},
    "/v1/shutdown": {},
    "/v1/accounting/changes": {"orders": []},
    "/v1/reservations": {"name": "x", "order": {}},
    "/v1/reservations/hush/update": {"order": {}},
    "/v1/reservations/hush/delete": {},
    "/v1/services": {"spec": {"name": SERVICE, "job": {}}, "script": "#!/bin/sh\n"},
    f"/v1/services/{SERVICE}/scale": {"replicas": 2},
    f"/v1/services/{SERVICE}/stop": {},
    f"/v1/services/{SERVICE}/restart": {},
    f"/v1/services/{SERVICE}/rollback": {},
    f"/v1/services/{SERVICE}/promote": {},
    f"/v1/services/{SERVICE}/canary": {"percent": 5},
    f"/v1/services/{SERVICE}/try": {},
    "/v1/whatif": {},
    "/v1/explain": {"script": "#!/bin/sh\ntrue\n"},
    f"/v1/services/{SERVICE}/keys": {},
    f"/v1/services/{SERVICE}/keys/abcd/revoke": {},
    f"/v1/jobs/{RUNNING}/steps": {"spec": {}},
    f"/v1/jobs/{RUNNING}/steps/0/cancel": {},
    **{f"/v1/jobs/{WAITING}/{verb}": {"signal": 15, "changes": {}} for verb in VERBS},
}
"""Changing routes, asked by a stranger: what is refused tells nothing either."""
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "squeue": (("-o", "%i %j"), ("-O", "jobid,name"), ("-s",), ("--json",), ("-j", str(RUNNING), "-o", "%j")),
    "sacct": (("-a", "-S", "1970-01-01", "-o", "jobid,jobname%30"), ("-j", str(FORGOTTEN), "-o", "jobname%30")),
    "scontrol": (
        ("show", "job"), ("show", "job", str(WAITING)), ("show", "nodes"), ("show", "partitions"),
        ("show", "reservations"), ("show", "assoc_mgr"), ("-M", "tiny", "show", "job"), ("hold", str(WAITING)),
    ),
    "sinfo": ((), ("-R",), ("-T",), ("-N", "-l"), ("--json",)),
    "sshare": (("-a",), ("-l", "-a"), ("--json", "-a")),
    "sprio": ((),),
    "sbatch": (("--wrap", "true"), ("--test-only", "--wrap", "true"), ("-M", "tiny", "--wrap", "true")),
    "scancel": ((str(WAITING),), ("-v", "-u", str(OWNER)), ("-v", "-n", MARKS["job"] + "s"), ("-v", f"{RUNNING}.0")),
    "sstat": (("-j", str(RUNNING)),),
    "seff": ((str(RUNNING),), (str(FORGOTTEN),)),
}  # fmt: skip
"""Commands that run in the daemon, with words that show all they can."""
SHOWN_BY = {
    "squeue": {"job"}, "sacct": {"job"}, "scontrol": {"job", "node", "partition", "reservation", "user"},
    "sinfo": {"node", "partition", "reservation"}, "sshare": {"usage"}, "sprio": set(), "sstat": set(), "sbatch": set(),
    "seff": {"job"},
    "scancel": set(),
}  # fmt: skip


FULL = Level(100.0, 100.0)


class Measured:
    """Telemetry of a node with a GPU, and of a task of any job that is asked for; also the store of it."""

    problem = ""

    @property
    def series(self) -> Measured:
        return self

    async def gpus(self) -> list[SeenGpu]:
        return [SeenGpu("n1", "GPU-1", 0, MARKS["node"], 80_000, "", "", (RUNNING,))]

    async def measured(self) -> Figures:
        gpu = GpuFigures("n1", "GPU-1", 0, {"gpu_util": 7.0}, model=MARKS["node"], job_ids=(RUNNING,))
        return Figures(gpus=[gpu])

    def latest(self, about: str) -> list[Any]:
        return [(Subject("task", "n1", f"{RUNNING}.1.0.0"), 1000.0, {"memory": 7.0})] if about == "task" else []

    def holdings(self, **_: Any) -> list[Any]:
        return []

    def newest_rounds(self) -> list[NewestRound]:
        return [NewestRound(MARKS["node"], 1000.0, is_late=False)]

    def waits(self, job_id: int) -> list[Waited]:
        return [Waited(job_id, 1000.0, None, (("Reservation", f"{MARKS['reservation']} has not begun."),))]

    def waits_now(self, job_id: int) -> Waited | None:
        return None

    def happenings(self, **_: Any) -> list[Any]:
        return []

    def subjects(self, about: Any, *_: Any) -> list[Subject]:
        return [Subject(about, "n1", MARKS["job"])]

    def digest(self, job_id: int, generation: int, start: float, end: float) -> Digest:
        return Digest(job_id, generation, start, end, gpus=(GpuDigest("n1", MARKS["job"], False, 1.0, 1.0, "x", FULL),))

    def digests(self, job_ids: Any, *, steps: bool = True) -> list[Digest]:
        return []

    def read_held(self, held: Any, asked: Asked) -> list[Curve]:
        return self.read(replace(asked, subjects=[Subject("gpu", held[0].node, held[0].uuid)]))

    def read(self, asked: Asked) -> list[Curve]:
        one = np.array([1.0])
        subject = asked.subjects[0]
        shown = subject if subject.about in ("task", "use") else Subject(subject.about, MARKS["node"], subject.id)
        return [Curve(shown, asked.metrics[0], asked.start, asked.step_s, one, one, one)]


class Tracked:
    """What experiment trackers say of jobs."""

    async def of_job(self, job: Any, metrics: Any) -> dict[str, Any]:
        return {"mlflow": {"run_id": MARKS["job"], "link": MARKS["job"]}}

    async def of_past(self, job_id: int, submitted_at: float, metrics: Any) -> dict[str, Any]:
        return {"mlflow": {"run_id": MARKS["job"], "link": MARKS["job"]}}


class Served:
    """The application without a socket: whoever asks is who the test says."""

    def __init__(self, store: SqliteStore) -> None:
        self.cluster = SmallCluster(store)
        service = Service(
            version="1",
            pid=1,
            up_since=0.0,
            owner_uid=ADMIN,
            max_body_bytes=1_000_000,
            telemetry=lambda: Measured(),
            experiments=lambda: Tracked(),
            sessions=Sessions(Unkept(), lambda: 1000.0, lambda: Patience(3600.0, 3600.0)),
        )
        self.app = create_app(self.cluster, store, service)  # type: ignore[arg-type]
        self.app.state.context.live.close()  # streams end when they have told what is there
        self._fill(store)

    def private(self, word: str) -> None:
        config = replace(self.cluster.state.config, raw={"PrivateData": word} if word else {})
        self.cluster.record("test", [e.ClusterConfigured(config)])

    def ask(self, method: str, path: str, uid: int, body: Any = None) -> tuple[int, str]:
        return asyncio.run(ask_as(self.app, method, path, uid, body))

    def _fill(self, store: SqliteStore) -> None:
        name = str(OWNER)
        account = Account(name="physics", description=MARKS["account"], coordinators=(str(COORDINATOR),))
        users = (
            User(name=name, default_account="physics", default_wckey=MARKS["user"]),
            User(name=str(STRANGER), default_account="chemistry"),
            User(name=str(OPERATOR), admin_level=AdminLevel.OPERATOR),
        )
        associations = (
            Association(id=11, account="physics", parent="root"),
            Association(id=12, account="physics", user=name),
            Association(id=13, account="chemistry", parent="root"),
            Association(id=14, account="chemistry", user=str(STRANGER)),
        )
        accounts = (account, Account(name="chemistry"))
        change = e.AccountsChanged(accounts=accounts, users=users, associations=associations)
        reservation = Reservation(name=MARKS["reservation"], begin=2000.0, end=3000.0, nodes=("n2",), users=(name,))
        partition = replace(self.cluster.state.partitions["small"], name=MARKS["partition"])
        config = replace(self.cluster.state.config, partitions=(*self.cluster.state.config.partitions, partition))
        first, *others = config.nodes
        with_gpu = replace(first, gres=(GresPool("gpu", None, 1, (Device(0),)),))
        config = replace(config, nodes=(with_gpu, *others))
        closed = e.NodeUpdated("n2", 0, drained=True, note=MARKS["node"])
        self.cluster.record("test", [change, e.ClusterConfigured(config), e.ReservationSet(reservation), closed])
        owner = Owner(uid=OWNER, gid=OWNER, user=name)
        blob = store.put(b"{}")
        spec = JobSpec(
            owner=owner, name=MARKS["job"], account="physics", partitions=("main",), script=blob, environment=blob
        )
        for job_id in (WAITING, RUNNING, FORGOTTEN):
            self.cluster.record("test", [e.JobSubmitted(job_id, spec, 1, 1000.0, ())])
        service = ServiceSpec(name=SERVICE, job=replace(spec, name=SERVICE))
        deployed = e.ServiceDeployed(SERVICE, 1, service, owner, (), name)
        self.cluster.record("test", [deployed, e.ServiceScaled(SERVICE, 0, MARKS["service"])])
        gpu = GresShare("gpu", None, 1, (0,))
        share = NodeShare("n1", cpus=1, memory_mib=10, cpu_ids=(0,), gres=(gpu,))
        allocated = e.JobAllocated(RUNNING, Allocation(RUNNING, 1, "main", (share,)))
        self.cluster.record("test", [allocated, e.JobStarted(RUNNING, 1, 1000.0)])
        rule = IdleRule(name="train", exempt_users=(MARKS["user"],), exempt_accounts=(MARKS["account"],))
        self.cluster.record("test", [e.IdlePolicySet(IdlePolicy(IdleMode.ACT, (rule,)))])
        trouble = Trouble(
            detector="off_the_bus", place=Place(node="n2", gpu=0), gravity=Gravity.BROKEN, cause="gpu_lost",
            title=f"GPU 0 fell off the bus, says {MARKS['node']}", since=1000.0,
        )  # fmt: skip
        self.cluster.record("test", [e.FindingOpened(1, trouble)])
        proposal = Proposal(
            act=HealingAct.FENCE_GPU, place=Place(node="n2", gpu=0), title=f"take GPU 0 of {MARKS['node']} out",
            reason=trouble.title, findings=(1,), undo="no need",
        )  # fmt: skip
        self.cluster.record("test", [e.HealingProposed(1, proposal, HealingLife.SUGGESTED)])
        self._forget(store)

    def _forget(self, store: SqliteStore) -> None:
        """As the kernel: its history row is written with its end."""
        state = self.cluster.state
        ended = e.JobCancelled(FORGOTTEN, Outcome("CANCELLED", by_uid=OWNER))
        (recorded,) = self.cluster.record("test", [ended])
        rows = history_rows(state, state.jobs[FORGOTTEN], state.jobs[FORGOTTEN].phase, 1000.0)  # type: ignore[arg-type]
        forgotten = e.JobForgotten(FORGOTTEN)
        apply(state, e.Recorded(recorded.seq + 1, 1000.0, "test", forgotten))
        store.append([(1000.0, "test", forgotten)], rows)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = SqliteStore(str(Path(tmp_path_factory.mktemp("privacy")) / "journal.db"))
    yield Served(store)
    store.close()


@pytest.mark.parametrize("word", ["", *WORDS])
@pytest.mark.parametrize("route", SHOWS, ids=lambda route: route[1])
def test_a_route_shows_what_is_private_to_those_alone_who_may_know(
    served: Served, route: tuple[str, str], word: str
) -> None:
    served.private(word)
    for uid in (OWNER, STRANGER, COORDINATOR, OPERATOR, ADMIN):
        _, text = served.ask(*route, uid)
        for kind, mark in {**MARKS, "report": MARKS["job"]}.items():
            hidden = word in HIDDEN_BY[kind] and uid not in KNOWS[kind]
            if hidden and ONLY_IN.get(kind, "") in route[1]:
                assert mark not in text, f"{uid} learns of a {kind} from {route[1]}"
            elif kind in SHOWS[route]:
                assert mark in text, f"{uid} may know of the {kind} and is not told by {route[1]}: {text}"


@pytest.mark.parametrize("word", ["", "jobs"])
@pytest.mark.parametrize("path", OWN)
def test_what_is_the_owners_is_nobody_elses(served: Served, path: str, word: str) -> None:
    served.private(word)
    assert served.ask("GET", path, OWNER)[0] == 200
    for uid in (STRANGER, COORDINATOR):
        status, text = served.ask("GET", path, uid)
        assert status in (403, 404)
        assert not any(mark in text for mark in MARKS.values())


@pytest.mark.parametrize(
    ("method", "what"),
    [
        *(("GET", what) for what in ("script", "environment", "story", "usage", "hold-open", "diagnosis", "log")),
        *(("POST", what) for what in ("cancel", "signal", "hold", "release", "requeue", "suspend", "checkpoint")),
    ],
)
def test_who_may_not_see_a_job_is_answered_as_of_none(served: Served, method: str, what: str) -> None:
    served.private("jobs")
    body = {"signal": 10} if what == "signal" else {}
    hidden, none = (served.ask(method, f"/v1/jobs/{job}/{what}", STRANGER, body) for job in (RUNNING, 999999))
    assert hidden == none
    assert hidden[0] == 404


@pytest.mark.parametrize("job_id", [RUNNING, FORGOTTEN])
def test_a_run_is_on_the_timeline_for_its_owner_and_operators_alone(served: Served, job_id: int) -> None:
    served.private("")
    if job_id == RUNNING:
        served.cluster.record("test", [e.JobTracked(job_id, TrackedRun("http://mlflow", "1", "r"))])
    for uid, is_shown in ((OWNER, True), (ADMIN, True), (STRANGER, False)):
        status, text = served.ask("GET", f"/v1/jobs/{job_id}/timeline", uid)
        assert status == 200
        assert ("its run in MLflow" in text) is is_shown, uid


@pytest.mark.parametrize("word", ["", *WORDS])
def test_events_tell_no_more_than_the_lists(served: Served, word: str) -> None:
    served.private(word)
    _, everything = served.ask("GET", "/v1/events?after=0", ADMIN)
    _, strangers = served.ask("GET", "/v1/events?after=0", STRANGER)
    assert all(mark in everything for kind, mark in MARKS.items() if kind != "usage")
    assert MARKS["job"] not in strangers, "jobs of others are never told"
    assert MARKS["service"] not in strangers, "nor their services"
    for kind, mark in MARKS.items():
        if kind != "usage" and word in HIDDEN_BY[kind]:
            assert mark not in strangers, f"a stranger learns of a {kind}"


@pytest.mark.parametrize("word", ["", *WORDS])
def test_a_snapshot_is_for_everybody_where_nothing_is_private(served: Served, word: str) -> None:
    served.private(word)
    assert served.ask("GET", "/v1/snapshot", ADMIN)[0] == 200
    assert served.ask("GET", "/v1/snapshot", STRANGER)[0] == (403 if word else 200)


@pytest.mark.parametrize("word", ["", "jobs", "usage", "nodes"])
def test_a_report_says_whether_it_is_of_everybody(served: Served, word: str) -> None:
    served.private(word)
    said = [json.loads(served.ask("GET", "/v1/report", uid)[1])["whole"] for uid in (OPERATOR, STRANGER)]
    assert said == [True, word not in ("jobs", "usage")]


@pytest.mark.parametrize("path", CHANGES)
def test_a_refused_change_tells_nothing(served: Served, path: str) -> None:
    served.private(",".join(WORDS))
    _, text = served.ask("POST", path, STRANGER, CHANGES[path])
    assert not [kind for kind, mark in MARKS.items() if mark in text]


def test_who_may_not_see_a_job_finds_none_to_send_a_signal_to(served: Served) -> None:
    """As with Slurm's scancel, which looks for it in the queue first; a plain scancel is refused by name, as there."""

    def answer_of(path: str, body: dict[str, Any]) -> str:
        return str(served.ask("POST", path, STRANGER, body)[1]).replace(str(RUNNING), "7").replace("77777", "7")

    served.private("jobs")
    signals = [("steps/0/cancel", {}), ("steps/0/cancel", {"signal": 10}), ("signal", {"signal": 10}),
               ("cancel", {"signal": 10, "batch_only": True}), ("cancel", {})]  # fmt: skip
    for path, body in signals:
        there, nowhere = (answer_of(f"/v1/jobs/{job}/{path}", body) for job in (RUNNING, 77777))
        assert "Invalid job id specified" in there
        assert there == nowhere, path
    assert "Access/permission denied" in answer_of("/v1/cancel", {"jobs": [str(RUNNING)]})
    served.private("")
    assert "Access/permission denied" in answer_of(f"/v1/jobs/{RUNNING}/signal", {"signal": 10})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_what_is_private_to_those_alone_who_may_know(served: Served, command: str) -> None:
    """It asks the routes as its caller does, and has no other way to the cluster."""

    def shown_to(uid: int) -> set[str]:
        told = [
            served.ask("POST", f"/v1/commands/{command}", uid, b"".join(pack("a", word.encode()) for word in words))
            for words in COMMANDS[command]
        ]
        assert [status for status, _ in told] == [200] * len(told)
        return {kind for kind, mark in MARKS.items() if any(mark in text for _, text in told)}

    served.private(",".join(WORDS))
    assert shown_to(STRANGER) == set()
    assert shown_to(ADMIN) == SHOWN_BY[command]
    served.private("")
    assert shown_to(STRANGER) >= SHOWN_BY[command]


def test_every_command_of_the_daemon_is_in_the_table() -> None:
    assert COMMANDS.keys() == commands.COMMANDS.keys(), "say in the table above what they show to whom"


@pytest.mark.parametrize("uid", [OWNER, STRANGER, COORDINATOR, ADMIN])
def test_figures_of_jobs_are_for_those_who_may_see_the_job(served: Served, uid: int) -> None:
    served.private("jobs")
    _, text = served.ask("GET", "/v1/telemetry/now", uid)
    told = json.loads(text)
    seen = [RUNNING] if uid in KNOWS["job"] else []
    assert (list(map(int, told["jobs"])), told["gpus"][0]["job_ids"], told["gpus"][0]["unowned"]) == (seen, seen, False)


@pytest.mark.parametrize("uid", [OWNER, STRANGER, COORDINATOR, ADMIN])
def test_a_timeline_names_a_reservation_to_those_who_may_know_of_it(tmp_path: Path, uid: int) -> None:
    store = SqliteStore(str(tmp_path / "journal.db"))
    served = Served(store)  # in which the job still waits
    served.private("reservations")
    _, text = served.ask("GET", f"/v1/jobs/{WAITING}/timeline", uid)
    assert '"Reservation"' in text, "what it waits for is told all the same"
    assert (MARKS["reservation"] in text) == (uid in KNOWS["reservation"])
    store.close()


def test_every_route_is_in_the_table(served: Served) -> None:
    walked = {*SHOWS, *(("GET", path) for path in (*OWN, *WHOLE)), *(("POST", path) for path in CHANGES)}
    walked |= {("POST", f"/v1/commands/{command}") for command in COMMANDS}
    routes = [route for route in served.app.routes if getattr(route, "methods", None)]
    missing = []
    for route in routes:
        for method in route.methods - {"HEAD"}:  # type: ignore[attr-defined]
            paths = [path.partition("?")[0] for how, path in walked if how == method]
            if not any(route.path_regex.fullmatch(path) for path in paths):  # type: ignore[attr-defined]
                missing.append(f"{method} {route.path}")  # type: ignore[attr-defined]
    assert missing == ["GET /v1/openapi.json"], "say in the table above what they show to whom"


def test_every_event_that_is_about_no_job_falls_under_words_of_private_data() -> None:
    about_none = {event for event in get_args(e.Event) if "job_id" not in {each.name for each in fields(event)}}
    assert about_none <= WORDS_OF.keys()
    assert {word for words in WORDS_OF.values() for word in words} < set(WORDS)
