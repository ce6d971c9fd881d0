"""Making a virtual node look like a node: its own host name, and every node's name with its own address.

Called once by the agent of a virtual node, right after it was forked and before it has a thread or a task:
the process enters a private UTS and mount namespace (without root: inside a user namespace that keeps the
caller's uid and gid) and sees its own /etc/hosts. Tasks inherit all of it. `probe` tries the same in a child
that is thrown away, for `bireme doctor`.

Without root all nodes of a cluster share one user namespace. Each in its own, the kernel would keep their processes
from opening each other's /proc/PID/fd, and MPI libraries, which see one machine, fail to share memory there.

It is no security boundary: processes, network and files are shared with the machine.

Invariant: nothing here changes the machine outside the calling process, and nothing here raises: what the
kernel refuses is returned in words, and jobs run without it. A step that could leave the process worse off
than before (a user namespace without a usable uid) is rehearsed in a child first.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bireme.agent.system.capability import Capability
from bireme.agent.system.mounts import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_BIND,
    keep_mounts_private,
    map_ids,
    mount,
    setns,
    unshare,
)
from bireme.agent.system.refusals import namespace_refusal
from bireme.agent.system.trying import in_child

_HOSTS = "/etc/hosts"
_NSSWITCH = "/etc/nsswitch.conf"
_NSCD_SOCKETS = ("/run/nscd/socket", "/var/run/nscd/socket")
_ADDRESSES_PER_BLOCK = 254

IsolationKind = Literal["root", "user", "none"]


@dataclass(frozen=True, slots=True)
class NodeIsolation:
    """How far the process became its node: by which right, and what is missing, in words."""

    kind: IsolationKind
    missing: list[str]


def loopback_address(index: int) -> str:
    """The address of the cluster's `index`-th node: 127.0.1.1 for 0, 127.0.2.1 for 254, and so on.

    127.0.0.x is left to the machine; Linux answers on all of 127.0.0.0/8 without set-up.
    """
    block, host = divmod(index, _ADDRESSES_PER_BLOCK)
    high, low = divmod(block + 1, 256)
    if index < 0 or high > 255:
        raise ValueError(f"there is no loopback address for node {index}")
    return f"127.{high}.{low}.{host + 1}"


def shared_user_namespace(agents: Iterable[int]) -> int | None:
    """A descriptor of the user namespace for this cluster's nodes: that of a living agent, else a new one.

    None when none is needed (root) or none can be had; each node then tries for itself.
    """
    if os.geteuid() == 0:
        return None
    own = os.stat("/proc/self/ns/user").st_ino
    for pid in agents:
        try:
            found = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it ended meanwhile
            continue
        if os.fstat(found).st_ino != own and in_child(partial(_rehearse, "user", found)).get("ok"):
            return found
        os.close(found)
    return _new_user_namespace()


def enter_virtual_node(
    name: str, hosts: Mapping[str, str], etc_dir: str | Path, user_namespace: int | None = None
) -> NodeIsolation:
    """Turn this single-threaded process into the node `name`; `hosts` maps every node's name to its address.

    `etc_dir` is a private folder for the files that are mounted over the machine's own; `user_namespace` what
    `shared_user_namespace` gave.
    """
    kind, refusal = _granted_namespace()
    if kind == "none":
        return NodeIsolation(kind, [f"host name and hosts file of a virtual node: {refusal}"])
    missing: list[str] = []
    try:
        _unshare(kind, user_namespace)
        keep_mounts_private()
    except OSError as error:
        return NodeIsolation("none", [f"host name and hosts file of a virtual node: {namespace_refusal(error)}"])
    try:
        socket.sethostname(name)
    except OSError as error:
        missing.append(f"host name {name}: {namespace_refusal(error)}")
    missing += _mount_files(name, hosts, Path(etc_dir))
    return NodeIsolation(kind, missing)


def probe() -> list[Capability]:
    """What a virtual node would get on this machine, tried in a child and left no trace of."""
    kind, refusal = _granted_namespace()
    if kind == "none":
        return [Capability("virtual host names", False, refusal), Capability("virtual hosts file", False, refusal)]
    how = "as root" if kind == "root" else "in a user namespace that keeps your uid"
    trial = {"hostname": False, "resolves": False, **in_child(_try_names)}
    missing = trial.get("why") or "; ".join(trial["missing"])
    return [
        Capability("virtual host names", trial["hostname"], how if trial["hostname"] else missing),
        Capability("virtual hosts file", trial["resolves"], how if trial["resolves"] else missing),
    ]


# --- the namespace -----------------------------------------------------------------------------------------


def _granted_namespace() -> tuple[IsolationKind, str]:
    """The kind of namespace this process may enter, or why none: found out by doing it in a child."""
    kind: IsolationKind = "root" if os.geteuid() == 0 else "user"
    outcome = in_child(lambda: _rehearse(kind))
    return (kind, "") if outcome.get("ok") else ("none", outcome["why"])


def _rehearse(kind: IsolationKind, user_namespace: int | None = None) -> dict[str, Any]:
    ids = os.getuid(), os.getgid()
    try:
        _unshare(kind, user_namespace)
        keep_mounts_private()
        socket.sethostname("rehearsal")
    except OSError as error:
        return {"ok": False, "why": namespace_refusal(error)}
    if (os.getuid(), os.getgid()) != ids:
        return {"ok": False, "why": "the kernel did not keep the uid inside the user namespace"}
    return {"ok": True}


def _unshare(kind: IsolationKind, user_namespace: int | None) -> None:
    if kind == "user" and user_namespace is not None:
        setns(user_namespace, CLONE_NEWUSER)
    elif kind == "user":
        _unshare_user()
    unshare(CLONE_NEWUTS | CLONE_NEWNS)


def _unshare_user() -> None:
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER)
    map_ids(uid, gid)


def _new_user_namespace() -> int | None:
    """Made by a child that waits until we hold it open."""
    ready_fd, say_fd = os.pipe()
    wait_fd, release_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(release_fd)
            _unshare_user()
            os.write(say_fd, b"+")
            os.read(wait_fd, 1)
        finally:
            os._exit(0)
    os.close(say_fd)
    os.close(wait_fd)
    try:
        made = os.read(ready_fd, 1) == b"+"
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC) if made else None
    except OSError:
        return None
    finally:
        os.close(ready_fd)
        os.close(release_fd)
        os.waitpid(pid, 0)


# --- the files ---------------------------------------------------------------------------------------------


def hosts_file(machine_hosts: str, hosts: Mapping[str, str]) -> str:
    """The node's /etc/hosts: the nodes first, then the machine's lines without names the nodes now own.

    Nodes come first because a lookup by address takes the first match, and Debian gives the machine's own
    name the very address of our first node.
    """
    lines = [f"{address}\t{name}" for name, address in hosts.items()]
    for line in machine_hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        kept = [name for name in names if name not in hosts]
        if kept == names:
            lines.append(line)
        elif kept:
            lines.append("\t".join([address, *kept]))
    return "\n".join(lines) + "\n"


def nsswitch_with_files_first(text: str) -> str | None:
    """The file with `files` asked first for hosts; None when that is so already.

    With `resolve [!UNAVAIL=return]` or `dns` in front, a resolver outside the namespace answers "no such
    host" and our file is never read.
    """
    lines = text.splitlines()
    for index, line in enumerate(lines):
        database, colon, rest = line.partition("#")[0].partition(":")
        if colon and database.strip() == "hosts":
            sources = rest.split()
            if sources[:1] == ["files"]:
                return None
            others = " ".join(source for source in sources if source != "files")
            lines[index] = f"hosts: files {others}".rstrip()
            return "\n".join(lines) + "\n"
    return None  # without a hosts line the C library asks files first


def _mount_files(name: str, hosts: Mapping[str, str], etc_dir: Path) -> list[str]:
    """Mount our files over the machine's; returns what did not work."""
    missing = []
    if not os.path.exists(_HOSTS):
        missing.append(f"names of other nodes: this machine has no {_HOSTS} to mount one over")
    else:
        missing += _mount_text(etc_dir / "hosts", hosts_file(_read(_HOSTS), hosts), _HOSTS)
    rewritten = nsswitch_with_files_first(_read(_NSSWITCH))
    if rewritten is not None:
        missing += _mount_text(etc_dir / "nsswitch.conf", rewritten, _NSSWITCH)
    for nscd in _NSCD_SOCKETS:
        # The name-service cache would answer from outside the namespace; without its socket nobody asks it.
        if os.path.exists(nscd) and not _bind("/dev/null", nscd):
            missing.append(f"names of other nodes: the name cache at {nscd} answers in the machine's place")
            break
    return missing


