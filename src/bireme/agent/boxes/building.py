"""Builds a box, in a child that has become the user: namespaces, the image as root, the machine's parts in it.

Called by `starting/spawn` for a birth that has a blueprint and no program. The child ends when its box stands: what
keeps a box is the descriptors of its namespaces, which go to the agent over a socket, and the processes in it. So
nothing is to be cleaned up: with the last of them gone, what was written in memory is gone too.

The image lies below an overlay whose upper layer is in memory. Where the kernel allows users none, the image is
read-only, folder by folder, beside folders in memory (`_without_overlay`).

Not here: where images come from, which GPUs a job has (`blueprint`), entering (`entering`).
Invariant: the machine outside the namespaces is not changed, and what a user may not read outside is not readable
inside: every path is opened with the user's rights.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from bireme.agent.boxes.blueprint import TMPFS, UMOUNT, Blueprint, Built, Mount, NotBuilt, Outcome, Part
from bireme.agent.boxes.commands import NONE, commands_of
from bireme.agent.boxes.graphics import driver_parts
from bireme.agent.boxes.places import is_there, make_link, open_file, open_folder, read_file, write_file
from bireme.agent.system.mounts import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_NODEV,
    MS_NOSUID,
    Attribute,
    attach,
    be_dumpable,
    become_root_of_all,
    clone_tree,
    keep_mounts_private,
    map_ids,
    mount,
    open_in_root,
    set_attributes,
    unmount,
    unshare,
)
from bireme.agent.system.refusals import namespace_refusal
from bireme.images.targets import why_not_at

KINDS = (CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWUTS)
"""Of a box's namespaces, in the order in which they are entered."""
ROOTS_HOME = "/root"
_FILES = ("user", "mnt", "uts")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse")
_DEVICE_FOLDERS = ("pts", "shm", "mqueue", "infiniband")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_COPIED = ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/etc/localtime")
"""As this node has them: names must resolve inside as they do outside."""
_APT = "/etc/apt/apt.conf.d"
_PLAIN = Attribute(0)
_SYSTEM = {"/proc": Attribute.NO_SETUID, "/sys": Attribute.READ_ONLY | Attribute.NO_SETUID, "/tmp": _PLAIN}
_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
"""What the machine's root may write to, whatever namespace it is in: a job of root's may run anybody's image."""
_FOLDERS = ("/proc", "/sys", "/dev", "/tmp", "/run")
"""The box's own, whatever an image has there."""
_IN_MEMORY = {"/run": "0755", "/var/tmp": "1777"}
_ATTRIBUTES = {
    "ro": Attribute.READ_ONLY,
    "nosuid": Attribute.NO_SETUID,
    "nodev": Attribute.NO_DEVICES,
    "noexec": Attribute.NO_EXECUTION,
}


@dataclass(frozen=True, slots=True)
class _User:
    """Who builds, as the machine knows them."""

    home: str
    passwd: str
    group: str
    """Their lines in the two files."""

    @classmethod
    def own(cls, *, as_root: bool) -> _User:
        if as_root:
            return cls(cls.own(as_root=False).home, f"root:x:0:0:root:{ROOTS_HOME}:/bin/sh", "root:x:0:")
        uid, gid = os.geteuid(), os.getegid()
        try:
            entry = pwd.getpwuid(uid)
            name, home, gecos = entry.pw_name, entry.pw_dir, entry.pw_gecos
        except KeyError:
            name, home, gecos = f"user{uid}", os.environ.get("HOME", "/"), ""
        try:
            group = grp.getgrgid(gid).gr_name
        except KeyError:
            group = f"group{gid}"
        return cls(home, f"{name}:x:{uid}:{gid}:{gecos}:{home}:/bin/sh", f"{group}:x:{gid}:")


class CannotBuildError(Exception):
    """The box cannot be had; the text is for the user."""


def build(blueprint: Blueprint, answer_fd: int) -> None:
    """Builds it and hands it over; what went wrong is the answer."""
    fds: list[int] = []
    try:
        be_dumpable()  # who has changed users may else not write its own maps
        outcome: Outcome = _build(blueprint, fds)
    except CannotBuildError as error:
        outcome = NotBuilt(str(error))
    except OSError as error:
        outcome = NotBuilt(f"couldn't start container: {error.filename or 'set up'}: {error.strerror}")
    except ValueError as error:
        outcome = NotBuilt(str(error))
    with socket.socket(fileno=answer_fd) as answer:
        socket.send_fds(answer, [msgspec.json.encode(outcome)], fds if isinstance(outcome, Built) else [])


