"""A program of three hundred bytes that enters a box and becomes the task: what `entering` does, without a fork.

`swift` starts it for tasks in boxes, as it starts `own_pid` for those outside, and for the same reason: a fork of the
keeper costs five times as much. It enters the namespaces that it finds at 20 to 22, sets the filter of `pretending`
where the task looks like root, goes into its folder, writes its pid into the first variable, looks through the places
where its program may be, and executes the first that is there. Where there is none it says what it was given to say.

Its words: a folder; what to say; the places of the program; an empty one; the task's own. For x86-64: elsewhere tasks
are forked.
Invariant: between its start and the task's it makes the calls that are named here, and no other.
"""

from __future__ import annotations

import platform
import struct
from functools import cache

from bireme.agent.boxes.pretending import filter_of
from bireme.agent.starting.own_pid import ENTRY, HEX_COLUMN, SAID, elf_around, sealed_in_memory

NAMESPACE_FDS = (20, 21, 22)
_MACHINE, _ELF_NUMBER = "x86_64", 62
_X86_64 = """\
49 89 e4              mov   r12,rsp
bb 14 00 00 00        mov   ebx,0x14
89 df                 mov   edi,ebx                 1:
31 f6                 xor   esi,esi
b8 34 01 00 00        mov   eax,308 (setns)
0f 05                 syscall
85 c0                 test  eax,eax
0f 85 ea 00 00 00     jne   9
89 df                 mov   edi,ebx
b8 03 00 00 00        mov   eax,3 (close)
0f 05                 syscall
ff c3                 inc   ebx
83 fb 17              cmp   ebx,0x17
75 dd                 jne   1
eb 24                 jmp   2
bf 16 00 00 00        mov   edi,0x16
be 02 00 00 00        mov   esi,0x2
ba 11 11 11 11        mov   edx,0x11111111              the filter, where the jump before it is none
45 31 d2              xor   r10d,r10d
45 31 c0              xor   r8d,r8d
b8 9d 00 00 00        mov   eax,157 (prctl)
0f 05                 syscall
85 c0                 test  eax,eax
0f 85 b4 00 00 00     jne   9
49 8b 7c 24 10        mov   rdi,[r12+0x10]          2:  the folder
b8 50 00 00 00        mov   eax,80 (chdir)
0f 05                 syscall
85 c0                 test  eax,eax
0f 85 a0 00 00 00     jne   9
b8 27 00 00 00        mov   eax,39 (getpid)
0f 05                 syscall
49 8b 0c 24           mov   rcx,[r12]                   how many words there are
4d 8d 7c cc 10        lea   r15,[r12+rcx*8+0x10]        the environment is behind them
49 8b 3f              mov   rdi,[r15]                   its first variable
80 3f 3d              cmp   byte [rdi],0x3d         3:
48 8d 7f 01           lea   rdi,[rdi+0x1]
75 f7                 jne   3
b9 0a 00 00 00        mov   ecx,0xa
31 f6                 xor   esi,esi
31 d2                 xor   edx,edx                 4:
f7 f1                 div   ecx
52                    push  rdx
ff c6                 inc   esi
85 c0                 test  eax,eax
75 f5                 jne   4
58                    pop   rax                     5:
04 30                 add   al,0x30
aa                    stos  byte es:[rdi],al
ff ce                 dec   esi
75 f8                 jne   5
c6 07 00              mov   byte [rdi],0x0
4d 8d 6c 24 20        lea   r13,[r12+0x20]              the places of the program
4d 89 ee              mov   r14,r13                     its words are behind them
49 8b 3e              mov   rdi,[r14]               6:
49 83 c6 08           add   r14,0x8
80 3f 00              cmp   byte [rdi],0x0
75 f4                 jne   6
49 8b 7d 00           mov   rdi,[r13+0x0]           7:
80 3f 00              cmp   byte [rdi],0x0
74 4a                 je    9
be 01 00 00 00        mov   esi,0x1
b8 15 00 00 00        mov   eax,21 (access)
0f 05                 syscall
85 c0                 test  eax,eax
74 06                 je    8
49 83 c5 08           add   r13,0x8
eb e1                 jmp   7
49 8b 7d 00           mov   rdi,[r13+0x0]           8:
4c 89 f6              mov   rsi,r14
4c 89 fa              mov   rdx,r15
b8 3b 00 00 00        mov   eax,59 (execve)
0f 05                 syscall
89 c3                 mov   ebx,eax
bf 02 00 00 00        mov   edi,0x2
be 33 33 33 33        mov   esi,0x33333333              it came back: the program was not executed
ba 3f 00 00 00        mov   edx,0x3f
b8 01 00 00 00        mov   eax,1 (write)
0f 05                 syscall
89 df                 mov   edi,ebx
f7 df                 neg   edi
b8 3c 00 00 00        mov   eax,60 (exit)
0f 05                 syscall
49 8b 74 24 18        mov   rsi,[r12+0x18]          9:  it is not there, and this is to be said
31 d2                 xor   edx,edx
80 3c 16 00           cmp   byte [rsi+rdx*1],0x0    10:
74 04                 je    11
ff c2                 inc   edx
eb f6                 jmp   10
bf 02 00 00 00        mov   edi,0x2                 11:
b8 01 00 00 00        mov   eax,1 (write)
0f 05                 syscall
bf 02 00 00 00        mov   edi,0x2
b8 3c 00 00 00        mov   eax,60 (exit)
0f 05                 syscall
"""
_OVER_THE_FILTER, _NO_JUMP = bytes.fromhex("eb24"), bytes.fromhex("9090")
_FILTER_AT, _SAID_AT = (bytes([number] * 4) for number in (0x11, 0x33))
"""In the instructions, in the place of addresses."""
_NAME = "bireme-own-box"


def box_elf(*, remap_root: bool) -> bytes:
    """The program as a file."""
    code = b"".join(bytes.fromhex(line[:HEX_COLUMN]) for line in _X86_64.splitlines())
    said_at = ENTRY + len(code)
    rules_at = -(-(said_at + len(SAID)) // 8) * 8
    rules = filter_of(_MACHINE)
    described_at = rules_at + len(rules)
    described = struct.pack("<H6xQ", len(rules) // 8, rules_at)
    if remap_root:
        code = code.replace(_OVER_THE_FILTER, _NO_JUMP, 1)
    for place, address in ((_FILTER_AT, described_at), (_SAID_AT, said_at)):
        assert code.count(place) == 1
        code = code.replace(place, struct.pack("<I", address))
    data = SAID.ljust(rules_at - said_at, b"\0") + rules + described
    return elf_around(_ELF_NUMBER, code + data)


@cache
def own_box_program(*, remap_root: bool) -> str | None:
    """A path by which this process and its children may execute it; None where that cannot be done."""
    if platform.machine() != _MACHINE:
        return None
    try:
        return f"/proc/self/fd/{sealed_in_memory(box_elf(remap_root=remap_root), _NAME)}"
    except OSError:
        return None
