"""Boxes as the kernel makes them: what is refused and in which words, and what needs no kernel to be right."""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.test_virtual_nodes import user_namespaces_work

from bireme.agent.boxes.blueprint import Blueprint, Mount
from bireme.agent.boxes.building import CannotBuildError, try_to_build
from bireme.agent.boxes.commands import loader_of
from bireme.agent.boxes.environment import boxed_environment
from bireme.agent.boxes.graphics import cached_libraries, capabilities, visible
from bireme.agent.boxes.pretending import filter_of
from bireme.agent.boxes.probing import probe
from bireme.agent.system.mounts import CLONE_NEWUSER, map_ids, mount, unmount, unshare

needs_namespaces = pytest.mark.skipif(not user_namespaces_work(), reason="this kernel gives users no user namespaces")


def in_child(act: Callable[[], str]) -> str:
    """What it returns, from a process that is thrown away."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_fd, act().encode())
        except BaseException as error:
            os.write(write_fd, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@needs_namespaces
def test_a_kernel_without_user_namespaces_names_the_setting() -> None:
    """In a user namespace in which no other may be made, as on a machine whose administrator has switched them off."""

    def act() -> str:
        uid, gid = os.getuid(), os.getgid()
        unshare(CLONE_NEWUSER)
        map_ids(uid, gid)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        return "; ".join(f"{one.ok} {one.why}" for one in probe())

    assert "False containers cannot be started on this node: user namespaces are switched off" in in_child(act)
    assert [one.ok for one in probe()] == [True, True]


@needs_namespaces
def test_an_image_that_leads_outside_leads_nowhere(tmp_path: Path) -> None:
    """Links of the image are followed inside of it: what is put there lands in the box, and not on the machine."""
    for folder in ("etc", "opt"):
        (tmp_path / folder).mkdir()
    (tmp_path / "out").symlink_to("/opt")
    (tmp_path / "up").symlink_to("../../../../../../../opt")
    (tmp_path / "nowhere").symlink_to("/not/in/the/image")
    (tmp_path / "etc/hosts").symlink_to("/opt/hosts-of-the-machine")
    mounts = (Mount("/usr/share", "/out/share"), Mount("/usr/share", "/up/deep/share"), Mount("tmpfs", "/memory"))
    before = sorted(os.listdir("/opt"))

    def act() -> str:
        try_to_build(Blueprint(root=str(tmp_path), mounts=mounts, remap_root=True))
        return f"{sorted(os.listdir('/opt'))} {os.path.isdir('/memory')} {os.path.islink('/etc/hosts')}"

    assert in_child(act) == "['deep', 'share'] True False", "the folder of that name in the box"
    assert sorted(os.listdir("/opt")) == before
    assert list((tmp_path / "opt").iterdir()) == []
    mounts = (Mount("/usr/share", "/nowhere/share"),)
    assert "could not mount /usr/share at /nowhere/share: No such file or directory" in in_child(act)


@needs_namespaces
def test_a_folder_of_somebody_else_is_a_root_that_is_read_only(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chmod(tmp_path, 0o755)
    for folder in ("etc", "opt"):
        (tmp_path / folder).mkdir()
    (tmp_path / "opt/file").write_text("x")
    os.chown(tmp_path, 1, 1)

    def act() -> str:
        notes = try_to_build(Blueprint(root=str(tmp_path), remap_root=True)).notes
        try:
            Path("/opt/new").touch()
        except OSError as error:
            return f"{notes} {error.strerror} {Path('/opt/file').read_text()}"
        return "written"

    said = in_child(act)
    assert "its folder belongs to another user" in said
    assert said.endswith("Read-only file system x")


@needs_namespaces
def test_what_cannot_be_built_is_said_in_one_sentence(tmp_path: Path) -> None:
    def act() -> str:
        try:
            try_to_build(Blueprint(root=str(tmp_path), mounts=(Mount("/nowhere", "/x"),)))
        except CannotBuildError as error:
            return str(error)
        return "built"

    assert in_child(act) == "couldn't start container: the mount source /nowhere: No such file or directory"


@needs_namespaces
def test_who_has_all_rights_in_a_box_changes_nothing_of_the_machine(tmp_path: Path) -> None:
    """Root of the machine by number, and root of its namespace: not even then."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "dev").symlink_to("/etc")
    (tmp_path / "proc").write_text("a file")

    def act() -> str:
        try_to_build(Blueprint(root=str(tmp_path), remap_root=True))
        tried = []
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"):
            try:
                os.close(os.open(path, os.O_WRONLY))
                tried.append(path)
            except OSError:
                continue
        for target, flags in (("/sys", 0x1020), ("/proc/sys", 0x1020)):  # MS_REMOUNT | MS_BIND, to be written to
            try:
                mount("none", target, None, flags)
                tried.append(f"remount {target}")
            except OSError:
                continue
        try:
            unmount("/proc/sys")
            tried.append("umount")
        except OSError:
            pass
        return f"{tried} {os.path.exists('/dev/null')}"

    assert in_child(act) == "[] True"


