"""Keeping a cgroup v2 group away from device files: a small BPF program, made and attached by hand.

cgroup v1 has a file for this (`devices.deny`); v2 has only this way. Used by `confinement`, as root. The
program refuses the listed devices and leaves every other decision as it was: attached with ALLOW_MULTI, its
verdict is ANDed with those of the groups above (systemd's, the container's).

It filters opening and making of device files. Descriptors that are open already keep working.

Invariant: a program never grants anything. The kernel drops it with the cgroup it is attached to.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_PROG_TYPE_CGROUP_DEVICE = 15
_ATTACH_CGROUP_DEVICE = 6
_ALLOW_MULTI = 2
_ATTRIBUTES_SIZE = 128

# The kernel's view of one access: u32 access and type, u32 major, u32 minor.
_TYPE_OFFSET, _MAJOR_OFFSET, _MINOR_OFFSET = 0, 4, 8
_BLOCK, _CHARACTER = 1, 2
_LOAD_WORD, _AND, _JUMP_UNLESS_EQUAL, _MOVE, _EXIT = 0x61, 0x57, 0x55, 0xB7, 0x95
_VERDICT, _CONTEXT, _TYPE, _MAJOR, _MINOR = range(5)  # registers r0 to r4
_INSTRUCTION = struct.Struct("=BBhi")


@dataclass(frozen=True, slots=True)
class DeviceId:
    """A device file as the kernel knows it."""

    kind: Literal["c", "b"]
    major: int
    minor: int

    @classmethod
    def of_file(cls, path: str) -> DeviceId:
        """ValueError when the path is no device file, OSError when it is not there."""
        status = os.stat(path)
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            raise ValueError(f"{path} is not a device file")
        kind: Literal["c", "b"] = "c" if stat.S_ISCHR(status.st_mode) else "b"
        return cls(kind, os.major(status.st_rdev), os.minor(status.st_rdev))

    def __str__(self) -> str:
        return f"{self.kind} {self.major}:{self.minor}"


def device_program(denied: Iterable[DeviceId]) -> bytes:
    """The program's instructions: 0 (refuse) for the denied devices, 1 for all others."""
    code = [
        _instruction(_LOAD_WORD, _TYPE, source=_CONTEXT, offset=_TYPE_OFFSET),
        _instruction(_AND, _TYPE, value=0xFFFF),  # the upper half says read, write or make
        _instruction(_LOAD_WORD, _MAJOR, source=_CONTEXT, offset=_MAJOR_OFFSET),
        _instruction(_LOAD_WORD, _MINOR, source=_CONTEXT, offset=_MINOR_OFFSET),
    ]
    for device in denied:
        kind = _CHARACTER if device.kind == "c" else _BLOCK
        code += [
            _instruction(_JUMP_UNLESS_EQUAL, _TYPE, offset=4, value=kind),
            _instruction(_JUMP_UNLESS_EQUAL, _MAJOR, offset=3, value=device.major),
            _instruction(_JUMP_UNLESS_EQUAL, _MINOR, offset=2, value=device.minor),
            _instruction(_MOVE, _VERDICT, value=0),
            _instruction(_EXIT, 0),
        ]
    code += [_instruction(_MOVE, _VERDICT, value=1), _instruction(_EXIT, 0)]
    return b"".join(code)


def deny_devices(cgroup: str, denied: Iterable[DeviceId]) -> None:
    """Attach a filter to the cgroup v2 directory; OSError when the kernel refuses."""
    program_fd = _load(device_program(denied))
    try:
        cgroup_fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", cgroup_fd, program_fd, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(cgroup_fd)
    finally:
        os.close(program_fd)


def _instruction(code: int, register: int, *, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, register | source << 4, offset, value)


def _load(program: bytes) -> int:
    with suppress(ValueError, OSError):
        # Before Linux 5.11 a program counted as locked memory, of which the default limit is too small.
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    code = ctypes.create_string_buffer(program, len(program))
    license_name = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "=IIQQ",
        _PROG_TYPE_CGROUP_DEVICE,
        len(program) // _INSTRUCTION.size,
        ctypes.addressof(code),
        ctypes.addressof(license_name),
    )
    return _bpf(_PROG_LOAD, attributes)


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(38, f"no bpf call is known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_SIZE)
    result = libc.syscall(
        ctypes.c_long(number), ctypes.c_int(command), ctypes.byref(buffer), ctypes.c_uint(_ATTRIBUTES_SIZE)
    )
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "bpf")
    return int(result)
