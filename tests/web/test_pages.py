"""Now, Queue and Job on a busy rehearsal cluster: what they show, what they do, at every size, dark and light."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.browsing import Browsing, axe_finds
from tests.support.cluster import Cluster

BROKEN = "echo first; python3 -c 'raise RuntimeError(\"boom\")'"


@pytest.fixture(scope="module")
def busy(cluster: Cluster) -> dict[str, str]:
    """Jobs by their names: they run on all nodes, wait, are held, have failed, are tasks of an array."""
    cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=fan broken")
    found = {"broken": cluster.sbatch("--job-name=broken", f"--wrap={BROKEN}")}
    cluster.wait(found["broken"])
    ask: dict[str, list[str]] = {
        "train": ["-N2", "--gpus-per-node=8", "-t120", "--wrap=for i in $(seq 3000); do echo step $i; sleep 1; done"],
        "eval": ["--gpus=3", "-t30", "--comment=of last night", "--wrap=sleep 3000"],
        "next": ["--gpus=8", "-N1", "-t20", "--wrap=sleep 3000"],
        "held": ["--hold", "--gpus=8", "-N1", "-t5", "--wrap=true"],
        "sweep": ["--array=1-4", "--gpus=8", "-N1", "-t10", "--wrap=sleep 3000"],
    }
    for name, words in ask.items():
        found[name] = cluster.sbatch(f"--job-name={name}", *words)
    cluster.until_started(found["eval"])
    return found


def until_drawn(page: Any) -> None:
    page.locator("#live[data-state=live]").wait_for()
    for words in ("One moment", "being read"):
        page.locator("main p", has_text=words).last.wait_for(state="detached")


PATHS = ("/now", "/queue?state=all", "/jobs/{broken}", "/jobs/{train}", "/jobs/{next}", "/jobs/{sweep}")


@pytest.mark.parametrize(("size", "scheme"), [("phone", "dark"), ("laptop", "light"), ("wall", "dark")])
@pytest.mark.parametrize("path", PATHS)
def test_everybody_can_use_it(pages: Browsing, busy: dict[str, str], path: str, size: str, scheme: str) -> None:
    with pages.open(path.format(**busy), size, scheme=scheme) as page:
        until_drawn(page)
        assert axe_finds(page) == []
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"the page is {wide} px too wide"


def test_the_map_is_walked_by_keys_and_says_what_is_there(pages: Browsing, busy: dict[str, str]) -> None:
    with pages.open("/now") as page:
        page.locator(".gpumap").focus()
        page.keyboard.press("ArrowRight")
        said = page.locator("#map-said")
        assert said.inner_text() == f"n1 GPU 0 · job {busy['train']} train, root (root), main"
        page.keyboard.press("ArrowRight")
        assert said.inner_text().startswith("n1 GPU 1 ·")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/jobs/{busy['train']}")


def test_the_map_is_coloured_by_what_is_asked_and_the_address_says_so(pages: Browsing, busy: dict[str, str]) -> None:
    with pages.open("/now") as page:
        page.get_by_role("button", name="user", exact=True).click()
        assert page.url.endswith("?colour=user")
        page.locator("#map-legend").get_by_text("root (").wait_for()
        page.keyboard.press("c")
        page.locator("#map-legend").get_by_text("its node is out (8)").wait_for()
        page.reload()
        assert page.locator("[data-colour=health]").get_attribute("aria-pressed") == "true"
        page.get_by_text("As a table").click()
        row = page.locator(".as-table tr", has_text="n4")
        assert row.locator("td").all_inner_texts() == ["n4", "drained", "8", "0", "8", ""]


def test_now_says_what_starts_next_and_what_is_broken(pages: Browsing, cluster: Cluster, busy: dict[str, str]) -> None:
    with pages.open("/now") as page:
        page.locator("[data-part=next]").get_by_text("next").wait_for()
        page.locator("[data-part=broken]").get_by_text("fan broken").wait_for()
        cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=fan mended soon")
        page.locator("[data-part=broken]").get_by_text("fan mended soon").wait_for()


def test_the_queue_is_searched_in_its_address(pages: Browsing, busy: dict[str, str]) -> None:
    with pages.open("/queue") as page:
        field = page.get_by_label("Search", exact=True)
        field.fill("user:root -name:sweep last")
        field.press("Enter")
        page.wait_for_url("**q=user%3Aroot**")
        names = page.locator("[data-part=jobs] tbody tr td:nth-child(2)")
        assert names.all_inner_texts() == ["eval"]
        page.goto(f"{pages.url}/queue?q=reason:held&state=PENDING")
        assert names.all_inner_texts() == ["held"]
        page.goto(f"{pages.url}/queue?q=nothing+is+like+this")
        page.get_by_text("No job is like that.").wait_for()


def test_the_plan_has_a_bar_for_each_job_whose_start_is_known(pages: Browsing, busy: dict[str, str]) -> None:
    with pages.open("/queue?q=name:train") as page:
        bar = page.locator(".gantt a")
        assert bar.count() == 1
        assert f"job {busy['train']} train, root, 16 GPUs on n[1-2]: runs since" in bar.get_attribute("aria-label")
        bar.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/jobs/{busy['train']}")


def test_rows_are_walked_and_opened_by_keys(pages: Browsing, busy: dict[str, str]) -> None:
    with pages.open("/queue?q=name:eval") as page:
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/jobs/{busy['eval']}")


def test_a_diagnosis_leads_to_its_line(pages: Browsing, busy: dict[str, str]) -> None:
    with pages.open(f"/jobs/{busy['broken']}") as page:
        page.locator("[data-part=diagnosis_part]").get_by_text("RuntimeError: boom", exact=True).wait_for()
        page.get_by_role("button", name="line 4").click()
        aim = page.locator(".log .line.aim")
        aim.wait_for()
        assert aim.locator("code").inner_text() == "RuntimeError: boom"


def test_output_and_curves_are_shown_as_they_come(pages: Browsing, busy: dict[str, str]) -> None:
    with pages.open(f"/jobs/{busy['train']}") as page:
        page.locator(".log .line").first.wait_for()
        shown = page.locator(".log .line").count()
        page.locator(f".log .line:nth-child({shown + 1})").wait_for()
        page.locator("#board .row", has_text="state").wait_for()
        page.get_by_text("Script", exact=True).click()
        page.locator("details[data-lazy] pre", has_text="echo step").wait_for()


def test_hold_release_and_cancel_do_what_they_say(pages: Browsing, cluster: Cluster, busy: dict[str, str]) -> None:
    job = busy["held"]
    with pages.open(f"/jobs/{job}") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        until_drawn(page)
        page.get_by_role("button", name="Release").click()
        page.get_by_role("button", name="Hold").wait_for()
        assert cluster.records(job)[0]["held_by"] is None
        page.get_by_role("button", name="Hold").click()
        page.get_by_role("button", name="Release").wait_for()
        page.get_by_role("button", name="Cancel").click()
        page.locator("h1 + .state", has_text="CANCELLED").wait_for()
        assert cluster.records(job)[0]["state"] == "CANCELLED"


def test_another_limit_is_planned_as_it_is_typed(pages: Browsing, cluster: Cluster, busy: dict[str, str]) -> None:
    with pages.open(f"/jobs/{busy['eval']}") as page:
        field = page.get_by_label("New time limit, in minutes")
        field.fill("300")
        page.locator("form[data-limit] output").get_by_text("of others").or_(
            page.locator("form[data-limit] output").get_by_text("no other job")
        ).wait_for()
        assert cluster.records(busy["eval"])[0]["time_limit_s"] == 1800, "nothing is changed by asking"
        field.press("Enter")
        page.locator("#said", has_text="The time limit was changed.").wait_for()
        assert cluster.records(busy["eval"])[0]["time_limit_s"] == 18_000


def test_what_there_is_not_is_said_with_what_to_do(pages: Browsing) -> None:
    with pages.open("/now") as page:
        assert page.goto(f"{pages.url}/jobs/999999").status == 404
        page.get_by_role("heading", name="Not found").wait_for()
        pages.complaints.clear()
