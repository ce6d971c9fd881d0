"""NVIDIA's driver in a box: the host's libraries, programs, device files and sockets, as libnvidia-container puts them.

A driver's libraries must be of the kernel module's version, so an image never has them: the machine's own are shown in
it. They are found in the linker's cache (`ld.so.cache`) and in the folders where drivers are installed without it; CDI
specifications are not read. NVIDIA_VISIBLE_DEVICES says which GPUs, NVIDIA_DRIVER_CAPABILITIES which parts of the
driver; a job sees its own GPUs at most: which these are, `boxing` knows.
Invariant: only files of the machine's are named, each read-only, and nothing is run to find them.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from glob import glob

from bireme.agent.boxes.blueprint import Part
from bireme.agent.boxes.places import is_there

DEVICES, CAPABILITIES = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"
CONTROL_DEVICES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/nvidia-caps",
)
_LIBRARIES = {
    "utility": ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq", "libnvidia-sandboxutils"),
    "compute": (
        "libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp", "libnvidia-ptxjitcompiler",
        "libnvidia-fatbinaryloader", "libnvidia-allocator", "libnvidia-compiler", "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3", "libnvidia-nvvm",
    ),
    "video": ("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"),
    "graphics": (
        "libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi", "libnvidia-fbc", "libnvidia-rtcore",
        "libnvoptix", "libGLX_nvidia", "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia",
        "libnvidia-glvkspirv", "libnvidia-cbl",
    ),
    "ngx": ("libnvidia-ngx",),
    "display": (),
    "compat32": (),
}  # fmt: skip
_PROGRAMS = {
    "utility": ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
}
_SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps")
_DEFAULT = ("compute", "utility")
_CACHE = "/etc/ld.so.cache"
_ELSEWHERE = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib",
)
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/bin")
_TRIPLES = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_LIBRARY = re.compile(r"(?P<stem>.+?)\.so(?:\.(?P<version>[0-9.]+))?")
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER, _ENTRY = struct.Struct("=20sII20x"), struct.Struct("=iIIIQ")


def is_wanted(variables: Mapping[str, str]) -> bool:
    """Whether anything of the driver is. Where nothing is said of it, a job that has GPUs gets them."""
    return variables.get(DEVICES, "all") not in ("", "void")


def capabilities(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Raises ValueError for one that there is not."""
    said = [word for word in variables.get(CAPABILITIES, "").split(",") if word]
    if "all" in said:
        return tuple(_LIBRARIES)
    if unknown := [word for word in said if word not in _LIBRARIES]:
        raise ValueError(f"{CAPABILITIES}: {unknown[0]} is none; there are {', '.join(_LIBRARIES)} and all")
    return tuple(said) or _DEFAULT


def visible(variables: Mapping[str, str], own: Iterable[str]) -> tuple[str, ...]:
    """Of the job's own device files (`/dev/nvidia3`) those that are wanted. UUIDs are not told apart: all are."""
    said, files = variables.get(DEVICES, "all"), tuple(own)
    if said in ("none", "", "void"):
        return ()
    numbers = [word for word in said.split(",") if word.isdecimal()]
    return tuple(file for file in files if file.removeprefix("/dev/nvidia") in numbers) if numbers else files


def driver_parts(root: int, variables: Mapping[str, str]) -> Iterator[tuple[Part, dict[str, str]]]:
    """What is to be shown in the box, with the links that go with it (`libcuda.so.1`)."""
    wanted = capabilities(variables)
    folder = _folder_of_libraries(root)
    stems = {stem for each in wanted for stem in _LIBRARIES[each]}
    for soname, path in sorted(_libraries(stems).items()):
        name = os.path.basename(path)
        stem = f"{soname.partition('.so')[0]}.so"
        links = {f"{folder}/{link}": name for link in (soname, stem) if link != name}
        yield Part(path, f"{folder}/{name}", read_only=True), links
    for program in (name for each in wanted for name in _PROGRAMS.get(each, ())):
        for path in (f"{each}/{program}" for each in (*os.get_exec_path(), *_PROGRAM_FOLDERS)):
            if _is_elf(path):  # some machines have a script of this name, which starts the program elsewhere
                yield Part(path, f"/usr/bin/{program}", read_only=True), {}
                break
    for path in (*_SOCKETS, *glob("/lib/firmware/nvidia/*/gsp*.bin")):
        yield Part(path, path), {}


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False


def _folder_of_libraries(root: int) -> str:
    """Where the image's loader looks without being told: by kind of distribution."""
    for triple in _TRIPLES:
        if is_there(root, f"/usr/lib/{triple}") or is_there(root, f"/lib/{triple}"):
            return f"/usr/lib/{triple}"
    return "/usr/lib64" if is_there(root, "/usr/lib64") or is_there(root, "/lib64") else "/usr/lib"


def _libraries(stems: set[str]) -> dict[str, str]:
    """Name by which programs ask for a library -> the file that it is."""
    found: dict[str, str] = {}
    for path in _candidates(stems):
        match = _LIBRARY.fullmatch(os.path.basename(path))
        if match is None or match["stem"] not in stems or not os.path.exists(path):
            continue
        soname = (
            os.path.basename(path) if match["version"] and match["version"].count(".") == 0 else f"{match['stem']}.so.1"
        )
        found.setdefault(soname, os.path.realpath(path))
    return found


def _candidates(stems: set[str]) -> Iterator[str]:
    try:
        with open(_CACHE, "rb") as file:
            yield from cached_libraries(file.read())
    except OSError:
        pass
    for folder in _ELSEWHERE:
        for stem in stems:
            yield from sorted(glob(f"{folder}/{stem}.so.*"))


def cached_libraries(cache: bytes) -> Iterator[str]:
    """The paths in the linker's cache, those of 64-bit programs; nothing of a cache of another form."""
    at = cache.find(_MAGIC)
    if at < 0:
        return
    _, count, _ = _HEADER.unpack_from(cache, at)
    for number in range(min(count, len(cache) // _ENTRY.size)):
        flags, _, value, _, _ = _ENTRY.unpack_from(cache, at + _HEADER.size + number * _ENTRY.size)
        end = cache.find(b"\0", at + value)
        if flags & 0xFF00 in (0x0300, 0x0A00) and end > 0:  # x86-64 and aarch64, as against what is for 32 bits
            yield os.fsdecode(cache[at + value : end])