def try_to_build(blueprint: Blueprint) -> Built:
    """For a process that ends after it. Raises CannotBuildError, OSError."""
    be_dumpable()
    return _build(blueprint, [])


def _build(blueprint: Blueprint, fds: list[int]) -> Built:
    if blueprint.saved_at and (why := why_not_at(blueprint.saved_at)):
        raise CannotBuildError(why)
    user = _User.own(as_root=blueprint.remap_root)
    _enter_namespaces(blueprint)
    if os.path.realpath(blueprint.root) == "/":
        raise CannotBuildError("the machine's own root is no image: leave --container-image out to run on it")
    image = _open(blueprint.root, os.O_DIRECTORY, "the image")
    # Taken before anything of the box is mounted, or the box would be seen in itself.
    system = [(_taken("/proc"), "/proc"), (_taken("/sys"), "/sys"), (_taken("/tmp"), "/tmp")]
    guarded = [(_taken(path), path) for path in _READ_ONLY if os.path.exists(path)]
    mounts = [(_source(each), each) for each in blueprint.mounts]
    home = _taken(user.home, "the home folder") if blueprint.mount_home else None
    commands = commands_of(blueprint.commands_of) if blueprint.commands_of else NONE
    wanted = (*blueprint.parts, *commands.parts, *_device_parts(blueprint))
    parts = [(taken, part) for part in wanted if (taken := _if_there(part))]
    notes: list[str] = []
    root = _overlay(blueprint, image, notes)
    if blueprint.graphics is not None:
        for part, links in driver_parts(root, blueprint.graphics):
            parts += [(taken, part)] if (taken := _if_there(part)) else []
            for path, leads_to in links.items():
                make_link(root, path, leads_to)
    tree = clone_tree(root, recursive=False) if blueprint.saved else -1
    _make_way(root)
    _mount_memory(root, "/dev", "mode=0755")
    _put_files(root, user)
    if blueprint.remap_root:
        _let_apt_be_root(root)
    _put_system(root, system)
    for taken, path in guarded:
        _put(root, taken, path, Attribute.READ_ONLY)
    for taken, part in parts:
        _put_part(root, taken, part)
    for path, text in commands.scripts.items():
        write_file(root, path, text.encode(errors="surrogateescape"), 0o755)
    _put_home(root, ROOTS_HOME if blueprint.remap_root else user.home, home)
    for source, asked in mounts:
        _put_mount(root, asked, source)
    _put_workdir(root, blueprint)
    if not blueprint.writable:
        set_attributes(root, Attribute.READ_ONLY, recursive=False)
    become_root_of_all(root)
    _check_workdir(blueprint)
    _check_interpreter(blueprint.interpreter)
    if blueprint.remap_root or os.geteuid() == 0:
        _lock_mounts()
    fds += [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _FILES]
    if tree >= 0:
        fds.append(tree)
    return Built(workdir=blueprint.workdir or "/", notes=tuple(notes))


def _enter_namespaces(blueprint: Blueprint) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS)
        map_ids(uid, gid, to_root=blueprint.remap_root)
    except OSError as error:
        raise CannotBuildError(f"containers cannot be started on this node: {namespace_refusal(error)}") from error
    keep_mounts_private()


