"""One sacctmgr process: its options and its connection."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bireme.commands import reports

if TYPE_CHECKING:
    from bireme.commands.surroundings import Port

QUESTION = "Would you like to commit changes? (You have 30 seconds to decide)"
PATIENCE_S = 30.0
DISCARDED = " Changes Discarded"
NO_PRIVILEGE = "ESLURM_ACCESS_DENIED"


class Session:
    def __init__(self, asked: dict[str, str | None]) -> None:
        self.asked = dict(asked)
        self._transport: Port | None = None

    def has(self, name: str) -> bool:
        return name in self.asked

    @property
    def wants_data(self) -> bool:
        return self.has("json") or self.has("yaml")

    @property
    def transport(self) -> Port:
        if self._transport is None:
            self._transport = reports.transport()
        return self._transport

    def book(self) -> dict[str, Any]:
        from bireme.client.transport import ApiError, BiremeUnavailable  # late: `help` needs no daemon

        try:
            answer: dict[str, Any] = self.transport.get("/v1/accounting/book")
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("sacctmgr", "sacctmgr: error: Problem talking to the database", error) from None
        return answer

    def change(self, orders: list[Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Sends the orders; a refusal is told in the book's own words."""
        from bireme.client.transport import ApiError, BiremeUnavailable  # late: only changes need these
        from bireme.core.accounting.changes import NOTHING_DELETED, NOTHING_MODIFIED
        from bireme.core.accounting.orders import Orders
        from bireme.store.plain import to_plain

        if self.has("readonly"):
            raise reports.CommandError("Can't run this command in readonly mode.")
        body = to_plain(Orders(orders=tuple(orders), dry_run=dry_run))
        try:
            answer: dict[str, Any] = self.transport.post("/v1/accounting/changes", body)
        except BiremeUnavailable as error:
            raise reports.failure("sacctmgr", "sacctmgr: error: Problem talking to the database", error) from None
        except ApiError as error:
            if error.code == NO_PRIVILEGE:
                raise reports.CommandError(f" {error.hint or error.message}") from None
            if error.hint in (NOTHING_MODIFIED, NOTHING_DELETED):  # an answer, not a complaint
                print(error.hint)
                raise reports.SilentError from None
            raise reports.CommandError(error.hint or f" Error with request: {error.message}") from None
        return answer

    def agreed(self, question: str = QUESTION) -> bool:
        """Whether to go on: -i says so; otherwise the person is asked, and no answer in time is a no."""
        if self.has("immediate"):
            return True
        import select  # late: only a question needs it

        print(question)
        for _ in range(3):
            sys.stdout.write("(N/y): ")
            sys.stdout.flush()
            ready, _, _ = select.select([sys.stdin], [], [], PATIENCE_S)
            line = sys.stdin.readline() if ready else ""
            sys.stdout.write("" if sys.stdin.isatty() else "\n")
            if not line or line.strip().lower() in ("", "n", "no"):
                return False
            if line.strip().lower() in ("y", "yes"):
                return True
            print("Y or N please")
        return False
