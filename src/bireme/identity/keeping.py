"""The file in which sessions outlive the daemon: digests of tokens, never a token.

Written by `sessions` through its port. A file that is not what was written gives nobody a session: people log in again.
Invariant: it is for its owner alone, replaced as a whole, and on disk before `write` returns.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict

from bireme.identity.sessions import Identity, Session

log = logging.getLogger("bireme.daemon")


class SessionFile:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> list[Session]:
        """None where there is no file, or a damaged one."""
        try:
            with open(self._path, encoding="ascii") as file:
                body, _, checksum = file.read().rpartition("\n")
            if zlib.crc32(body.encode()) != int(checksum, 16):
                raise ValueError
            return [_session(each) for each in json.loads(body)]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s cannot be read (%s): everybody logs in to the pages again", self._path, error or "damaged")
            return []

    def write(self, sessions: Iterable[Session]) -> None:
        body = json.dumps([asdict(each) for each in sessions])
        folder, fresh = os.path.dirname(self._path), self._path + ".new"
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(f"{body}\n{zlib.crc32(body.encode()):x}")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(place)  # else a machine that dies may bring back a session that was ended
        finally:
            os.close(place)


def _session(row: dict[str, object]) -> Session:
    """Raises TypeError, KeyError or ValueError for what is none."""
    whose = row.pop("whose")
    if not isinstance(whose, dict):
        raise TypeError
    identity = Identity(int(whose["uid"]), int(whose["gid"]), tuple(int(each) for each in whose["groups"]))
    return Session(whose=identity, **row)  # type: ignore[arg-type]
