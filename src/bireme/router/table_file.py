"""The last table, on disk: what a router that was started again goes by until its daemon comes.

Written by the supervisor when its workers have been told it: a full disk stops no routing. One that cannot be read is
passed over with a word in the log: the daemon brings another. Invariant: the file is a whole table or is not there;
nobody but its owner can read it.
"""

from __future__ import annotations

import logging
import os
import zlib

from bireme.router import messages
from bireme.router.messages import ProtocolError, Table

log = logging.getLogger("bireme.router")


def write(path: str, table: Table) -> None:
    """Raises OSError; the one before is there then."""
    line = messages.encode(table)
    fresh = path + ".new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(b"%d\n" % zlib.crc32(line) + line)
        file.flush()
        os.fdatasync(file.fileno())
    os.replace(fresh, path)


def read(path: str) -> Table | None:
    try:
        with open(path, "rb") as file:
            total, _, line = file.read().partition(b"\n")
        table = messages.read_order(line) if zlib.crc32(line) == int(total) else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ProtocolError) as error:
        log.warning("the table %s cannot be read (%s): waiting for the daemon's", path, error)
        return None
    if not isinstance(table, Table):
        log.warning("the table %s is not what was written: waiting for the daemon's", path)
        return None
    return table
