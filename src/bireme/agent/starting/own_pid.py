"""A program of three hundred bytes that tells the next one its own pid: it writes it into the environment, and becomes
that one.

`swift` starts it where a program is to know its pid (SLURM_TASK_PID), which nobody else knows before. A shell of two
lines does the same in `swift` where this one cannot run; it costs 0.7 ms of CPU, as much as all that Bireme itself does
for a job, and this one 0.05, since there is nothing to load or to read.

It is called with the path of a program and that one's own words; the first variable of its environment is the one to be
written, with room for any pid. There is no compiler where Bireme runs, so its instructions stand here, one to a line
with what each of them says. It is kept in memory, sealed, by the process that uses it.

Invariant: between its start and the next program's it calls getpid and execve, and nothing else.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import struct
from functools import cache

ROOM = "0" * 10
"""What the variable holds before: as long as any pid."""

_X86_64 = """\
b8 27 00 00 00        mov   eax, 39 (getpid)
0f 05                 syscall
48 8b 0c 24           mov   rcx, [rsp]              how many words there are
4c 8d 44 cc 10        lea   r8, [rsp+8*rcx+16]      the environment is behind them
49 8b 38              mov   rdi, [r8]               its first variable
48 ff c7              inc   rdi                  1:
80 7f ff 3d           cmp   byte [rdi-1], '='
75 f7                 jne   1b
b9 0a 00 00 00        mov   ecx, 10
31 f6                 xor   esi, esi
31 d2                 xor   edx, edx             2: digits, the last one first
f7 f1                 div   ecx
52                    push  rdx
ff c6                 inc   esi
85 c0                 test  eax, eax
75 f5                 jnz   2b
58                    pop   rax                  3: and the first one first
04 30                 add   al, '0'
aa                    stosb
ff ce                 dec   esi
75 f8                 jnz   3b
c6 07 00              mov   byte [rdi], 0
48 8b 7c 24 10        mov   rdi, [rsp+16]           the program
48 8d 74 24 18        lea   rsi, [rsp+24]           its words
4c 89 c2              mov   rdx, r8
b8 3b 00 00 00        mov   eax, 59 (execve)
0f 05                 syscall
89 c3                 mov   ebx, eax                it came back: the program was not executed
bf 02 00 00 00        mov   edi, 2
48 8d 35 17 00 00 00  lea   rsi, [rip+23]           what is said of it, behind the last instruction
ba 3f 00 00 00        mov   edx, 63
b8 01 00 00 00        mov   eax, 1 (write)
0f 05                 syscall
89 df                 mov   edi, ebx
f7 df                 neg   edi                     the number of the error, as Slurm ends
b8 3c 00 00 00        mov   eax, 60 (exit)
0f 05                 syscall
"""

_AARCH64 = """\
88 15 80 d2           mov   x8, 172 (getpid)
01 00 00 d4           svc   0
e9 03 40 f9           ldr   x9, [sp]                how many words there are
ea 43 00 91           add   x10, sp, 16
4a 0d 09 8b           add   x10, x10, x9, lsl 3     the environment is behind them
4b 01 40 f9           ldr   x11, [x10]              its first variable
6c 15 40 38           ldrb  w12, [x11], 1        1:
9f f5 00 71           cmp   w12, '='
c1 ff ff 54           b.ne  1b
4d 01 80 d2           mov   x13, 10
0e 00 80 d2           mov   x14, 0
ef 03 00 91           mov   x15, sp
09 08 cd 9a           udiv  x9, x0, x13          2: digits, the last one first
2c 81 0d 9b           msub  x12, x9, x13, x0
8c c1 00 11           add   w12, w12, '0'
ec fd 1f 38           strb  w12, [x15, -1]!
ce 05 00 91           add   x14, x14, 1
e0 03 09 aa           mov   x0, x9
40 ff ff b5           cbnz  x0, 2b
ec 15 40 38           ldrb  w12, [x15], 1        3: and the first one first
6c 15 00 38           strb  w12, [x11], 1
ce 05 00 f1           subs  x14, x14, 1
a1 ff ff 54           b.ne  3b
7f 01 00 39           strb  wzr, [x11]
e0 0b 40 f9           ldr   x0, [sp, 16]            the program
e1 63 00 91           add   x1, sp, 24              its words
e2 03 0a aa           mov   x2, x10
a8 1b 80 d2           mov   x8, 221 (execve)
01 00 00 d4           svc   0
f3 03 00 2a           mov   w19, w0                 it came back: the program was not executed
40 00 80 d2           mov   x0, 2
e1 00 00 10           adr   x1, pc+28               what is said of it, behind the last instruction
e2 07 80 d2           mov   x2, 63
08 08 80 d2           mov   x8, 64 (write)
01 00 00 d4           svc   0
e0 03 13 4b           neg   w0, w19                 the number of the error, as Slurm ends
a8 0b 80 d2           mov   x8, 93 (exit)
01 00 00 d4           svc   0
"""

_INSTRUCTIONS = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
"""By machine: its number in ELF files, and what it is to do."""
SAID = b"slurmstepd: error: execve(): the program could not be executed\n"
HEX_COLUMN = 22
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT_HEADER = struct.Struct("<IIQQQQQQ")
_LOADED_AT = 0x400000
ENTRY = _LOADED_AT + _FILE_HEADER.size + _SEGMENT_HEADER.size
"""Where the first instruction is."""
_LARGEST_PAGE = 0x10000
_NAME = "bireme-own-pid"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MFD_EXEC = 0x10
"""Since Linux 6.3, where it may be asked for: that what is in memory may be executed."""


def elf_of(machine: str) -> bytes | None:
    """The program as a file for this machine; None where there is none for it."""
    if machine not in _INSTRUCTIONS:
        return None
    number, table = _INSTRUCTIONS[machine]
    return elf_around(number, b"".join(bytes.fromhex(line[:HEX_COLUMN]) for line in table.splitlines()) + SAID)


def elf_around(number: int, code: bytes) -> bytes:
    """The smallest file of this machine's that begins with the first of these instructions, at `ENTRY`."""
    size = ENTRY - _LOADED_AT + len(code)
    sixty_four_bits = b"\x7fELF\x02\x01\x01"
    file = _FILE_HEADER.pack(
        sixty_four_bits, 2, number, 1, ENTRY, _FILE_HEADER.size, 0, 0, 64, _SEGMENT_HEADER.size, 1, 0, 0, 0
    )
    readable_and_executable = 5
    segment = _SEGMENT_HEADER.pack(1, readable_and_executable, 0, _LOADED_AT, _LOADED_AT, size, size, _LARGEST_PAGE)
    return file + segment + code


@cache
def own_pid_program() -> str | None:
    """A path by which this process and its children may execute it; None where that cannot be done."""
    program = elf_of(platform.machine())
    if program is None:
        return None
    try:
        fd = sealed_in_memory(program, _NAME)
    except OSError:
        return None
    path = f"/proc/self/fd/{fd}"
    if not _runs(path):
        os.close(fd)
        return None
    return path


def sealed_in_memory(program: bytes, name: str) -> int:
    """A descriptor of it, as a file that nobody can change. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create(name, flags | _MFD_EXEC)
    except OSError:  # an older kernel, where everything in memory may be executed
        fd = os.memfd_create(name, flags)
    try:
        os.write(fd, program)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def _runs(path: str) -> bool:
    """Asked to become what is not there it says so: whatever forbids it to run is found here, and not by a job."""
    try:
        quiet = [(os.POSIX_SPAWN_CLOSE, 2)]
        pid = os.posix_spawn(path, [_NAME, "/dev/null/nothing"], {"PID": ROOM}, file_actions=quiet)
    except OSError:
        return False
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.ENOTDIR