def _mount_text(source: Path, text: str, target: str) -> list[str]:
    try:
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
        source.chmod(0o644)  # whatever our umask: tasks of other users read it too
    except OSError as error:
        return [f"{target} of the node: could not write {source}: {error.strerror}"]
    if not _bind(str(source), target):
        return [f"{target} of the node: the kernel refused to mount {source} over it"]
    return []


def _bind(source: str, target: str) -> bool:
    try:
        mount(source, target, None, MS_BIND)
    except OSError:
        return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


# --- trying things in a child ------------------------------------------------------------------------------


def _try_names() -> dict[str, Any]:
    """Enter a node and look whether its name and another's resolve."""
    name, other = "bireme-probe-a", "bireme-probe-b"
    hosts = {name: loopback_address(0), other: loopback_address(1)}
    etc_dir = Path(os.environ.get("TMPDIR", "/tmp"), f"bireme-probe-{os.getpid()}")
    try:
        isolation = enter_virtual_node(name, hosts, etc_dir)
        try:
            resolves = all(_resolve(node) == address for node, address in hosts.items())
        except OSError as error:
            resolves = False
            isolation.missing.append(f"names of other nodes do not resolve: {error}")
        return {"hostname": socket.gethostname() == name, "resolves": resolves, "missing": isolation.missing}
    finally:
        for file in ("hosts", "nsswitch.conf"):
            (etc_dir / file).unlink(missing_ok=True)
        if etc_dir.exists():
            etc_dir.rmdir()


def _resolve(name: str) -> str:
    # As bytes: for a str Python would load its idna codec, from files this user may not be able to read.
    return str(socket.getaddrinfo(name.encode(), None, socket.AF_INET)[0][4][0])
