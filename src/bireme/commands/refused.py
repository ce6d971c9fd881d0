"""How a question to the daemon can fail: it was refused, or nobody answers. For the commands and for the SDK."""

from __future__ import annotations


class BiremeError(Exception):
    """Base of everything this SDK raises on purpose. `str()` is a sentence for people."""


class BiremeUnavailable(BiremeError):  # noqa: N818  # reads as what it means: `except BiremeUnavailable`
    """Nobody answers on the socket. `message` is Slurm's sentence; `hint` says what to do about it."""

    def __init__(self, socket_path: str, cause: str, silent: str = "", *, doubtful: bool = False) -> None:
        """`silent`: who is there and does not answer; empty: nobody is there.

        `doubtful`: the daemon had the request, which changes something, and ended: it may have been done.
        """
        self.socket_path = socket_path
        self.cause = cause
        self.doubtful = doubtful
        self.message = "Unable to contact slurm controller (connect failure)"
        self.hint = f"no daemon answers at {socket_path} ({cause}); start it with: bireme up"
        if silent:
            self.hint = f"{silent} at {socket_path} does not answer ({cause}); see: bireme doctor"
        elif doubtful:
            ended = f"the daemon at {socket_path} ended before it answered"
            self.hint = f"{ended}: look whether it was done (see: bireme status)"
        super().__init__(f"{self.message}: {self.hint}")


class ApiError(BiremeError):
    """The daemon refused or failed: `message` is Slurm's where Slurm has one, `code` its name; `hint` says more.

    `remark` is what Slurm says in a line before the message.
    """

    remark = ""

    def __init__(self, message: str, *, status: int, code: str | None, slurm_errno: int | None, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        self.status = status
        self.code = code
        self.slurm_errno = slurm_errno
        super().__init__(message)
        if hint:
            self.add_note(hint)  # a traceback in somebody's Python shows it; commands print it themselves


def refusal_in(status: int, content: object) -> ApiError:
    """The error that an answer's JSON tells of; `content` is None where it was no JSON."""
    error = content.get("error") if isinstance(content, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return ApiError(f"the daemon answered with HTTP status {status}", status=status, code=None, slurm_errno=None)
    refusal = ApiError(
        error["message"],
        status=status,
        code=error.get("code"),
        slurm_errno=error.get("slurm_errno"),
        hint=error.get("hint", ""),
    )
    refusal.remark = error.get("remark", "")
    return refusal