def _lock_mounts() -> None:
    """In a further namespace of users who has all rights may undo none of these mounts, nor make one writable. The host
    name comes along: a task that has entered it has rights over nothing that belongs to the first."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS)
    map_ids(uid, gid)


# --- the root ----------------------------------------------------------------------------------------------


def _overlay(blueprint: Blueprint, image: int, notes: list[str]) -> int:
    """The image with memory over it. The folder of the image itself is where that memory is mounted, since nobody else
    has anything below it."""
    folder = os.fstat(image)
    belongs_to_user = (folder.st_uid, folder.st_gid) == (os.getuid(), os.getgid())
    mount("tmpfs", blueprint.root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    scratch = _open(blueprint.root, os.O_DIRECTORY, "the image")
    for name in ("upper", "work", "root"):
        os.mkdir(name, 0o755, dir_fd=scratch)
    target = f"/proc/self/fd/{scratch}/root"
    why = _try_overlay(image, scratch, target) if belongs_to_user else "its folder belongs to another user"
    if why and blueprint.saved:
        raise CannotBuildError(f"this image cannot be kept or saved: {why}")
    if why:
        if blueprint.writable:
            notes.append(f"the image is read-only: {why}")
        _without_overlay(image, target)
    return os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=scratch)


def _try_overlay(image: int, scratch: int, target: str) -> str:
    """Why there is none; empty: it is mounted at `target`."""
    layers = f"lowerdir=/proc/self/fd/{image},upperdir=/proc/self/fd/{scratch}/upper"
    try:
        mount("overlay", target, "overlay", MS_NODEV, f"{layers},workdir=/proc/self/fd/{scratch}/work,userxattr")
    except OSError as error:
        return f"the kernel allows no overlay here ({error.strerror})"
    return ""


def _without_overlay(image: int, target: str) -> None:
    """A root in memory whose folders are the image's, read-only; /etc is a copy, since files are put there."""
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=image)
    for entry in os.scandir(listed):
        if entry.is_symlink():
            make_link(root, entry.name, os.readlink(entry.name, dir_fd=image))
        elif entry.name == "etc" and entry.is_dir(follow_symlinks=False):
            _copy_folder(image, root, "etc")
        elif entry.is_dir(follow_symlinks=False) and f"/{entry.name}" not in ("/proc", "/sys", "/dev", "/tmp", "/run"):
            source = open_in_root(image, entry.name, os.O_PATH)
            _put(
                root, _Taken(clone_tree(source, recursive=True), is_folder=True), f"/{entry.name}", Attribute.READ_ONLY
            )
    os.close(listed)


def _copy_folder(image: int, root: int, path: str) -> None:
    os.close(open_folder(root, path))
    folder = open_in_root(image, path, os.O_RDONLY | os.O_DIRECTORY)
    for entry in os.scandir(folder):
        inside = f"{path}/{entry.name}"
        if entry.is_symlink():
            make_link(root, inside, os.readlink(entry.name, dir_fd=folder))
        elif entry.is_dir(follow_symlinks=False):
            _copy_folder(image, root, inside)
        elif entry.is_file(follow_symlinks=False):
            mode = entry.stat(follow_symlinks=False).st_mode & 0o777
            write_file(root, inside, read_file(image, inside, 1 << 26), mode)
    os.close(folder)


# --- what every box has ------------------------------------------------------------------------------------


def _put_system(root: int, system: Iterable[tuple[_Taken, str]]) -> None:
    for taken, path in system:
        _put(root, taken, path, _SYSTEM[path])
    for path, mode in _IN_MEMORY.items():
        with suppress(OSError):  # an image without overlay has it, or goes without
            _mount_memory(root, path, f"mode={mode}")
    for name, leads_to in _DEVICE_LINKS.items():
        make_link(root, f"/dev/{name}", leads_to)


def _make_way(root: int) -> None:
    """An image's links and files at these places are not followed: there is to be a folder."""
    for path in _FOLDERS:
        with suppress(FileNotFoundError):
            name = path.removeprefix("/")
            if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=root)


def _device_parts(blueprint: Blueprint) -> Iterator[Part]:
    own = (f"/dev/{name}" for name in (*_DEVICES, *_DEVICE_FOLDERS))
    return (Part(path, path) for path in (*own, *blueprint.devices))


def _put_files(root: int, user: _User) -> None:
    """Where the image's own file cannot be replaced (it is of a group that the user is not in now) it stays."""
    for path in _COPIED:
        with suppress(OSError), open(path, "rb") as file:
            write_file(root, path, file.read(1 << 20))
    for path, line in (("/etc/passwd", user.passwd), ("/etc/group", user.group)):
        with suppress(OSError):
            write_file(root, path, _first(line, read_file(root, path)))


