"""Where Python's threads stand, as faulthandler and py-spy write it."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile

from bireme.evidence.stacks import Frame, Stack, compared, has_stacks, stack_lines, stacks_in

PY_SPY = """\
Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    wait (threading.py:320)
    get (queue.py:171)
    fetch (data.py:12)
    <module> (train.py:80)
Thread 4720 (active+gil): "pin memory"
    loop (torch/utils/data/_utils/pin_memory.py:30)
"""


def test_what_py_spy_writes() -> None:
    assert [str(stack) for stack in stacks_in(PY_SPY)] == [
        "thread MainThread stands in wait (threading.py:320), called by fetch (data.py:12)",
        "thread pin memory stands in loop (data/_utils/pin_memory.py:30)",
    ]
    assert has_stacks(PY_SPY.encode())
    assert not has_stacks(b"step 1 loss 0.5\n")


def test_what_faulthandler_writes_here() -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file=file, all_threads=False)
        file.seek(0)
        (stack,) = stacks_in(file.read())
    assert stack.frames[0].function == sys._getframe().f_code.co_name
    assert os.path.samefile(stack.frames[0].file, __file__)


def test_a_label_before_the_lines_is_kept_for_the_rank() -> None:
    text = 'x\n3: Thread 0x00007f12 (most recent call first):\n3:   File "/a/b.py", line 5 in read\n'
    assert list(stack_lines(text, 100)) == [("3: thread 0x00007f12 stands in read (/a/b.py:5)", 101)]


def stack(file: str) -> Stack:
    return Stack("MainThread", (Frame("f", file, 1),), 0)


def test_the_rank_that_is_elsewhere() -> None:
    inside = stack("/site-packages/torch/distributed/distributed_c10d.py")
    assert list(compared({0: inside, 1: stack("data.py"), 2: inside, 3: inside})) == [
        ("rank 1 stands in f (data.py:1) while ranks 0,2-3 wait in a collective", 1)
    ]
    assert list(compared({0: inside, 1: inside})) == []
    assert list(compared({0: inside, 1: stack("a.py"), 2: stack("b.py")})) == []
