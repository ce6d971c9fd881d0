"""The PMI server: both wire protocols by hand, and a real MPI program where MPICH is installed."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.agent.mpi.pmi import Abort, Fence, PmiNode, PmiStep, Send, process_mapping

MPI_PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size, sum, local, one;
    MPI_Comm node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    one = rank + 1;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &local);
    printf("%d/%d sum=%d local=%d\n", rank, size, sum, local);
    if (argc > 1 && rank == 1) MPI_Abort(MPI_COMM_WORLD, 7);
    MPI_Finalize();
    return 0;
}
"""


def node_of(size: int, *local_ranks: int) -> PmiNode:
    return PmiNode(PmiStep("7.0", size, local_ranks or tuple(range(size)), f"(vector,(0,1,{size}))"))


def ask(node: PmiNode, rank: int, line: str) -> str:
    """One PMI-1 line and its answer."""
    (action,) = node.handle(rank, line.encode() + b"\n")
    assert isinstance(action, Send)
    assert action.rank == rank
    return action.data.decode()


def framed(body: str) -> bytes:
    return b"%6d" % len(body) + body.encode()


def ask2(node: PmiNode, rank: int, body: str) -> str:
    """One PMI-2 message and its answer."""
    (action,) = node.handle(rank, framed(body))
    assert isinstance(action, Send)
    assert int(action.data[:6]) == len(action.data) - 6
    return action.data[6:].decode()


def pmi2_node(size: int) -> PmiNode:
    node = node_of(size)
    for rank in range(size):
        assert ask(node, rank, "cmd=init pmi_version=2 pmi_subversion=0") == (
            "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n"
        )
    return node


# --- PMI-1 ---------------------------------------------------------------------------------------------------


