"""Lets a user who is root by name alone do what package managers do: hand files to others, become other users.

In a namespace with a single user these calls can only fail; `apt-get` and `rpm` then give up. As Pyxis does, a filter
of the kernel answers that they succeeded, and does nothing. Called by `entering`, with `--container-remap-root`.
Invariant: a filter grants nothing: what it does not name is decided as before, and what it names is not carried out.
"""

from __future__ import annotations

import ctypes
import platform
import struct

from bireme.agent.system.mounts import check, libc

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _SUCCEED = 0x7FFF0000, 0x00050000
"""The second: come back at once with error number 0."""
_CALLS = {
    # chown fchown lchown fchownat setuid setgid setreuid setregid setresuid setresgid setgroups
    "x86_64": (0xC000003E, (92, 93, 94, 260, 105, 106, 113, 114, 117, 119, 116)),
    # fchown fchownat setuid setgid setreuid setregid setresuid setresgid setgroups
    "aarch64": (0xC00000B7, (55, 54, 146, 144, 145, 143, 147, 149, 159)),
}
"""By machine: what the kernel calls it, and the numbers of the calls."""
_INSTRUCTION = struct.Struct("=HBBI")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def pretend_root() -> None:
    """For this process and all it starts. Does nothing on machines whose numbers are not known. Raises OSError."""
    code = filter_of(platform.machine())
    if not code:
        return
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // _INSTRUCTION.size, ctypes.addressof(buffer))
    filter_mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    check(libc().prctl(_PR_SET_SECCOMP, filter_mode, ctypes.byref(program), 0, 0), "seccomp")


def filter_of(machine: str) -> bytes:
    """Its instructions; empty where there is none for this machine."""
    if machine not in _CALLS:
        return b""
    architecture, numbers = _CALLS[machine]
    count = len(numbers)
    code = [
        _INSTRUCTION.pack(_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        _INSTRUCTION.pack(_JUMP_IF_EQUAL, 0, count + 1, architecture),
        _INSTRUCTION.pack(_LOAD_WORD, 0, 0, _NUMBER_AT),
    ]
    # Each jumps over those behind it and over the instruction that allows.
    code += [_INSTRUCTION.pack(_JUMP_IF_EQUAL, count - place, 0, number) for place, number in enumerate(numbers)]
    return b"".join([*code, _INSTRUCTION.pack(_RETURN, 0, 0, _ALLOW), _INSTRUCTION.pack(_RETURN, 0, 0, _SUCCEED)])
