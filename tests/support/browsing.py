"""A real browser over a real cluster's pages: Debian's chromium, driven by Playwright.

Used through the fixtures of tests/web/conftest.py. What a page complains of (a script that failed, something that the
Content-Security-Policy kept it from, a file that is not there) fails the test that looked at it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_PATIENCE_MS = 20_000
SIZES = {"phone": (390, 844), "laptop": (1366, 768), "wall": (2560, 1440)}


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not os.path.exists(CHROMIUM):
        pytest.skip("there is no chromium: tests/prepare installs Debian's, as root")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Browsing:
    """The pages of one cluster, for whoever types `bireme web` there."""

    def __init__(self, browser: Any, cluster: Cluster, user: str | None = None) -> None:
        self._browser, self._cluster, self._user = browser, cluster, user
        self._state: Any = None
        self.url = ""
        self.complaints: list[str] = []

    def link(self) -> dict[str, Any]:
        """What `bireme web --json` says."""
        said = self._cluster.run(self._cluster.python, "-m", "bireme", "web", "--json", user=self._user)
        told: dict[str, Any] = json.loads(said.stdout)
        self.url = told["pages"]
        return told

    @contextmanager
    def open(self, path: str = "/now", size: str = "laptop", *, scheme: str = "light", **how: Any) -> Iterator[Any]:
        """A page of this address, once its live parts are heard of; its complaints fail the test."""
        width, height = SIZES[size]
        if self._state is None:
            self._log_in()
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, storage_state=self._state,
            reduced_motion="reduce", **how,
        )  # fmt: skip
        context.set_default_timeout(_PATIENCE_MS)
        page = self.watched(context.new_page())
        page.goto(self.url + path)
        try:
            yield page
        finally:
            context.close()
        complaints, self.complaints = self.complaints, []
        assert not complaints, complaints

    def _log_in(self) -> None:
        context = self._browser.new_context()
        page = context.new_page()
        page.goto(self.link()["url"])
        page.get_by_role("button", name="Log in as").click()
        page.wait_for_url("**/now")
        self._state = context.storage_state()
        context.close()

    def watched(self, page: Any) -> Any:
        def said(message: Any) -> None:
            if message.type in ("error", "warning"):
                self.complaints.append(message.text)

        page.on("console", said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page


def shoot(page: Any, path: Path) -> None:
    """For people who look at it."""
    page.screenshot(path=str(path), full_page=True)


SERIOUS = ("serious", "critical")


def axe_finds(page: Any) -> list[str]:
    """What keeps people with screen readers or a keyboard from using this page, if it is serious."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.evaluate("document.getAnimations().forEach((each) => each.finish())")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in SERIOUS
    ]
