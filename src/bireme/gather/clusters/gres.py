"""Which device file each of Slurm's GPUs is, by `slurmd -G` on the node: Slurm numbers GPUs, drivers have files. Pure.

Invariant: an order that could be meant in two ways is none: nothing is attributed by it.
"""

from __future__ import annotations

import re

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand

_LINE = re.compile(r"Gres Name=gpu\b(?P<rest>.*)")
_FILE = re.compile(r"\bFile=(\S+)")
_COUNT = re.compile(r"\bCount=(\d+)")
_NUMBER = re.compile(r"(\d+)$")
_MOST = 512


def gpu_files(text: str) -> list[str]:
    """By Slurm's number of the GPU (`IDX`). Empty: that cannot be known.

    Slurm numbers through the lines of gres.conf, which it may put into another order: only where their files ascend
    from line to line is there one way to read it. MIG instances (`MultipleFiles`) have no file of their own.
    """
    files: list[str] = []
    for line in text.splitlines():
        found = _LINE.search(line)
        if found is None:
            continue
        file, count = _FILE.search(found["rest"]), _COUNT.search(found["rest"])
        if file is None or count is None or int(count[1]) > _MOST or "MultipleFiles" in line:
            return []
        try:
            named = expand(file[1])
        except SlurmSyntaxError:
            return []
        if len(named) != int(count[1]):
            return []
        files += named
    numbers = [int(number[1]) for each in files if (number := _NUMBER.search(each))]
    return files if len(numbers) == len(files) and numbers == sorted(set(numbers)) else []
