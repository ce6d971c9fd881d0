"""What agents and daemons say is understood across releases: lines recorded from earlier ones, and ours by those."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from bireme.agent.messages import orders, told
from bireme.agent.messages.lines import encode_typed
from bireme.agent.messages.protocol import ProtocolError
from bireme.agent.messages.told import NotUnderstoodError, Told, read_told
from bireme.core.model.resources import NO_USAGE, ExitStatus, TaskEnd, Usage
from bireme.core.model.serving.probes import Health, Probe, Probes, ReplicaOf
from bireme.engines.crew.engine import CrewEngine

HOW = "cgroup v2 at /sys/fs/cgroup/unified, and a child subreaper above each script and step"
USED = '{"user_cpu_s":0.25,"max_rss_node":"n1","min_cpu_s":0.25,"min_cpu_node":"n1","tasks":1}'
USAGE = Usage(user_cpu_s=0.25, max_rss_node="n1", min_cpu_s=0.25, min_cpu_node="n1", tasks=1)
DIED = "the agent of node n1 died while it held the job"
VERSION_2: list[tuple[str, Told]] = [
    (
        '{"ev":"welcome","node":"n1","version":"0.1.0","protocol":2,"pid":7275,"epoch":1,"damaged":[],"isolation":{},'
        f'"tracking":["{HOW}",""],"holds":[[7,1]],"past":[[5,2],[6,1]],"seq":9}}',
        told.Welcome(
            node="n1",
            version="0.1.0",
            protocol=2,
            pid=7275,
            epoch=1,
            tracking=(HOW, ""),
            holds=((7, 1),),
            past=((5, 2), (6, 1)),
            seq=9,
        ),
    ),
    ('{"did":[1,2]}', told.Did([1, 2])),
    ('{"seq":1,"ev":"launched","job":1,"gen":1,"at":1.5}', told.Launched(1, 1, at=1.5, seq=1)),
    (
        '{"seq":2,"ev":"batch_ended","job":1,"gen":1,"status":{"code":3,"signal":0,"out_of_memory":false},'
        f'"usage":{USED},"cleared":true,"label":"1_7","at":1.75}}',
        told.BatchEnded(1, 1, ExitStatus(3), USAGE, cleared=True, label="1_7", at=1.75, seq=2),
    ),
    ('{"seq":3,"ev":"prepared","job":2,"gen":1,"at":2.0}', told.Prepared(2, 1, at=2.0, seq=3)),
    ('{"seq":4,"ev":"step_began","job":2,"gen":1,"step":0,"at":2.25}', told.StepBegan(2, 1, 0, at=2.25, seq=4)),
    (
        '{"seq":5,"ev":"step_ended","job":2,"gen":1,"step":0,"status":{"code":0,"signal":9,"out_of_memory":true},'
        f'"usage":{USED},"at":2.5}}',
        told.StepEnded(2, 1, 0, ExitStatus(0, 9, True), USAGE, at=2.5, seq=5),
    ),
    (
        '{"seq":5,"ev":"step_ended","job":2,"gen":1,"step":1,"status":{"code":1,"signal":0,"out_of_memory":false},'
        '"usage":{},"note":"job 2 is not running on node n1","at":2.5}',
        told.StepEnded(2, 1, 1, ExitStatus(1), NO_USAGE, "job 2 is not running on node n1", at=2.5, seq=5),
    ),
    (
        '{"seq":5,"ev":"step_ended","job":2,"gen":1,"step":1,"status":{"code":1,"signal":0,"out_of_memory":false},'
        '"usage":{},"failed":[{"task":3,"status":{"code":1,"signal":0,"out_of_memory":false},"at":2.25}],"at":2.5}',
        told.StepEnded(2, 1, 1, ExitStatus(1), NO_USAGE, failed=(TaskEnd(3, ExitStatus(1), 2.25),), at=2.5, seq=5),
    ),
    (f'{{"re":4,"usage":{{"batch":{USED}}}}}', told.Answer(4, {"batch": USAGE})),
    ('{"re":5,"jobs":1}', told.Answer(5, jobs=1)),
    ('{"seq":6,"ev":"cleared","job":2,"gen":1,"at":3.0}', told.Cleared(2, 1, at=3.0, seq=6)),
    (
        '{"seq":6,"ev":"cleared","job":2,"gen":1,"epilog_failed":"/e ended with exit code 1","at":3.0}',
        told.Cleared(2, 1, "/e ended with exit code 1", at=3.0, seq=6),
    ),
    (
        '{"seq":7,"ev":"refused","job":3,"gen":2,"reason":"Prolog: /bin/false","prolog_failed":true,"at":3.25}',
        told.Refused(3, 2, "Prolog: /bin/false", prolog_failed=True, at=3.25, seq=7),
    ),
    ('{"ev":"error","text":"ack: KeyError: \'seq\'","no":8}', told.Trouble("ack: KeyError: 'seq'", 8)),
    ('{"ev":"error","text":"not JSON"}', told.Trouble("not JSON")),
    (
        '{"seq":8,"ev":"unkillable","job":4,"gen":1,"reason":"job 4: pids 17","at":3.5}',
        told.Unkillable(4, 1, "job 4: pids 17", at=3.5, seq=8),
    ),
    (
        f'{{"seq":9,"ev":"vanished","job":4,"gen":1,"reason":"{DIED}","at":4.0}}',
        told.Vanished(4, 1, DIED, at=4.0, seq=9),
    ),
]
"""Protocol 2 as agents spoke it before its lines had classes."""
VERSION_3: list[tuple[str, Told]] = [
    (
        '{"ev":"probed","job":5,"gen":1,"health":"unready","why":"readiness probe: HTTP 503","address":"127.0.1.1",'
        '"at":4.5}',
        told.Probed(5, 1, Health.UNREADY, "readiness probe: HTTP 503", "127.0.1.1", at=4.5),
    ),
    ('{"ev":"probed","job":5,"gen":1,"health":"ready","at":5.0}', told.Probed(5, 1, Health.READY, at=5.0)),
]
"""What protocol 3 added."""


@pytest.mark.parametrize(("line", "means"), VERSION_2 + VERSION_3)
def test_an_agent_of_an_earlier_release_is_understood(line: str, means: Told) -> None:
    assert read_told(line.encode()) == means


def test_every_kind_of_line_was_recorded_and_is_read_back() -> None:
    assert {type(means) for _, means in VERSION_2 + VERSION_3} == set(get_args(Told))
    for _, means in VERSION_2 + VERSION_3:
        assert read_told(encode_typed(means)) == means


def test_a_daemon_of_an_earlier_release_finds_what_it_reads() -> None:
    """It knows lines by these keys, and reads all that an earlier agent said but for what was often not said."""
    often_unsaid = {"label", "note", "epilog_failed", "prolog_failed"}
    for line, means in VERSION_2:
        before, now = json.loads(line), json.loads(encode_typed(means))
        for name in before.keys() - often_unsaid:
            said, meant = now[name], before[name]
            assert {**said, **meant} == said if isinstance(meant, dict) and name != "usage" else said or not meant


@pytest.mark.parametrize(
    "line",
    [
        b'{"seq":1,"ev":"promoted","job":1,"gen":1,"at":1.0}',
        b'{"seq":1,"ev":"launched","gen":1,"at":1.0}',
        b'{"seq":1,"ev":"refused","job":1,"gen":1,"reason":7,"at":1.0}',
        b'{"did":"all"}',
        b"{}",
    ],
)
def test_what_is_not_understood_is_told_apart_from_what_is_no_message(line: bytes) -> None:
    with pytest.raises(NotUnderstoodError):
        read_told(line)
    with pytest.raises(ProtocolError) as caught:
        read_told(line[:-1])
    assert not isinstance(caught.value, NotUnderstoodError)


def test_what_a_later_release_adds_is_passed_over() -> None:
    line = b'{"ev":"launched","job":1,"gen":2,"at":1.0,"seq":3,"on_planet":"earth"}'
    assert read_told(line) == told.Launched(1, 2, at=1.0, seq=3)


def test_bytes_that_are_no_text_arrive() -> None:
    refused = told.Refused(1, 1, "could not open caf\udce9", at=1.0, seq=3)
    assert read_told(encode_typed(refused)) == refused


def test_the_engine_understands_every_event() -> None:
    for kind in get_args(told.JobEvent):
        assert issubclass(kind, told.Event)
        assert callable(getattr(CrewEngine, f"_on_{msgspec.inspect.type_info(kind).tag}"))  # type: ignore[union-attr]


# --- what daemons order ------------------------------------------------------------------------------------

ABOUT: dict[str, Any] = {"job": 1, "gen": 2}
OWNER: dict[str, Any] = {"uid": 1000, "gid": 100}
PREPARE = (
    '"job":1,"gen":2,"label":"1_7","uid":1000,"gid":100,"groups":[100,7],"share":{"cpus":1,"memory_mib":500,'
    '"cpu_ids":[0]},"unkillable_s":60,"denied_devices":["/dev/nvidia1"],"env":{"PATH":"/bin"},"prolog":["/p"],'
    '"epilog":[],"script_timeout_s":null'
)
PREPARED: dict[str, Any] = {
    **ABOUT,
    **OWNER,
    "label": "1_7",
    "groups": (100, 7),
    "share": orders.Share(1, 500, (0,)),
    "denied_devices": ("/dev/nvidia1",),
    "env": {"PATH": "/bin"},
    "prolog": ("/p",),
}
ORDERS_2: list[tuple[str, orders.AnyOrder]] = [
    (f'{{"op":"prepare",{PREPARE},"no":1}}', orders.Prepare(**PREPARED, no=1)),
    (
        f'{{"op":"start",{PREPARE},"batch":{{"script":"#!/bin/sh\\n","argv":["a"],"env":{{"A":"b"}},"cwd":"/w",'
        '"stdin":"/dev/null","stdout":"/w/out","stderr":"","append":false,"umask":18},"alone":true,"no":2}',
        orders.Start(
            **PREPARED,
            no=2,
            alone=True,
            batch=orders.Batch(
                script="#!/bin/sh\n",
                argv=("a",),
                env={"A": "b"},
                cwd="/w",
                stdin="/dev/null",
                stdout="/w/out",
                umask=18,
            ),
        ),
    ),
    (
        '{"op":"terminate","job":1,"gen":2,"grace_s":30,"cause":"TIME LIMIT","no":3}',
        orders.Terminate(**ABOUT, grace_s=30, cause="TIME LIMIT", no=3),
    ),
    (
        '{"op":"signal","signal":10,"scope":"batch","job":1,"gen":2,"no":4}',
        orders.Signal(**ABOUT, signal=10, scope="batch", no=4),
    ),
    ('{"op":"tell","text":"use them","job":1,"gen":2,"no":14}', orders.Tell(**ABOUT, text="use them", no=14)),
    ('{"op":"suspend","job":1,"gen":2,"no":5}', orders.Suspend(**ABOUT, no=5)),
    ('{"op":"resume","job":1,"gen":2,"no":6}', orders.Resume(**ABOUT, no=6)),
    (
        '{"op":"step","job":1,"gen":2,"step":0,"key":"k","argv":["hostname"],"env":{"A":"b"},"cwd":"/w","umask":18,'
        '"append":false,"cpu_bind":"cores","task_prolog":[],"task_epilog":["/t"],"window":{"rows":24,"columns":80},'
        '"mpi":"pmi2","world":{"name":"1.2.0","node_of_rank":[0,1],"first_rank":0},"tasks":[{"id":0,"env":{"B":"c"},'
        '"terminal":true},{"id":1,"env":{},"stdin":"/i","stdout":"/o","stderr":"/e","argv":["x"],'
        '"unopened":["stdin","/i",13]}],"cpu_ids":[0,1],"hosts":{"n1":"10.0.0.1"},"scripts":{"/t":"#!/bin/sh"},"no":7}',
        orders.StartStep(
            **ABOUT,
            no=7,
            step=0,
            io_key="k",
            argv=("hostname",),
            env={"A": "b"},
            cwd="/w",
            umask=18,
            cpu_bind="cores",
            task_epilog=("/t",),
            window=orders.Window(24, 80),
            mpi="pmi2",
            world=orders.World(name="1.2.0", node_of_rank=[0, 1], first_rank=0),
            tasks=[
                orders.StepTask(id=0, env={"B": "c"}, terminal=True),
                orders.StepTask(
                    id=1,
                    env={},
                    stdin="/i",
                    stdout="/o",
                    stderr="/e",
                    argv=("x",),
                    unopened=orders.Unopened("stdin", "/i", 13),
                ),
            ],
            cpu_ids=(0, 1),
            hosts={"n1": "10.0.0.1"},
            scripts={"/t": "#!/bin/sh"},
        ),
    ),
    (
        '{"op":"signal_step","step":3,"signal":9,"job":1,"gen":2,"no":8}',
        orders.SignalStep(**ABOUT, step=3, signal=9, no=8),
    ),
    (
        '{"op":"terminate_step","job":1,"gen":2,"step":3,"grace_s":0,"cause":"","no":9}',
        orders.TerminateStep(**ABOUT, step=3, grace_s=0, no=9),
    ),
    ('{"op":"ack","job":1,"gen":2,"no":10}', orders.Acknowledge(**ABOUT, no=10)),
    ('{"op":"ack","seq":17}', orders.Acknowledge(seq=17)),
    ('{"op":"usage","job":1,"id":11}', orders.TellUsage(job=1, id=11)),
    ('{"op":"ping","id":0}', orders.Ping(id=0)),
    ('{"op":"exit","if_idle":true}', orders.Exit(if_idle=True)),
    ('{"op":"exit","grace_s":2.5}', orders.Exit(grace_s=2.5)),
]
"""Protocol 2 as daemons spoke it before its lines had classes."""
ORDERS_3: list[tuple[str, orders.AnyOrder]] = [
    (
        f'{{"op":"start",{PREPARE},"alone":true,"replica":{{"service":"chat","revision":2,"number":7,"port":20001,'
        '"probes":{"startup":{"path":"","command":[],"initial_delay_s":0.0,"period_s":1.0,"timeout_s":1.0,'
        '"success_threshold":1,"failure_threshold":1800},"readiness":{"path":"/health","period_s":2.0},'
        '"liveness":{"command":["test","-e","alive"]}}},"no":2}',
        orders.Start(
            **PREPARED,
            no=2,
            alone=True,
            replica=ReplicaOf(
                "chat",
                2,
                7,
                20001,
                Probes(
                    readiness=Probe(path="/health", period_s=2.0),
                    liveness=Probe(command=("test", "-e", "alive")),
                ),
            ),
        ),
    ),
]
"""What protocol 3 added."""


@pytest.mark.parametrize(("line", "means"), ORDERS_2 + ORDERS_3)
def test_a_daemon_of_an_earlier_release_is_understood(line: str, means: orders.AnyOrder) -> None:
    assert orders.read_order(line.encode()) == means


def test_every_kind_of_order_was_recorded() -> None:
    assert {type(means) for _, means in ORDERS_2} == set(get_args(orders.AnyOrder))


LOOKED_FOR = {
    orders.Prepare: {"job", "gen", "uid", "gid"},
    orders.Start: {"job", "gen", "uid", "gid"},
    orders.Batch: {"script", "env", "cwd", "stdout"},
    orders.Terminate: {"job", "gen", "grace_s"},
    orders.Signal: {"job", "gen", "signal"},
    orders.Tell: {"job", "gen", "text"},
    orders.StartStep: {"job", "gen", "step", "tasks", "env", "cwd"},
    orders.StepTask: {"id", "env"},
    orders.SignalStep: {"job", "gen", "step", "signal"},
    orders.TerminateStep: {"job", "gen", "step", "grace_s"},
    orders.TellUsage: {"job", "id"},
    orders.Ping: {"id"},
}
"""What agents of protocol 2 took from an order without asking whether it was there."""


@pytest.mark.parametrize(("kind", "names"), LOOKED_FOR.items())
def test_what_earlier_agents_look_for_is_always_written(kind: type[msgspec.Struct], names: set[str]) -> None:
    """Whatever has its default is left out."""
    assert {field.encode_name for field in msgspec.structs.fields(kind) if field.required} == names


def test_what_is_not_said_is_not_written() -> None:
    """Earlier agents ask whether it is there: a null would be something."""
    order = orders.Start(**PREPARED, batch=orders.Batch(script="", env={}, cwd="/", stdout=""))
    assert not {"no", "alone", "replica"} & set(msgspec.to_builtins(order))
    assert set(msgspec.to_builtins(orders.StepTask(id=0, env={}))) == {"id", "env"}


@pytest.mark.parametrize(
    ("line", "gist", "is_known"),
    [
        (b'{"op":"dance","no":4}', orders.Gist("dance", 4), False),
        (b'{"op":"start","job":1,"gen":2,"no":4}', orders.Gist("start", 4, 1, 2), True),
        (b'{"op":"step","job":1,"gen":2,"step":"x","no":true}', orders.Gist("step", None, 1, 2), True),
        (b'{"op":"signal","job":1e999,"gen":2}', orders.Gist("signal", gen=2), True),
    ],
)
def test_an_order_that_cannot_be_read_can_be_answered(line: bytes, gist: orders.Gist, is_known: bool) -> None:
    with pytest.raises(orders.UnreadableOrderError) as caught:
        orders.read_order(line)
    assert (caught.value.gist, caught.value.is_known) == (gist, is_known)