def _let_apt_be_root(root: int) -> None:
    """apt fetches as another user and looks whether it has become one, which nobody can who is root by name alone."""
    if is_there(root, _APT):
        with suppress(OSError):
            write_file(root, f"{_APT}/99bireme", b'APT::Sandbox::User "root";\n')


def _first(line: str, before: bytes) -> bytes:
    """The user's own line before all others: a lookup takes the first."""
    return line.encode(errors="surrogateescape") + b"\n" + before


def _put_home(root: int, inside: str, home: _Taken | None) -> None:
    if home is not None:
        _put(root, home, inside)
    elif not is_there(root, inside):
        with suppress(OSError):
            os.close(open_folder(root, inside))


def _put_workdir(root: int, blueprint: Blueprint) -> None:
    """As an image's WORKDIR is made where it is missing; one that was asked for must be there."""
    if blueprint.workdir and not blueprint.workdir_asked and not is_there(root, blueprint.workdir):
        with suppress(OSError):
            os.close(open_folder(root, blueprint.workdir))


def _check_workdir(blueprint: Blueprint) -> None:
    try:
        os.chdir(blueprint.workdir or "/")
    except OSError as error:
        raise CannotBuildError(f"couldn't chdir to {blueprint.workdir}: {error.strerror}") from error


def _check_interpreter(path: str) -> None:
    if path and not os.path.exists(path):
        raise CannotBuildError(
            f"the script begins with #!{path}, and the image has no {path}: begin it with one that it has, as #!/bin/sh"
        )


def _put_part(root: int, taken: _Taken, part: Part) -> None:
    with suppress(FileExistsError):  # where the image has a link that leads nowhere
        _put(root, taken, part.target, Attribute.READ_ONLY if part.read_only else _PLAIN)


# --- what the user mounts ----------------------------------------------------------------------------------


def _source(asked: Mount) -> _Taken | None:
    if asked.source in (TMPFS, UMOUNT):
        return None
    return _taken(asked.source, "the mount source", recursive="bind" not in asked.flags)


def _put_mount(root: int, asked: Mount, source: _Taken | None) -> None:
    try:
        if source is not None:
            attributes = _PLAIN
            for flag in asked.flags:
                attributes |= _ATTRIBUTES.get(flag, _PLAIN)
            _put(root, source, asked.target, attributes)
        elif asked.source == TMPFS:
            _mount_memory(root, asked.target, "mode=1777")
        else:
            unmount(f"/proc/self/fd/{open_in_root(root, asked.target, os.O_PATH)}")
    except OSError as error:
        raise CannotBuildError(f"could not mount {asked.source} at {asked.target}: {_why(error)}") from error


def _why(error: OSError) -> str:
    if error.errno in (errno.ENOTDIR, errno.EINVAL):
        return "one of them is a folder, the other is not"
    if error.errno == errno.EROFS:
        return "there is no such place in the image, and it is read-only"
    return error.strerror or str(error)


# --- mounting ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Taken:
    """Something of the machine's, mounted nowhere yet."""

    tree: int
    is_folder: bool


def _taken(path: str, what: str = "", *, recursive: bool = True) -> _Taken:
    source = _open(path, 0, what)
    try:
        return _Taken(clone_tree(source, recursive=recursive), os.path.isdir(f"/proc/self/fd/{source}"))
    finally:
        os.close(source)


def _if_there(part: Part) -> _Taken | None:
    """None where the machine has no such thing, or its user may not see it."""
    try:
        return _taken(part.source)
    except (OSError, CannotBuildError):
        return None


def _put(root: int, taken: _Taken, target: str, attributes: Attribute = _PLAIN) -> None:
    if attributes:
        set_attributes(taken.tree, attributes, recursive=True)
    place = open_folder(root, target) if taken.is_folder else open_file(root, target)
    attach(taken.tree, place)
    os.close(place)
    os.close(taken.tree)


def _mount_memory(root: int, target: str, options: str) -> None:
    place = open_folder(root, target)
    mount("tmpfs", f"/proc/self/fd/{place}", "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.close(place)


def _open(path: str, flags: int = 0, what: str = "") -> int:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    except OSError as error:
        named = f"{what} {path}" if what else path
        raise CannotBuildError(f"couldn't start container: {named}: {error.strerror}") from error
