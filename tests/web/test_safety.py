"""What other sites' pages, other users and whatever users wrote can do on the pages: nothing."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from tests.support.browsing import Browsing
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.visiting import OWN, Visitor, ask

from bireme.web.pages import PAGES
from bireme.web.passing import MOST_READS_EACH

HOSTILE = '<img src=x onerror="hacked=1"></script><script>hacked=1</script>\x1b]0;gone\x07\x1b[2J\u202e{{7*7}}'
"""Markup, the end of a script, codes of terminals, another direction of writing, and a template."""


@pytest.fixture(scope="module")
def visitor(cluster: Cluster) -> Visitor:
    return Visitor(cluster)


@pytest.fixture(scope="module")
def hostile(cluster: Cluster) -> str:
    """A job with all of that in every word that its user may choose."""
    script = cluster.script(
        "printf '%s\\n' \"$1\"; printf '%s\\n' \"$1\" >&2; python3 -c 'raise ValueError(\"<b>boom</b>\")'"
    )
    job = cluster.sbatch(
        f"--job-name={HOSTILE}", f"--comment={HOSTILE}", "--wckey=<b>key</b>", "--output=<b>out %j.log",
        "--error=<i>err %j.log", str(script), HOSTILE,
    )  # fmt: skip
    cluster.run("scontrol", "update", "nodename=n4", "state=drain", f"reason={HOSTILE}")
    cluster.wait(job)
    return job


def paths_of(job: str) -> list[str]:
    """Every page there is, with names that there are."""
    names = {"job": job, "node": "n4", "service": "none", "name": "none"}
    return [page.path.format(**names) for page in PAGES]


def test_the_cookie_is_for_this_site_and_no_script(visitor: Visitor) -> None:
    words = {word.strip() for word in visitor.entered.headers["set-cookie"].split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= words
    assert visitor.entered.status == 303


@pytest.mark.parametrize(
    "path",
    ["/now", "/nothing", "/login/x", "/v1/jobs", "/v1/nothing", "/static/0/app.css", "/live?page=/now&part=figures"],
)
def test_every_answer_has_the_headers_that_keep_scripts_out(visitor: Visitor, path: str) -> None:
    for cookie in (visitor.cookie, ""):
        headers = visitor.send("GET", path, {"Cookie": cookie}).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "headers",
    [
        {"bireme-proof": None},
        {"bireme-proof": "0" * 64},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": None, "Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": None},
        {"Cookie": ""},
    ],
    ids=lambda headers: ",".join(f"{name}={value}" for name, value in headers.items())[:60],
)
def test_a_change_needs_the_cookie_the_proof_and_a_page_of_ours(
    visitor: Visitor, cluster: Cluster, headers: dict[str, Any]
) -> None:
    job = cluster.sbatch("--hold", "--wrap=true")
    assert visitor.post(f"/v1/jobs/{job}/cancel", {}, **headers).status in (401, 403)
    assert cluster.records(job)[0]["state"] == "PENDING"
    assert visitor.post(f"/v1/jobs/{job}/cancel", {}).status == 200
    assert cluster.records(job)[0]["state"] == "CANCELLED"


def test_others_pages_read_nothing_and_begin_no_session(visitor: Visitor, cluster: Cluster) -> None:
    assert visitor.get("/v1/jobs", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert visitor.get("/v1/jobs", **{"Sec-Fetch-Site": "same-site"}).status == 403
    assert visitor.get("/v1/jobs", **OWN).status == 200
    code = cluster.bireme("web", "--json").stdout.split("/login/")[1].split('"')[0]
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    refused = visitor.send("POST", "/login", {**form, "Sec-Fetch-Site": "cross-site"}, f"code={code}")
    assert (refused.status, "set-cookie" in refused.headers) == (403, False)
    assert visitor.send("POST", "/login", {**form, **OWN}, f"code={code}").status == 303, "it was not used up"


def test_a_page_holds_no_job_open_and_makes_no_link(visitor: Visitor, cluster: Cluster) -> None:
    """Whose connection ends would end the job with it."""
    job = cluster.sbatch("--hold", "--wrap=true")
    assert visitor.get(f"/v1/jobs/{job}/hold-open", **OWN).status == 403
    assert visitor.post("/v1/web/links", {}).status == 403
    assert visitor.post("/v1/web/sessions", {"code": "x"}).status == 403
    cluster.run("scancel", job)


def test_nobody_is_shown_anything_without_a_session(visitor: Visitor) -> None:
    for path in paths_of("1"):
        answer = visitor.send("GET", path, {})
        assert answer.status == 401
        assert "bireme web" in answer.text
    assert visitor.send("GET", "/v1/jobs", {}).status == 401
    assert visitor.send("GET", "/live?page=/now&part=figures", {}).status == 401
    assert visitor.send("GET", "/v1/jobs", {"Cookie": visitor.cookie + "x"}).status == 401


@pytest.mark.parametrize("path", ["/now/", "/v1", "/nodes/..%2f", "/queue//"])
def test_nobody_is_led_to_a_host_that_the_request_names(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path, Host="evil.example", **OWN)
    assert "evil.example" not in answer.headers.get("location", "")
    assert answer.status == 404


@pytest.mark.parametrize(
    "path", ["//v1/jobs", "/v1/../v1/jobs", "/v1/%2e%2e/x", "/static/../app.py", "/%00", "/v1/jobs/%0d%0aX:%20y"]
)
def test_addresses_that_are_none_are_refused(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status in (400, 404)


def test_what_users_wrote_is_text_wherever_it_stands(pages: Browsing, hostile: str) -> None:
    for path in paths_of(hostile):
        with pages.open(path) as page:
            page.locator("main").wait_for()
            if path == f"/jobs/{hostile}":
                page.locator(".log .line").first.wait_for()
                page.get_by_text("ValueError: <b>boom</b>").first.wait_for()
                assert "\\u001b]0;gone\\u0007" in page.locator(".log").inner_text()
            assert page.evaluate("typeof hacked") == "undefined", path
            assert page.locator("main img, main b >> text=boom").count() == 0, path
            shown = page.locator("main").inner_text()
            assert "\x1b" not in shown, path
            assert "\u202e" not in shown, path
            assert "49" not in page.title(), path
            pages.complaints[:] = [each for each in pages.complaints if "404" not in each]  # there is no such service


def test_a_job_is_named_as_its_user_did(pages: Browsing, hostile: str) -> None:
    with pages.open(f"/jobs/{hostile}") as page:
        shown = page.locator("h1").inner_text()
        assert '<img src=x onerror="hacked=1"></script><script>hacked=1</script>\\u001b]0;gone\\u0007' in shown
        assert "{{7*7}}" in shown


def test_a_name_that_is_no_utf8_takes_no_page_away(visitor: Visitor, pages: Browsing, cluster: Cluster) -> None:
    """As a page that is loaded, and as one that is open when the job comes."""
    with pages.open("/queue") as page:
        page.locator("#live[data-state=live]").wait_for()
        job = cluster.sbatch("--job-name=b\udcff17", "--comment=\udcfe", "--hold", "--wrap=true")
        page.locator(f"tr[data-key='{job}']").get_by_text("b\ufffd17").wait_for()
    for path in ("/now", "/queue?q=17", f"/jobs/{job}", f"/live?page=/jobs/{job}&part=job_head", f"/v1/jobs/{job}"):
        assert visitor.get(path, **OWN).status == 200, path
    assert "b\ufffd17" in visitor.get(f"/jobs/{job}").text
    cluster.run("scancel", job)


@pytest.fixture(scope="module")
def private() -> Iterator[Cluster]:
    """A cluster of root's whose users do not see each other's jobs."""
    if os.geteuid() != 0:
        pytest.skip("needs root: other users come to it")
    made = Cluster(virtual_nodes(1, settings="PrivateData=jobs"), for_everyone=True)
    with made.running() as running:
        yield running


def test_private_jobs_stay_private(private: Cluster) -> None:
    job = private.sbatch("--job-name=hush", "--output=/dev/null", "--wrap=sleep 100")
    private.until_started(job)
    owner, stranger = Visitor(private), Visitor(private, "nobody")
    assert "hush" in owner.get("/queue").text
    for path in ("/now", "/queue", "/queue?q=hush", f"/jobs/{job}", "/v1/jobs", "/v1/gpus", f"/v1/jobs/{job}/log"):
        answer = stranger.get(path, **OWN)
        assert "hush" not in answer.text.replace('value="hush"', "").replace("q=hush", ""), path
    assert stranger.get(f"/jobs/{job}").status == 404
    assert stranger.post(f"/v1/jobs/{job}/cancel", {}).status in (403, 404)
    assert stranger.post("/v1/reconfigure", {}).status == 403
    assert private.records(job)[0]["state"] == "RUNNING"
    assert owner.post(f"/v1/jobs/{job}/cancel", {}).status == 200


def test_answers_without_an_end_are_bounded_for_each_user_and_take_none_from_others(private: Cluster) -> None:
    owner, stranger = Visitor(private), Visitor(private, "nobody")
    with ExitStack() as held:
        for _ in range(MOST_READS_EACH):
            sock = held.enter_context(socket.create_connection(("127.0.0.1", stranger.port), timeout=60))
            head = f"GET /v1/events?follow=1 HTTP/1.1\r\nHost: b\r\nCookie: {stranger.cookie}\r\n\r\n"
            sock.sendall(head.encode())
            assert sock.recv(64).startswith(b"HTTP/1.1 200"), "the bound is for those beyond it"
        refused = stranger.get("/v1/jobs", **OWN)
        assert (refused.status, f"{MOST_READS_EACH} answers of yours" in refused.text) == (429, True)
        assert stranger.get("/queue").status == 200, "pages are drawn all the same"
        assert owner.get("/v1/jobs", **OWN).status == 200
    private.until(lambda: stranger.get("/v1/jobs", **OWN).status == 200)


def test_who_sends_no_request_is_sent_away(visitor: Visitor) -> None:
    """Nobody has to be logged in to open connections."""
    with ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", visitor.port), timeout=60)) for _ in range(20)
        ]
        for sock in silent[:10]:
            sock.sendall(b"GET /now HTTP/1.1\r\nHost: x\r\nX: ")
        assert visitor.get("/now").status == 200
        for sock in silent:
            with suppress(ConnectionResetError):
                assert sock.recv(1) == b""


def test_a_link_makes_nobody_another_user_unasked(private: Cluster) -> None:
    """Who follows a stranger's link, from wherever, is told whose it is; who is logged in, as whom too."""
    owner, stranger = Visitor(private), Visitor(private, "nobody")
    link = stranger.another_link()
    code = link.rpartition("/")[2]
    shown = owner.send("GET", f"/login/{code}", {"Sec-Fetch-Site": "cross-site"})
    assert "Log in as nobody" in shown.text
    asked = owner.enter(code, Cookie=owner.cookie)
    assert (asked.status, asked.cookie) == (200, "")
    assert "You are logged in as <strong>root</strong>" in asked.text
    instead = asked.text.split('name="instead" value="')[1].split('"')[0]
    assert owner.enter(code, "another", Cookie=owner.cookie).cookie == ""
    entered = owner.enter(code, instead, Cookie=owner.cookie)
    assert (entered.status, bool(entered.cookie)) == (303, True)
    own = owner.another_link().rpartition("/")[2]
    assert owner.get(f"/login/{own}").status == 303, "who is that already goes on"
    assert owner.enter(own).status == 303, "it was not used up"
    assert owner.enter(own).status == 403


