"""Nodes, services, use, what if, submit and admin in a real browser, on a busy rehearsal cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browsing import Browsing, axe_finds
from tests.support.cluster import Cluster
from tests.web.busy import NASTY, SLURM_CONF, make_busy, serve

from bireme.client.sdk import Client

PATHS = ("/now", "/nodes", "/nodes/n6", "/services", "/services/chat", "/use", "/whatif", "/submit", "/admin?all=1")
LOOKS = (("laptop", "light"), ("phone", "dark"), ("wall", "dark"))
NARROWER = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(SLURM_CONF)
    made.variables["BIREME_TELEMETRY_GATHER"] = "on"
    with made.running() as running:
        make_busy(running)
        yield running


def asked(cluster: Cluster, path: str) -> Any:
    with Client(str(cluster.home)) as client:
        return client.transport.get(path)


def is_filled(page: Any, path: str) -> None:
    """What scripts draw is there."""
    if path == "/whatif":
        page.locator("#jobs table").wait_for()
    elif path == "/submit":
        page.locator("#lines li").first.wait_for()
    elif path == "/services/chat":
        page.locator("#traffic .board, #traffic p").first.wait_for()
    elif path == "/nodes/n6":
        page.locator("#history [role=status], #history .board").first.wait_for(state="attached")


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_for_everybody_at_every_size(pages: Browsing, path: str) -> None:
    """What users wrote is text; nothing is wider than the screen; who cannot see it is told as much."""
    for size, scheme in LOOKS:
        with pages.open(path, size, scheme=scheme) as page:
            is_filled(page, path)
            assert page.locator("h1").count() == 1
            assert page.locator("img").count() == 0, NASTY
            assert page.evaluate(NARROWER), f"{path} is wider than a {size}"
            assert axe_finds(page) == [], (path, size, scheme)


def test_what_users_wrote_is_shown_as_they_wrote_it(pages: Browsing) -> None:
    with pages.open("/nodes/n6") as page:
        page.get_by_text(f"fan 3 rattles {NASTY}").first.wait_for()
    with pages.open("/use") as page:
        page.get_by_role("cell", name=NASTY).wait_for()


def test_a_gpu_is_fenced_and_given_back_where_it_is_seen(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/nodes/n1") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        row = page.locator("#gpus ~ div tr[data-row]").nth(2)
        row.get_by_text("Fence").first.click()
        row.get_by_role("textbox").fill("it hums")
        row.get_by_role("button", name="Fence").click()
        row.get_by_text("fenced").wait_for()
        (fence,) = [each for each in asked(cluster, "/v1/healings")["fences"] if each["node"] == "n1"]
        assert (fence["gpu"], fence["why"]) == (2, "it hums")
        row.get_by_role("button", name="Undo").click()
        row.get_by_text("no finding").wait_for()
        assert not [each for each in asked(cluster, "/v1/healings")["fences"] if each["node"] == "n1"]


def test_a_node_is_drained_with_a_reason_and_resumed(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/nodes/n2") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        page.locator("summary", has_text="Drain").click()
        page.get_by_label("Why? It stands in sinfo -R.").fill("a new fan")
        page.get_by_role("button", name="Drain").click()
        page.get_by_role("button", name="Resume").wait_for()
        assert "a new fan" in cluster.run("sinfo", "-R").stdout
        page.get_by_text("drained: a new fan").wait_for()
        page.get_by_role("button", name="Resume").click()
        page.locator("summary", has_text="Drain").wait_for()
        assert "a new fan" not in cluster.run("sinfo", "-R").stdout


def test_a_request_is_tried_and_its_answer_is_text(pages: Browsing) -> None:
    with pages.open("/services/chat") as page:
        page.get_by_label("Path below").fill("hello?x=1")
        page.get_by_role("button", name="Send").click()
        page.locator("#tried .state", has_text="200").wait_for()
        page.locator("#tried pre", has_text="<b>hello</b>").wait_for()
        assert page.locator("#tried b").count() == 0
        page.locator("#traffic .board").wait_for()


def test_a_canary_is_shifted_by_its_slider(pages: Browsing, cluster: Cluster) -> None:
    serve(cluster, "--canary=20%")
    with pages.open("/services/chat") as page:
        page.locator("#live[data-state=live]").wait_for()
        slider = page.get_by_role("slider")
        slider.focus()
        for _ in range(15):
            page.keyboard.press("ArrowRight")
        assert page.locator("#part").text_content() == "35%"
        page.get_by_role("button", name="Shift").click()
        page.locator("[data-part=story]").get_by_text("revision 2 has 35% of the requests").wait_for()
        revisions = asked(cluster, "/v1/services/chat")["service"]["revisions"]
        assert [each["canary_percent"] for each in revisions] == [None, 35]


def test_a_key_is_shown_once(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/services/chat") as page:
        page.get_by_label("What it is for").fill("the web page")
        page.get_by_role("button", name="Make a key").click()
        page.locator("#made-key code").get_by_text("bireme-").wait_for()
        key = page.locator("#made-key code").text_content()
        page.reload()
        assert key not in page.content()
        (made,) = asked(cluster, "/v1/services/chat/keys")["keys"]
        assert made["note"] == "the web page"
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Revoke").click()
        page.get_by_text("Done: Revoke").wait_for()
        assert not asked(cluster, "/v1/services/chat/keys")["keys"]


def test_a_change_is_planned_before_it_is_made(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/whatif") as page:
        page.locator("#jobs td", has_text="wide-0").wait_for()
        page.locator("[data-add]").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.locator("#jobs .sooner").first.wait_for()
        assert "--add-nodes '2x8:h100 partition=main'" in page.locator("#command").text_content()
        page.get_by_role("button", name="As it is").click()
        page.locator("#jobs .sooner").first.wait_for(state="detached")
        assert len(asked(cluster, "/v1/nodes")["nodes"]) == 6


def test_a_script_is_explained_and_submitted(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/submit") as page:
        page.locator("#text").fill(f"#!/bin/bash\n#SBATCH --job-name=paged --colour=red\necho {NASTY}\n")
        page.get_by_role("alert").get_by_text("unrecognized option").wait_for()
        assert page.locator("#send").is_disabled()
        page.get_by_label("Working folder").fill(str(cluster.work))
        page.locator("#text").fill("#!/bin/bash\n#SBATCH --job-name=paged -N1\n# SBATCH --mem=1\ntrue\n")
        page.get_by_text("write #SBATCH at the beginning of the line").wait_for()
        page.locator("#when", has_text="It would start").wait_for()
        page.locator("#send").click()
        page.wait_for_url("**/jobs/*")
        job = page.url.rpartition("/")[2]
        pages.complaints.clear()  # the page of the job is another test's
    assert cluster.wait(job)["state"] == "COMPLETED"
    assert cluster.records(job)[0]["name"] == "paged"


def test_use_comes_as_csv(pages: Browsing, tmp_path: Path) -> None:
    with pages.open("/use") as page:
        with page.expect_download() as started:
            page.locator("button[data-csv=users-table]").click()
        started.value.save_as(tmp_path / "users.csv")
    head, first, *_ = (tmp_path / "users.csv").read_text().splitlines()
    assert head.split(",")[:2] == ["User", "GPU-hours"]
    assert float(first.split(",")[1]) > 0


def test_operators_reserve_limit_and_close(pages: Browsing, cluster: Cluster) -> None:
    with pages.open("/admin") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        page.locator("summary", has_text="Make a reservation").click()
        form = page.locator("#reserve")
        form.get_by_label("Name").fill("exam")
        form.get_by_label("Begins").fill("2099-01-01T09:00")
        form.get_by_label("Nodes").fill("n[1-2]")
        form.get_by_label("Accounts").fill("physics")
        form.get_by_role("button").click()
        page.locator("[data-part=reserved] tr", has_text="exam").wait_for()
        assert "Nodes=n[1-2]" in cluster.run("scontrol", "show", "reservation", "exam").stdout
        page.locator("[data-part=reserved] tr", has_text="exam").get_by_role("button", name="Delete").click()
        page.locator("[data-part=reserved] tr", has_text="exam").wait_for(state="detached")
        page.locator("summary", has_text="Set a limit").click()
        form = page.locator("#limit")
        form.get_by_label("Account").select_option("biology")
        form.get_by_label("At most").fill("12")
        form.get_by_role("button").click()
        page.locator("[data-part=accounts]").get_by_text("GrpTRES=gres/gpu=12").wait_for()
        row = page.locator("[data-part=partitions] tr", has_text="debug")
        row.get_by_role("button", name="Down").click()
        row.locator(".state", has_text="DOWN").wait_for()
        assert "down" in cluster.run("sinfo", "-h", "-p", "debug", "-o", "%a").stdout
        page.locator("[data-part=audit]").get_by_text("partition debug is DOWN").wait_for()


def test_a_timeline_of_one_file_looks_like_the_pages(browser: Any, cluster: Cluster, tmp_path: Path) -> None:
    """It fetches nothing, its policy lets its own script run, and all of it is drawn."""
    page = Browsing(browser, cluster).watched(browser.new_context(color_scheme="dark").new_page())
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    cluster.bireme("timeline", "1", "--html", str(tmp_path / "one.html"))
    page.goto(f"file://{tmp_path}/one.html")
    assert page.locator(".board canvas").count() > 3
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
    assert axe_finds(page) == []
    assert not complaints
    page.context.close()
