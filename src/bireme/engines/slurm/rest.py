"""slurmrestd as the source of jobs, nodes and ended jobs: the same JSON as the commands write, over HTTP.

Used when `slurm.rest` names one: a URL, or a unix socket (`unix:/run/slurmrestd.sock`). Who we are is told by a token
file, read anew for every request since tokens expire; over a unix socket slurmrestd knows it without. What slurmrestd
does not offer (configuration, topology, the submitter's identity) stays with the commands.
Invariant: the token is in a header and nowhere else: not in a message, a log or an argument.
"""

from __future__ import annotations

import asyncio
import base64
import getpass
import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Sequence
from urllib.parse import urlencode, urlsplit

from bireme.engines.slurm.commands import Silent, SlurmCommands
from bireme.engines.slurm.queries import CommandSource, parsed
from bireme.engines.slurm.values import Json

_VERSION = re.compile(r"/slurm/(v\d+\.\d+\.\d+)/jobs/?$")
_NOT_LET_IN = (401, 403, 511)


class RestSource(CommandSource):
    def __init__(self, commands: SlurmCommands, address: str, token_file: str = "") -> None:
        super().__init__(commands)
        self._commands = commands
        self._address, self._token_file = address, token_file
        self._api = ""
        """The newest version of the interface that it offers, once it was asked: v0.0.38."""

    async def jobs(self, job_ids: Sequence[int] = ()) -> list[Json]:
        if len(job_ids) == 1:
            return await self._listed_at("jobs", f"/slurm/{{api}}/job/{job_ids[0]}")
        listed = await self._listed_at("jobs", "/slurm/{api}/jobs")
        wanted = set(job_ids)
        return [job for job in listed if not wanted or job.get("job_id") in wanted]

    async def nodes(self) -> list[Json]:
        return await self._listed_at("nodes", "/slurm/{api}/nodes")

    async def ended(self, since: float, job_ids: Sequence[int] = ()) -> list[Json] | None:
        """The database by the commands where its exit codes are not told over REST either (22.05)."""
        if self._version < (23, 2):
            return await super().ended(since, job_ids)
        asked = {"start_time": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since))}
        if job_ids:
            asked["job_id"] = ",".join(map(str, job_ids))
        return await self._listed_at("jobs", f"/slurmdb/{{api}}/jobs?{urlencode(asked)}")

    async def _listed_at(self, what: str, path: str) -> list[Json]:
        if not self._api:
            self._api = await self._newest_api()
        body = await self._get(path.format(api=self._api))
        try:
            return parsed(what, "slurmrestd", body)
        except Silent as error:
            problem = token_problem(self._token(), time.time()) if self._token_file else ""
            if not problem:
                raise
            # 22.05 answers the same to a bad token as when slurmctld is away.
            raise Silent(self._not_accepted(problem)) from error

    def _not_accepted(self, problem: str) -> str:
        renew = f"renew {self._token_file or 'slurm.token_file'} (scontrol token)"
        return f"slurmrestd at {self._address} does not accept our token ({problem}): {renew}"

    async def _newest_api(self) -> str:
        document = json.loads(await self._get("/openapi/v3"))
        found = [match[1] for match in map(_VERSION.search, document.get("paths", ())) if match]
        if not found:
            raise Silent(f"slurmrestd at {self._address} offers no list of jobs: is its openapi plugin loaded?")
        return max(found, key=lambda version: [int(part) for part in version[1:].split(".")])

    async def _get(self, path: str) -> bytes:
        self._commands.rate.note()
        try:
            async with asyncio.timeout(self._commands.timeout_s + 1):
                status, body = await asyncio.to_thread(self._fetch, path, self._commands.timeout_s)
        except (OSError, http.client.HTTPException, TimeoutError) as error:
            raise Silent(f"slurmrestd at {self._address} does not answer ({error or type(error).__name__})") from error
        if status in _NOT_LET_IN or (status >= 400 and b"uthentication" in body[:2000]):
            known = token_problem(self._token(), time.time()) if self._token_file else ""
            raise Silent(self._not_accepted(known or f"HTTP {status}"))
        if status >= 400 and not body.lstrip().startswith(b"{"):
            raise Silent(f"slurmrestd at {self._address} answers HTTP {status} to {path.partition('?')[0]}")
        return body

    def _fetch(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        connection = self._connection(timeout_s)
        try:
            connection.request("GET", path, headers=self._headers())
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._address.startswith("unix:"):
            return _UnixConnection(self._address.removeprefix("unix:"), timeout_s)
        url = urlsplit(self._address)
        if not url.hostname:
            raise OSError("slurm.rest must be http://HOST:PORT, https://HOST:PORT or unix:/PATH")
        if url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(url.hostname, url.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Host": "slurmrestd"}
        if self._token_file:
            headers |= {"X-SLURM-USER-NAME": getpass.getuser(), "X-SLURM-USER-TOKEN": self._token()}
        return headers

    def _token(self) -> str:
        try:
            with open(self._token_file) as file:
                return file.read().strip().removeprefix("SLURM_JWT=")
        except OSError as error:
            raise Silent(f"the token for slurmrestd cannot be read: {error}") from error


def token_problem(token: str, now: float) -> str:
    """What is wrong with a token, as far as it can be told without its key; empty: nothing."""
    parts = token.split(".")
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        expires = json.loads(base64.urlsafe_b64decode(padded)).get("exp")
    except (IndexError, ValueError, AttributeError):
        return "it is none"
    if isinstance(expires, int | float) and expires <= now:
        return f"it expired at {time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(expires))}"
    return ""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
