"""How a command reaches the daemon, and how long it waits for one that is being restarted.

Apart from `caller` because scancel, logs and sattach need nothing of a submission, whose types cost start-up time.
"""

from __future__ import annotations

import contextlib
import os
import sys

from bireme.client.transport import Transport

PATIENCE_S = 60.0
"""How long whoever holds a job, or runs inside one, waits for a daemon that is being restarted."""


def make_transport() -> Transport:
    """Inside a job the daemon may be restarting while the job runs on: its commands wait for it."""
    inside = "BIREME_JOB" in os.environ or "SLURM_JOB_ID" in os.environ
    made = Transport(patience_s=PATIENCE_S if inside else 0.0)
    made.still_silent = tell_silence
    return made


def tell_silence(text: str) -> None:
    """Says on standard error, as the command's own remark, that the daemon is silent."""
    with contextlib.suppress(OSError):
        os.write(2, f"{os.path.basename(sys.argv[0])}: {text}\n".encode("utf-8", "surrogateescape"))
