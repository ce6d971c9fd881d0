"""One scontrol process: its options, its connection, and the words for what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bireme.cli import reports

if TYPE_CHECKING:
    from bireme.client.transport import Transport
    from bireme.slurm.formats.values import Context


class Session:
    """Options hold for every command of the process; the connection is opened when a command needs it."""

    def __init__(self, asked: Mapping[str, str | None]) -> None:
        self._asked = dict(asked)
        self._transport: Transport | None = None
        self.ended = False

    def has(self, name: str) -> bool:
        return name in self._asked

    def set(self, name: str) -> int:
        self._asked[name] = None
        return 0

    def unset(self, name: str) -> int:
        self._asked.pop(name, None)
        return 0

    @property
    def wants_data(self) -> bool:
        return self.has("json") or self.has("yaml")

    @property
    def oneliner(self) -> bool:
        return self.has("oneliner")

    @property
    def transport(self) -> Transport:
        if self._transport is None:
            self._transport = reports.transport()
        return self._transport

    def context(self, answer: Mapping[str, Any] | None = None) -> Context:
        return reports.make_context(now=float((answer or {}).get("now") or 0) or None)

    def get(self, path: str, what: str, params: dict[str, Any] | None = None) -> Any:
        """Asks the API; a refusal becomes `what: message`, as Slurm's own loading functions say it."""
        from bireme.client.transport import ApiError, BiremeUnavailable  # late: some commands need no daemon

        try:
            return self.transport.get(path, params)
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("scontrol", what, error) from None

    def post(self, path: str, body: Any = None) -> Any:
        """As `get`, for changes; the caller words the refusal (`ApiError`)."""
        from bireme.client.transport import BiremeUnavailable  # late: some commands need no daemon

        try:
            return self.transport.post(path, body)
        except BiremeUnavailable as error:
            raise reports.failure("scontrol", "slurm_update error", error) from None

    def say(self, text: str) -> None:
        if not self.has("quiet"):
            print(text)
