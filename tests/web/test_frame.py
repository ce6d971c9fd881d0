"""The frame of all pages in a real browser: the way in and out, what lasts, keys, dark and light, no daemon."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.browsing import Browsing, axe_finds
from tests.support.cluster import Cluster
from tests.support.visiting import Visitor


def sessions(cluster: Cluster) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(cluster.bireme("web", "sessions", "--json").stdout)["sessions"]
    return told


def test_a_link_logs_in_once(browser: Any, cluster: Cluster) -> None:
    pages = Browsing(browser, cluster)
    link = pages.link()
    context = browser.new_context()
    page = context.new_page()
    page.goto(link["url"], wait_until="networkidle")
    assert context.cookies() == [], "no script logs anybody in"
    page.get_by_role("button", name=f"Log in as {link['user']}").click()
    page.wait_for_url("**/now")
    cookie = context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert cookie["value"] not in json.dumps(sessions(cluster)), "a token is told once"
    other = browser.new_context().new_page()
    other.goto(link["url"])
    other.get_by_text("this link was used before, or is too old").wait_for()
    assert other.goto(f"{pages.url}/queue").status == 401
    other.context.close()
    context.close()


def test_a_revoked_session_is_over_and_its_page_says_so(pages: Browsing, cluster: Cluster) -> None:
    before = {each["id"] for each in sessions(cluster)}
    own = Browsing(pages._browser, cluster)
    with own.open("/queue") as page:
        page.locator("#live[data-state=live]").wait_for()
        mine = next(each["id"] for each in sessions(cluster) if each["id"] not in before)
        cluster.bireme("web", "revoke", mine)
        cluster.sbatch("--wrap=true")  # something changes, so that the page is drawn again
        page.locator("#live[data-state=out]").wait_for()
        assert page.reload().status == 401
        own.complaints.clear()  # the browser says that the page was refused


def test_sessions_outlive_the_daemon_and_a_page_says_that_it_is_away(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/queue") as page:
        page.locator("#live[data-state=live]").wait_for()
        cluster.kill_daemon()
        page.locator("#live[data-state=stale]").wait_for()
        assert page.locator("#stale").is_visible()
        cluster.up_again()
        page.locator("#live[data-state=live]").wait_for()
        assert page.goto(f"{pages.url}/now").status == 200
        pages.complaints.clear()  # of the connection that broke


def test_what_happens_is_shown_without_loading_the_page_again(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/queue?state=all") as page:
        page.locator("#live[data-state=live]").wait_for()
        page.evaluate("window.still = true")
        job = cluster.sbatch("--job-name=fresh", "--wrap=sleep 100")
        row = page.locator(f"tr[data-key='{job}']")
        row.get_by_text("RUNNING").wait_for()
        assert page.evaluate("window.still")
        cluster.run("scancel", job)
        row.get_by_text("CANCELLED").wait_for()


def test_keys_lead_everywhere(pages: Browsing) -> None:
    with pages.open("/now") as page:
        page.keyboard.press("?")
        assert page.locator("dialog#keys").is_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("q")
        page.wait_for_url("**/queue")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "search"
        page.keyboard.type("ab")
        assert page.locator("#search").input_value() == "ab"


def test_dark_and_light_as_the_system_says_or_as_was_chosen(pages: Browsing) -> None:
    with pages.open("/now", scheme="dark") as page:
        theme = "document.documentElement.dataset.theme"
        assert page.evaluate(theme) == "dark"
        page.keyboard.press("t")
        assert page.evaluate(theme) == "light"
        page.reload()
        assert page.evaluate(theme) == "light"


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_nothing_serious_for_screen_readers(pages: Browsing, scheme: str) -> None:
    context = pages._browser.new_context(color_scheme=scheme)
    page = pages.watched(context.new_page())
    page.goto(pages.link()["url"])
    page.get_by_role("button", name="Log in as").wait_for()
    assert axe_finds(page) == []
    page.keyboard.press("?")
    assert axe_finds(page) == []
    context.close()
    assert pages.complaints == []


def test_somebody_logs_out(browser: Any, cluster: Cluster) -> None:
    own = Browsing(browser, cluster)
    with own.open("/now") as page:
        page.locator("details.menu > summary").click()
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="You are not logged in").wait_for()
        own.complaints.clear()


def web_pid(cluster: Cluster) -> int:
    """What serves the pages of this cluster."""
    api = f"{cluster.home}/run/api.sock"
    named = ((pid, pid / "cmdline") for pid in Path("/proc").iterdir() if pid.name.isdigit())
    for pid, words in named:
        with suppress(OSError):
            if {"bireme.web", api} <= set(words.read_text().split("\0")):
                return int(pid.name)
    return 0


def test_what_serves_the_pages_is_nobody_and_is_replaced_when_it_dies(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/queue") as page:
        page.locator("#live[data-state=live]").wait_for()
        pid = web_pid(cluster)
        if os.geteuid() == 0:
            status = Path(f"/proc/{pid}/status").read_text()
            assert "Uid:\t65534\t65534\t65534\t65534" in status
        os.kill(pid, signal.SIGKILL)
        assert page.goto(f"{pages.url}/now").status == 200, "who comes meanwhile waits in the row"
        assert web_pid(cluster) != pid
        pages.complaints.clear()


def test_a_page_that_was_away_gets_what_is_newer(cluster: Cluster) -> None:
    visitor, path = Visitor(cluster), "/live?page=/queue%3Fq%3Dlater&part=jobs"
    with visitor.listening(path) as events:
        seen, told = next(events)
        assert "/jobs/" not in told
        job = cluster.sbatch("--hold", "--job-name=later", "--wrap=true")
    with visitor.listening(path, last=seen) as events:
        newer, told = next(each for each in events if f"/jobs/{job}" in each[1])
    assert newer != seen
    cluster.run("scancel", job)


def test_pages_that_are_off_are_not_there(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/now") as page:
        cluster.bireme("web", "off")
        with pytest.raises(Exception, match="ERR_CONNECTION_REFUSED"):
            page.goto(f"{pages.url}/queue")
        assert pages.link()["pages"] == pages.url, "they are where they were"
        assert page.goto(f"{pages.url}/queue").status == 200
        pages.complaints.clear()