def test_pmi1_answers_who_and_where():
    node = node_of(2)
    assert "pmi_version=1 pmi_subversion=1 rc=0" in ask(node, 0, "cmd=init pmi_version=1 pmi_subversion=1")
    assert ask(node, 0, "cmd=get_maxes") == "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n"
    assert ask(node, 0, "cmd=get_my_kvsname") == "cmd=my_kvsname rc=0 kvsname=7.0\n"
    assert ask(node, 0, "cmd=get_universe_size") == "cmd=universe_size rc=0 size=2\n"
    assert ask(node, 0, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0\n"
    assert "value=(vector,(0,1,2))" in ask(node, 0, "cmd=get kvsname=7.0 key=PMI_process_mapping")


def test_pmi1_barrier_waits_for_every_task_of_every_node():
    first, second = node_of(3, 0, 1), node_of(3, 2)
    ask(first, 0, "cmd=put kvsname=7.0 key=a value=from=0")
    ask(second, 2, "cmd=put kvsname=7.0 key=c value=2")
    assert "rc=-1" in ask(second, 2, "cmd=get kvsname=7.0 key=a")
    assert first.handle(0, b"cmd=barrier_in\n") == []
    assert second.handle(2, b"cmd=barrier_in\n") == [Fence({"c": "2"})]
    assert first.handle(1, b"cmd=barrier_in\n") == [Fence({"a": "from=0"})]
    merged = {"a": "from=0", "c": "2"}
    assert first.complete_fence(merged) == [Send(0, b"cmd=barrier_out rc=0\n"), Send(1, b"cmd=barrier_out rc=0\n")]
    assert second.complete_fence(merged) == [Send(2, b"cmd=barrier_out rc=0\n")]
    assert ask(second, 2, "cmd=get kvsname=7.0 key=a") == "cmd=get_result rc=0 value=from=0\n"


def test_a_fence_cannot_open_early_nor_be_entered_twice():
    node = node_of(2)
    node.handle(0, b"cmd=barrier_in\n")
    with pytest.raises(ValueError, match="before every local task"):
        node.complete_fence({})
    assert isinstance(node.handle(0, b"cmd=barrier_in\n")[0], Abort)


def test_pmi1_refuses_what_it_cannot_do():
    node = node_of(1)
    assert "rc=-1" in ask(node, 0, "cmd=put kvsname=7.0 key=%s value=1" % ("k" * 65))
    assert "rc=-1" in ask(node, 0, "cmd=publish_name service=x port=y")
    assert "rc=-1" in ask(node, 0, "mcmd=spawn")


def test_abort_carries_its_code_and_goodbye_is_remembered():
    node = node_of(2)
    for rank in (0, 1):
        ask(node, rank, "cmd=init pmi_version=1 pmi_subversion=1")
    assert node.handle(0, b"cmd=abort exitcode=7\n") == [Abort(0, 7, "rank 0 called abort")]
    for code in ("--5", "-", "\u00b2", "9" * 5000, "1e9"):
        said = f"cmd=abort exitcode={code}\n".encode()
        assert node.handle(0, said) == [Abort(0, 1, "rank 0 called abort")]
    assert ask(node, 1, "cmd=finalize") == "cmd=finalize_ack rc=0\n"


# --- PMI-2 ---------------------------------------------------------------------------------------------------


def test_pmi2_full_exchange():
    node = pmi2_node(2)
    answer = ask2(node, 1, "cmd=fullinit;pmijobid=7.0;pmirank=1;threaded=FALSE;")
    assert answer.startswith("cmd=fullinit-response;rc=0;")
    assert "rank=1;size=2;appnum=0;" in answer
    assert ask2(node, 0, "cmd=job-getid;") == "cmd=job-getid-response;rc=0;jobid=7.0;"
    mapping = ask2(node, 0, "cmd=info-getjobattr;key=PMI_process_mapping;")
    assert mapping == "cmd=info-getjobattr-response;rc=0;found=TRUE;value=(vector,(0,1,2));"
    assert "found=FALSE" in ask2(node, 0, "cmd=info-getjobattr;key=hasNameServ;")
    assert ask2(node, 0, "cmd=kvs-put;key=card;value=a;;b=c;") == "cmd=kvs-put-response;rc=0;"
    assert node.handle(0, framed("cmd=kvs-fence;")) == []
    assert node.handle(1, framed("cmd=kvs-fence;")) == [Fence({"card": "a;b=c"})]
    replies = node.complete_fence({"card": "a;b=c"})
    assert [reply.data for reply in replies] == [framed("cmd=kvs-fence-response;rc=0;")] * 2
    assert ask2(node, 1, "cmd=kvs-get;jobid=7.0;srcid=-1;key=card;") == (
        "cmd=kvs-get-response;rc=0;found=TRUE;value=a;;b=c;"
    )
    assert ask2(node, 1, "cmd=finalize;") == "cmd=finalize-response;rc=0;"
    assert node.handle(0, framed("cmd=abort;isworld=TRUE;msg=no way;")) == [Abort(0, 1, "no way")]


def test_pmi2_node_attribute_is_waited_for():
    node = pmi2_node(2)
    assert "found=FALSE" in ask2(node, 1, "cmd=info-getnodeattr;key=shm;wait=FALSE;")
    assert node.handle(1, framed("cmd=info-getnodeattr;thrid=9;key=shm;wait=TRUE;")) == []
    mine, theirs = node.handle(0, framed("cmd=info-putnodeattr;key=shm;value=/x;"))
    assert mine == Send(0, framed("cmd=info-putnodeattr-response;rc=0;"))
    assert theirs == Send(1, framed("cmd=info-getnodeattr-response;thrid=9;rc=0;found=TRUE;value=/x;"))


def test_what_tasks_leave_with_a_node_is_bounded() -> None:
    """By how many they are; what is put again, or fenced, counts once."""
    node = node_of(1)
    ask(node, 0, "cmd=init pmi_version=1 pmi_subversion=1")
    for _ in range(3000):
        assert " rc=0" in ask(node, 0, f"cmd=put kvsname=7.0 key=again value={'x' * 1024}")
    answers = [ask(node, 0, f"cmd=put kvsname=7.0 key=k{number} value={'x' * 1024}") for number in range(2000)]
    kept = sum(" rc=0" in answer for answer in answers)
    assert 900 < kept < 1100
    assert "rc=-1 msg=no_room" in answers[-1]
    (fence,) = node.handle(0, b"cmd=barrier_in\n")
    node.complete_fence(fence.pairs)
    assert "rc=-1 msg=no_room" in ask(node, 0, "cmd=put kvsname=7.0 key=more value=" + "x" * 1024)
    assert "value=xxx" in ask(node, 0, "cmd=get kvsname=7.0 key=k0")


def test_what_other_nodes_put_is_bounded_too() -> None:
    node = node_of(2, 0)
    ask(node, 0, "cmd=init pmi_version=1 pmi_subversion=1")
    node.handle(0, b"cmd=barrier_in\n")
    (abort,) = node.complete_fence({f"k{number}": "x" * 1024 for number in range(2000)})
    assert isinstance(abort, Abort)
    assert "PMI: the step has put more than" in abort.message


def test_pmi2_attributes_and_waits_are_bounded() -> None:
    node = pmi2_node(1)
    answers = [ask2(node, 0, f"cmd=info-putnodeattr;key=k{number};value={'x' * 900_000};") for number in range(3)]
    assert ["rc=0" in answer for answer in answers] == [True, False, False]
    actions = [node.handle(0, framed(f"cmd=info-getnodeattr;key=n{number};wait=TRUE;")) for number in range(100)]
    assert [type(action) for each in actions for action in each][:1] == [Abort]


def test_pmi2_garbage_ends_the_step_not_the_agent():
    node = pmi2_node(1)
    (action,) = node.handle(0, b"hello world")
    assert isinstance(action, Abort)
    assert "rc=-1" in ask2(pmi2_node(1), 0, "cmd=spawn;ncmds=1;")


# --- both ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 7), max_size=20))
def test_messages_may_arrive_in_any_pieces(cuts):
    node = node_of(1)
    stream = (
        b"cmd=init pmi_version=2 pmi_subversion=0\n" + framed("cmd=kvs-put;key=a;value=1;") + framed("cmd=job-getid;")
    )
    whole = node_of(1).handle(0, stream)
    pieces = []
    for cut in cuts:
        pieces, stream = [*pieces, stream[:cut]], stream[cut:]
    assert [action for piece in (*pieces, stream) for action in node.handle(0, piece)] == whole


@given(st.binary(max_size=200))
def test_no_bytes_break_the_server(data):
    for node in (node_of(1), pmi2_node(1)):
        node.handle(0, data)


@pytest.mark.parametrize(
    ("node_of_rank", "mapping"),
    [
        ([0, 0, 0, 0], "(vector,(0,1,4))"),
        ([0, 0, 1, 1], "(vector,(0,2,2))"),
        ([0, 1, 0, 1], "(vector,(0,2,1))"),
        ([0, 0, 0, 1, 1], "(vector,(0,1,3),(1,1,2))"),
        ([0, 1, 2, 0, 1], "(vector,(0,3,1),(0,2,1))"),
        ([1, 1, 0, 0], "(vector,(1,1,2),(0,1,2))"),
    ],
)
def test_process_mapping(node_of_rank, mapping):
    assert process_mapping(node_of_rank) == mapping


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_process_mapping_reads_back(node_of_rank):
    text = process_mapping(node_of_rank).removeprefix("(vector,(").removesuffix("))")
    blocks = [tuple(map(int, block.split(","))) for block in text.split("),(")]
    dealt: list[int] = []
    while len(dealt) < len(node_of_rank):
        dealt += [node for first, nodes, tasks in blocks for node in range(first, first + nodes) for _ in range(tasks)]
    assert dealt[: len(node_of_rank)] == node_of_rank


# --- a real MPI library --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def mpi_program(tmp_path_factory) -> Path:
    compiler = shutil.which("mpicc.mpich") or shutil.which("mpicc")
    if compiler is None:
        pytest.skip("no MPI compiler is installed")
    folder = tmp_path_factory.mktemp("mpi")
    (folder / "program.c").write_text(MPI_PROGRAM)
    subprocess.run([compiler, "-o", str(folder / "program"), str(folder / "program.c")], check=True)
    return folder / "program"


def run_step(program: Path, node_of_rank: list[int], *arguments: str) -> tuple[list[str], list[Abort]]:
    """A toy coordinator: every node in this process, one socket pair a task, killed by the first abort."""
    size, mapping = len(node_of_rank), process_mapping(node_of_rank)
    nodes = {
        name: PmiNode(PmiStep("1.0", size, tuple(r for r in range(size) if node_of_rank[r] == name), mapping))
        for name in sorted(set(node_of_rank))
    }
    put: dict[int, dict[str, str]] = {}
    sockets, tasks, aborts = {}, [], []
    for rank, name in enumerate(node_of_rank):
        ours, theirs = socket.socketpair()
        env = {**os.environ, **nodes[name].step.environment(rank, theirs.fileno())}
        command = [str(program), *arguments]
        tasks.append(subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True))
        theirs.close()
        sockets[ours] = rank

    def carry_out(name: int, actions: list) -> None:
        for action in actions:
            match action:
                case Send(rank, data):
                    next(s for s, r in sockets.items() if r == rank).sendall(data)
                case Fence(pairs):
                    put[name] = pairs
                    if len(put) < len(nodes):
                        continue
                    merged = {key: value for pairs in put.values() for key, value in pairs.items()}
                    put.clear()
                    for other, node in nodes.items():
                        carry_out(other, node.complete_fence(merged))
                case Abort():
                    aborts.append(action)
                    for task in tasks:
                        task.kill()

    while sockets:
        for ready in select.select(list(sockets), [], [])[0]:
            rank = sockets[ready]
            try:
                data = ready.recv(65536)
            except ConnectionResetError:
                data = b""
            if data:
                carry_out(node_of_rank[rank], nodes[node_of_rank[rank]].handle(rank, data))
            else:
                del sockets[ready]
                ready.close()
    outputs = [task.communicate()[0] for task in tasks]
    return sorted("".join(outputs).splitlines()), aborts


@pytest.mark.parametrize("node_of_rank", [[0, 0, 1, 1], [0, 1, 0, 1]], ids=["block", "cyclic"])
def test_mpich_program_on_two_nodes(mpi_program, node_of_rank):
    lines, aborts = run_step(mpi_program, node_of_rank)
    assert lines == [f"{rank}/4 sum=10 local=2" for rank in range(4)]
    assert aborts == []


def test_mpi_abort_reaches_the_coordinator(mpi_program):
    _, aborts = run_step(mpi_program, [0, 1], "abort")
    assert (aborts[0].rank, aborts[0].exit_code) == (1, 7)
