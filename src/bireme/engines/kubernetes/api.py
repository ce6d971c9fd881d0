"""The Kubernetes API as plain JSON: requests, lists and watches; connection and credentials by lightkube.

lightkube knows kubeconfigs, tokens that rotate and programs that print credentials. Its typed objects are left aside:
the engine reads a few fields of thousands of objects, and making dataclasses of all the others would cost more than
everything else it does.

Not here: what the objects mean. Invariant: every failure is an `ApiProblem` whose text a person can act on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

Object = dict[str, Any]
"""A Kubernetes object, as the API server writes it."""

OLDEST = (1, 29)
"""The oldest Kubernetes this was written for; 1.36 is what the tests run."""

logging.getLogger("httpx2").setLevel(logging.WARNING)  # else it names every request

_CONNECTIONS = 32
_PATIENCE_S = 30.0
_LIST_PAGE = 500

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class ApiProblem(Exception):  # noqa: N818  (caught as what it is: a problem with the API)
    """`status` 0: the server could not be asked at all."""

    def __init__(self, text: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason

    @property
    def gone(self) -> bool:
        """A watch asked for a version that the server no longer has: everything must be listed again."""
        return self.status == 410

    @property
    def passing(self) -> bool:
        """Trying again may help."""
        return self.status in (0, 408, 429) or self.status >= 500


def read_kubeconfig(file: str, context: str) -> SingleConfig:
    """The named file, else what kubectl would use: in the cluster its service account, outside KUBECONFIG."""
    try:
        config = KubeConfig.from_file(Path(file).expanduser()) if file else KubeConfig.from_env()
        chosen = config.get(context or None)
        if chosen is None:
            raise ValueError("it names no current context")
        return chosen
    except (ConfigError, OSError, ValueError, KeyError) as error:
        named = f" {file}" if file else ""
        raise ApiProblem(f"no usable kubeconfig{named}: {error}; see `kubectl config get-contexts`") from error


class KubernetesApi:
    def __init__(self, config: SingleConfig) -> None:
        self.server = config.cluster.server
        self.namespace = config.namespace or "default"
        self._client = AsyncClient(config, ConnectionParams(timeout=httpx.Timeout(_PATIENCE_S)))
        self._turns = asyncio.Semaphore(_CONNECTIONS)
        self.requests = 0
        """How many were made: `bireme doctor` and the benchmark want to know."""

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: Object | list[Object] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        media: str = "application/json",
    ) -> Object:
        """One request; the object it answers with. Raises ApiProblem."""
        content = None if body is None else _encoder.encode(body)
        headers = {"Content-Type": media} if content is not None else None
        self.requests += 1
        try:
            async with self._turns:
                response = await self._client.request(method, path, content=content, params=params, headers=headers)
        except (httpx.HTTPError, OSError, ConfigError) as error:
            raise self._unreachable(error) from error
        if response.status_code >= 400:
            raise _refusal(response.status_code, response.content)
        return _object(response.content)

    async def list(self, path: str, params: Mapping[str, str] | None = None) -> tuple[list[Object], str]:
        """All objects, page by page, and the version from which a watch goes on."""
        items: list[Object] = []
        asked = {**(params or {}), "limit": str(_LIST_PAGE)}
        while True:
            answer = await self.ask("GET", path, params=asked)
            items.extend(answer.get("items") or ())
            metadata = answer["metadata"]
            if not metadata.get("continue"):
                return items, metadata["resourceVersion"]
            asked["continue"] = metadata["continue"]

    async def watch(
        self, path: str, version: str, params: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[str, Object]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object) until the server ends it. Raises ApiProblem."""
        asked = {**(params or {}), "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        timeout = httpx.Timeout(_PATIENCE_S, read=None)
        self.requests += 1
        try:
            async with self._client.stream("GET", path, params=asked, timeout=timeout) as response:
                if response.status_code >= 400:
                    raise _refusal(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    event = _object(line.encode())
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiProblem(
                            status.get("message", "the watch failed"),
                            status=status.get("code", 500),
                            reason=status.get("reason", ""),
                        )
                    yield event["type"], event["object"]
        except (httpx.HTTPError, OSError, ConfigError) as error:
            raise self._unreachable(error) from error

    async def version(self) -> tuple[int, int]:
        """The server's (major, minor)."""
        answer = await self.ask("GET", "/version")
        minor = "".join(char for char in answer["minor"] if char.isdigit())
        return int(answer["major"]), int(minor)

    def _unreachable(self, error: Exception) -> ApiProblem:
        what = str(error) or type(error).__name__
        return ApiProblem(f"the Kubernetes API server {self.server} does not answer: {what}")


def _object(content: bytes) -> Object:
    try:
        decoded = _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise ApiProblem(f"the API server's answer is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise ApiProblem("the API server's answer is not an object")
    return decoded


def _refusal(status: int, content: bytes) -> ApiProblem:
    try:
        answer = _object(content)
        text, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
    except ApiProblem:
        text, reason = content[:200].decode(errors="replace"), ""
    if status == 401:
        text = f"{text or 'Unauthorized'}: the credentials of the kubeconfig are not valid (any more)"
    return ApiProblem(text or f"HTTP status {status}", status=status, reason=reason)
