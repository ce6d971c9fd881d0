"""The pages as somebody sees them who is no operator, in a real browser, where jobs are private."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.browsing import Browsing, axe_finds
from tests.support.cluster import Cluster, virtual_nodes

OWN_CHANGES = {"/v1/web/sessions/revoke"}
"""What the pages below may offer to anybody."""
PATHS = ("/now", "/queue", "/nodes", "/nodes/n1", "/services", "/use", "/whatif", "/submit", "/admin")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Root's, whose users do not see each other's jobs; one job of root's runs."""
    if os.geteuid() != 0:
        pytest.skip("needs root: somebody else comes to it")
    made = Cluster(virtual_nodes(2, settings="PrivateData=jobs"), for_everyone=True)
    with made.running() as running:
        running.until_started(running.sbatch("--job-name=hush", "--output=/dev/null", "--wrap=sleep 900"))
        yield running


@pytest.fixture(scope="module")
def pages(browser: Any, cluster: Cluster) -> Browsing:
    return Browsing(browser, cluster, "nobody")


@pytest.mark.parametrize("path", PATHS)
def test_who_is_no_operator_is_offered_what_they_may_do(pages: Browsing, path: str) -> None:
    """No part fails for want of rights, nothing private is there, and no button that the daemon would refuse."""
    with pages.open(path) as page:
        if page.locator("[data-part]").count():
            page.locator("#live[data-state=live]").wait_for()
        assert page.locator("h1").count() == 1
        text = page.locator("body").inner_text()
        assert "hush" not in text
        assert "could not be drawn" not in text
        offered = page.locator("main [data-post]").evaluate_all("all => all.map((each) => each.dataset.post)")
        assert set(offered) <= OWN_CHANGES, path
        assert axe_finds(page) == []


def test_what_they_may_not_ask_is_said_and_not_offered(pages: Browsing) -> None:
    with pages.open("/whatif") as page:
        page.get_by_text("operators may ask").wait_for()
        assert page.locator("input[type=range]").count() == 0
    with pages.open("/now") as page:
        page.get_by_text("No job waits that you may see.").wait_for()
    with pages.open("/admin") as page:
        page.get_by_text("That is told to operators.").wait_for()


def test_on_a_phone_the_menu_shows_where_one_is(pages: Browsing) -> None:
    with pages.open("/admin", "phone") as page:
        page.wait_for_function(
            "document.querySelector('.top nav [aria-current]').getBoundingClientRect().right <= innerWidth"
        )


def test_a_map_that_would_be_empty_says_that_nodes_are_private(browser: Any, cluster: Cluster) -> None:
    cluster.conf(virtual_nodes(2, settings="PrivateData=jobs,nodes"))
    cluster.run("scontrol", "reconfigure")
    with Browsing(browser, cluster, "nobody").open("/now") as page:
        page.get_by_text("Nodes are private on this cluster (PrivateData)").wait_for()
        page.locator("#live[data-state=live]").wait_for()
        assert page.locator("canvas").count() == 0
        assert "0 of 0" not in page.locator("main").inner_text()
        assert axe_finds(page) == []
    with Browsing(browser, cluster).open("/now") as page:
        page.locator("#map-legend li").first.wait_for()
