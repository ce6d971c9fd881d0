"""An API made of dicts, for tests of commands: what they ask of it, and what they make of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.client.transport import ApiError, BiremeUnavailable


class FakeApi:
    """Stands in for `Transport`. `answers` maps paths to answers; an exception among them is raised."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.posted: list[tuple[str, Any]] = []

    def get(self, path: str, params: Mapping[str, Any] | None = None, **_: Any) -> Any:
        self.asked.append((path, {key: value for key, value in (params or {}).items() if value is not None}))
        return self._answer(path)

    def get_bytes(self, path: str, params: Mapping[str, Any] | None = None) -> bytes:
        answer = self._answer(path)
        assert isinstance(answer, bytes)
        return answer

    def post(self, path: str, body: Any = None, params: Any = None, **_: Any) -> Any:
        self.posted.append((path, body))
        return self._answer(path, {})

    def _answer(self, path: str, default: Any = None) -> Any:
        answer = self.answers.get(path, default)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise ApiError("Invalid job id specified", status=404, code="ESLURM_INVALID_JOB_ID", slurm_errno=2017)
        if isinstance(answer, bytes):
            return answer
        return {**answer, **{key: list(value) for key, value in answer.items() if isinstance(value, list)}}


def refused(message: str) -> ApiError:
    return ApiError(message, status=400, code=None, slurm_errno=None)


def absent() -> BiremeUnavailable:
    return BiremeUnavailable("/nowhere/api.sock", "there is no socket")
