"""The Kubernetes API as plain JSON: requests, lists and watches, over `wire`; kubeconfigs are read by lightkube.

Its typed objects are left aside: the engine reads a few fields of thousands of objects, and making dataclasses of all
the others would cost more than everything else it does.

Not here: what the objects mean. Invariant: every failure is an `ApiProblem` whose text a person can act on.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from bireme.engines.kubernetes.apiserver.wire import Wires

Object = dict[str, Any]
"""A Kubernetes object, as the API server writes it."""

OLDEST = (1, 29)
"""The oldest Kubernetes whose API has all that is asked of it here."""
TESTED = (1, 36)
"""What the tests run."""

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
    def over_quota(self) -> bool:
        return self.status == 403 and "exceeded quota" in str(self)

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
        self._config = config
        self.server = config.cluster.server
        self.namespace = config.namespace or "default"
        try:
            self._wires = Wires(config)
        except (OSError, ssl.SSLError, ConfigError, ValueError) as error:
            raise ApiProblem(f"the kubeconfig's certificates cannot be used: {error}") from error
        self.requests = 0
        """How many were made: `bireme doctor` and the benchmark want to know."""

    async def close(self) -> None:
        await self._wires.close()

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
        self.requests += 1
        try:
            answer = await self._wires.exchange(
                method, f"{path}?{urlencode(params)}" if params else path, content, media
            )
        except OSError as error:
            raise self._unreachable(error) from error
        if answer.status >= 400:
            raise _refusal(answer.status, answer.body)
        return _object(answer.body)

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
        self.requests += 1
        try:
            async with self._wires.stream(f"{path}?{urlencode(asked)}") as (answer, chunks):
                if answer.status >= 400:
                    raise _refusal(answer.status, answer.body)
                async for chunk in chunks:
                    for line in chunk.split(b"\n"):
                        if line:
                            yield _change(line)
        except OSError as error:
            raise self._unreachable(error) from error

    async def version(self) -> tuple[int, int]:
        """The server's (major, minor)."""
        answer = await self.ask("GET", "/version")
        minor = "".join(char for char in answer["minor"] if char.isdigit())
        return int(answer["major"]), int(minor)

    def authority(self) -> str:
        """What tells this cluster from others: a hash of the authority that it is trusted by; empty: not known."""
        cluster = self._config.cluster
        if cluster.certificate_auth_data:
            return hashlib.sha256(base64.b64decode(cluster.certificate_auth_data)).hexdigest()
        file = self._config.abs_file(cluster.certificate_auth) if cluster.certificate_auth else None
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""

    def _unreachable(self, error: Exception) -> ApiProblem:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ApiProblem(
                f"the kubeconfig does not trust {self.server} (certificate verify failed: {error.verify_message}): "
                "it is of another cluster, or the cluster was made anew; get its kubeconfig again"
            )
        what = str(error) or type(error).__name__
        return ApiProblem(f"the Kubernetes API server {self.server} does not answer: {what}")


def _change(line: bytes) -> tuple[str, Object]:
    event = _object(line)
    if event["type"] == "ERROR":
        status = event["object"]
        said = status.get("message", "the watch failed")
        raise ApiProblem(said, status=status.get("code", 500), reason=status.get("reason", ""))
    return event["type"], event["object"]


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