def test_the_images_variables_win_but_those_of_the_job_and_those_that_are_kept() -> None:
    own = {
        "PATH": "/home/bin:/bin",
        "A": "own",
        "B": "own",
        "SLURM_PROCID": "3",
        "CUDA_VISIBLE_DEVICES": "1",
        "HOME": "/h",
    }
    images = {
        "": "no name",
        "a=b": "x",
        "A": "image",
        "B": "image",
        "SLURM_PROCID": "9",
        "CUDA_VISIBLE_DEVICES": "7",
        "PYTORCH_VERSION": "2",
    }
    merged = boxed_environment(own, images, ("B",), "/run/bireme/bin", "/root")
    assert not {"", "a=b"} & merged.keys()
    assert (merged["A"], merged["B"], merged["SLURM_PROCID"], merged["CUDA_VISIBLE_DEVICES"]) == (
        "image",
        "own",
        "3",
        "1",
    )
    assert merged["PATH"] == "/run/bireme/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert (merged["HOME"], merged["RANK"]) == ("/root", "3")
    assert boxed_environment(merged, images, ("PATH",), "/run/bireme/bin")["PATH"] == merged["PATH"]


def test_the_filter_is_as_long_as_its_jumps_say() -> None:
    """Each comparison that holds jumps to the last instruction, none beyond it."""
    code = filter_of("x86_64")
    instructions = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    last = len(instructions) - 1
    assert instructions[last][3] == 0x00050000
    for place, (kind, if_so, if_not, _) in enumerate(instructions):
        if kind == 0x15 and place > 1:
            assert place + 1 + if_so == last
        if place == 1:
            assert place + 1 + if_not == last - 1
    assert filter_of("vax") == b""


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (None, ["0", "3"]),
        ("all", ["0", "3"]),
        ("none", []),
        ("void", []),
        ("3", ["3"]),
        ("1,2", []),
        ("GPU-x", ["0", "3"]),
    ],
)
def test_a_job_sees_its_own_cards_at_most(said: str | None, seen: list[str]) -> None:
    variables = {} if said is None else {"NVIDIA_VISIBLE_DEVICES": said}
    assert [file[-1] for file in visible(variables, ["/dev/nvidia0", "/dev/nvidia3"])] == seen


def test_capabilities_of_the_driver_are_those_that_are_named() -> None:
    assert capabilities({}) == ("compute", "utility")
    assert capabilities({"NVIDIA_DRIVER_CAPABILITIES": "video,utility"}) == ("video", "utility")
    assert "graphics" in capabilities({"NVIDIA_DRIVER_CAPABILITIES": "all"})
    with pytest.raises(ValueError, match="NVIDIA_DRIVER_CAPABILITIES: nonsense is none"):
        capabilities({"NVIDIA_DRIVER_CAPABILITIES": "nonsense"})


def test_the_linkers_cache_is_read_as_ldconfig_reads_it() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.exists() or platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("this machine has no cache of a linker for 64 bits")
    assert any(path.endswith("/libc.so.6") and os.path.exists(path) for path in cached_libraries(cache.read_bytes()))
    assert list(cached_libraries(b"something else")) == []
    assert os.path.exists(loader_of("/bin/sh"))