def test_a_log_is_read_with_the_rights_of_who_asks(private: Cluster) -> None:
    """Root's daemon could read it; who may see the job still reads it as themselves."""
    private.conf(virtual_nodes(1))
    private.run("scontrol", "reconfigure")
    secret = private.work / "secret.out"
    job = private.sbatch(f"--output={secret}", "--wrap=echo mine alone; chmod 600 secret.out")
    private.wait(job)
    assert "mine alone" in Visitor(private).get(f"/v1/jobs/{job}/log", **OWN).text
    told = Visitor(private, "nobody").get(f"/v1/jobs/{job}/log", **OWN)
    assert "mine alone" not in told.text
    assert "Permission denied" in told.text


def test_what_becomes_private_is_not_shown_from_what_others_asked(private: Cluster) -> None:
    """While nothing is hidden, users' pages share answers; who saw all then is nobody to share with afterwards."""
    private.conf(virtual_nodes(1))
    private.run("scontrol", "reconfigure")
    job = private.sbatch("--job-name=hush", "--output=/dev/null", "--hold", "--wrap=true")
    owner, stranger = Visitor(private), Visitor(private, "nobody")
    for _ in range(2):
        assert [each.get("/queue").text.count("hush") > 0 for each in (owner, stranger)] == [True, True]
    private.conf(virtual_nodes(1, settings="PrivateData=jobs"))
    private.run("scontrol", "reconfigure")
    for order in ("id", "user", "submitted"):  # each a question that nobody has put before
        assert "hush" in owner.get(f"/queue?sort={order}").text
        assert "hush" not in stranger.get(f"/queue?sort={order}").text
    private.run("scancel", job)


