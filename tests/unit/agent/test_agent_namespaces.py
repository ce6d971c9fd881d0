"""A virtual node's names: as root, without root, and where the kernel says no.

Entering a namespace is for good, so that every real test does it in a child of its own.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.agent.confining import namespaces
from bireme.agent.confining.namespaces import (
    enter_virtual_node,
    hosts_file,
    loopback_address,
    nsswitch_with_files_first,
)
from bireme.agent.system.capability import Capability

UNPRIVILEGED = os.geteuid() or 65534
HOSTS = {"n1": "127.0.1.1", "n2": "127.0.1.2", "n3": "127.0.1.3"}
AS_WHOM = pytest.mark.parametrize(
    "uid",
    [
        pytest.param(0, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can be root")),
        pytest.param(UNPRIVILEGED),
    ],
    ids=["root", "user"],
)


def in_child(uid: int, action) -> Any:
    """What the action returns when a child with that uid runs it."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid != os.geteuid():
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again, as after any exec
            result = action()
        except BaseException as error:
            result = repr(error)
        os.write(write_fd, json.dumps(result).encode())
        os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text)


@pytest.fixture
def open_path() -> Path:
    """A folder any user can write to, unlike pytest's own."""
    folder = Path("/tmp") / f"bireme-test-{os.getpid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    yield folder
    subprocess.run(["rm", "-r", str(folder)], check=True)


def enter_and_look(etc_dir: Path) -> dict[str, Any]:
    isolation = enter_virtual_node("n3", HOSTS, etc_dir)
    shell = "hostname; id -u; getent hosts n1 n2 n3 | awk '{print $1}'"
    seen = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False).stdout.split()
    return {
        "kind": isolation.kind,
        "missing": isolation.missing,
        "task": seen,
        "own": namespaces._resolve(socket.gethostname()),
        "localhost": namespaces._resolve("localhost"),
    }


@AS_WHOM
def test_inside_a_node_every_name_has_its_address(uid, open_path):
    if not all(capability.ok for capability in in_child_probe(uid)):
        pytest.skip("this kernel grants no namespaces to this user")
    before = socket.gethostname(), Path("/etc/hosts").read_text()
    seen = in_child(uid, lambda: enter_and_look(open_path))
    assert seen == {
        "kind": "root" if uid == 0 else "user",
        "missing": [],
        "task": ["n3", str(uid), "127.0.1.1", "127.0.1.2", "127.0.1.3"],
        "own": "127.0.1.3",
        "localhost": "127.0.0.1",
    }
    assert (socket.gethostname(), Path("/etc/hosts").read_text()) == before, "the machine must not notice"


def in_child_probe(uid: int) -> list[Capability]:
    rows = in_child(uid, lambda: [[c.name, c.ok, c.why] for c in namespaces.probe()])
    return [Capability(*row) for row in rows]


@AS_WHOM
def test_probe_answers_and_leaves_no_trace(uid):
    before = set(os.listdir("/tmp"))
    capabilities = in_child_probe(uid)
    assert [c.name for c in capabilities] == ["virtual host names", "virtual hosts file"]
    assert all(c.why for c in capabilities)
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("bireme-probe")]


def test_where_the_kernel_refuses_the_reason_comes_back_and_the_process_is_unharmed(tmp_path, monkeypatch):
    def refusing(flags: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), "unshare")

    monkeypatch.setattr(namespaces, "unshare", refusing)
    isolation = enter_virtual_node("n3", HOSTS, tmp_path)
    assert isolation.kind == "none"
    assert len(isolation.missing) == 1
    assert "host name and hosts file of a virtual node: " in isolation.missing[0]
    assert [c.ok for c in namespaces.probe()] == [False, False]


def test_nodes_without_root_share_one_user_namespace_and_can_look_at_each_other(open_path):
    """MPI libraries open /proc/PID/fd of ranks on this machine: what separate user namespaces would forbid."""

    def two_nodes() -> list[bool]:
        shared = namespaces.shared_user_namespace([])
        first, ready = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:  # node n1 holds a pipe open until n2 has looked at it
            enter_virtual_node("n1", HOSTS, open_path / "n1", shared)
            os.write(ready[1], b"+")
            os.close(first[1])
            os.read(first[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        joined = namespaces.shared_user_namespace([pid])  # as an agent that is started again later does
        enter_virtual_node("n2", HOSTS, open_path / "n2", joined)
        same = os.stat("/proc/self/ns/user").st_ino == os.stat(f"/proc/{pid}/ns/user").st_ino
        readable = bool(os.listdir(f"/proc/{pid}/fd"))
        os.close(first[1])
        os.waitpid(pid, 0)
        return [same, readable, os.getuid() == UNPRIVILEGED]

    if not in_child(UNPRIVILEGED, lambda: namespaces.probe()[0].ok):
        pytest.skip("this kernel refuses user namespaces")
    assert in_child(UNPRIVILEGED, two_nodes) == [True, True, True]


@AS_WHOM
def test_an_unusable_folder_is_reported_not_raised(uid):
    def enter() -> list[str]:
        return enter_virtual_node("n3", HOSTS, "/proc/no-such-place").missing

    missing = in_child(uid, enter)
    assert len(missing) == 1
    assert "/etc/hosts of the node: could not write" in missing[0] or "virtual node:" in missing[0]


# --- the texts -----------------------------------------------------------------------------------------------


def test_hosts_file_puts_nodes_first_and_takes_their_names_from_the_machine():
    machine = "127.0.0.1 localhost\n127.0.1.1 box.example box n2 # own name\n# note\n\n10.0.0.9 n3\n::1 ip6-localhost\n"
    assert hosts_file(machine, HOSTS).splitlines() == [
        "127.0.1.1\tn1",
        "127.0.1.2\tn2",
        "127.0.1.3\tn3",
        "127.0.0.1 localhost",
        "127.0.1.1\tbox.example\tbox",
        "# note",
        "",
        "::1 ip6-localhost",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hosts:          files dns", None),
        (
            "hosts: mymachines resolve [!UNAVAIL=return] files myhostname dns",
            "hosts: files mymachines resolve [!UNAVAIL=return] myhostname dns",
        ),
        ("hosts: dns", "hosts: files dns"),
        ("hosts:", "hosts: files"),
        ("#hosts: dns", None),
    ],
)
def test_files_are_asked_first(line, expected):
    changed = nsswitch_with_files_first(f"passwd: files\n{line}\n")
    assert changed == (None if expected is None else f"passwd: files\n{expected}\n")


def test_loopback_addresses():
    assert [loopback_address(i) for i in (0, 253, 254, 255 * 254)] == [
        "127.0.1.1",
        "127.0.1.254",
        "127.0.2.1",
        "127.1.0.1",
    ]
    with pytest.raises(ValueError, match="no loopback address"):
        loopback_address(65535 * 254)
    with pytest.raises(ValueError, match="no loopback address"):
        loopback_address(-1)


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_no_two_nodes_share_an_address(one, other):
    assert (loopback_address(one) == loopback_address(other)) == (one == other)
    assert not loopback_address(one).startswith("127.0.0.")