def test_behind_a_proxy_all_is_below_its_prefix(make_cluster: Callable[..., Cluster]) -> None:
    """The proxy may take the prefix off or leave it; what it says of itself is not believed."""
    cluster = make_cluster(up=False)
    cluster.variables["BIREME_WEB_URL"] = "https://www.example.org/bireme"
    cluster.up()
    link = json.loads(cluster.bireme("web", "--json").stdout)
    assert link["url"].startswith("https://www.example.org/bireme/login/")
    port = int(json.loads((cluster.home / "web" / "port").read_text())["text"])
    form = {**OWN, "Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-Prefix": "/other"}
    code = link["url"].rpartition("/")[2]
    entered = ask("POST", port, "/bireme/login", {"Host": "www.example.org", **form}, f"code={code}")
    assert entered.headers["location"] == "/bireme/"
    assert "Path=/bireme; HttpOnly; SameSite=Strict" in entered.headers["set-cookie"]
    assert entered.headers["set-cookie"].endswith("; Secure")
    for path in ("/bireme/now", "/now"):
        page = ask("GET", port, path, {"Host": "www.example.org", "Cookie": entered.cookie})
        assert page.status == 200
        addresses = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text))
        assert addresses
        assert all(each.startswith("/bireme/") for each in addresses), addresses
