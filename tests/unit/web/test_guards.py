"""What keeps other sites' pages out, where the pages may be, and what a value that a user wrote becomes."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from bireme.daemon.settings import Settings, SettingsError
from bireme.daemon.web.plan import WebPlan
from bireme.web.drawing import TEMPLATES, Drawing, data, lines, time_of
from bireme.web.files import STATIC
from bireme.web.guards import PROOF_HEADER, SAFE_HEADERS, Place, is_own_page, is_proven, proof_of


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://h:1", "host": "h:1"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://h:1", "host": "h:1"}, True),
        ({"origin": "http://h:2", "host": "h:1"}, False),
        ({"origin": "null", "host": ""}, True),
        ({"origin": "http://[", "host": "h:1"}, False),
        ({"host": "h:1"}, False),
    ],
)
def test_the_browser_says_whose_page_it_is(headers: dict[str, str], own: bool) -> None:
    if headers.get("origin") == "null":
        headers = {**headers, "host": "h:1"}  # a page without an origin is nobody's
        own = False
    assert is_own_page(headers) is own


def test_a_proof_is_one_tokens_and_does_not_tell_it() -> None:
    assert is_proven("a", {PROOF_HEADER: proof_of("a")})
    assert not is_proven("b", {PROOF_HEADER: proof_of("a")})
    assert not is_proven("a", {})
    assert not is_proven("a", {PROOF_HEADER: "ä"})


def test_the_cookie_is_as_closed_as_can_be() -> None:
    told = Place(8700, "/bireme", secure=True).set_cookie("t", 60)
    assert told == "bireme_8700=t; Path=/bireme; HttpOnly; SameSite=Strict; Max-Age=60; Secure"
    assert "Max-Age=0" in Place(8700).set_cookie("", 60)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"web_listen": "0.0.0.0:8700"}, "web.tls_certificate"),
        ({"web_listen": "somewhere"}, "as 127.0.0.1:8700 is"),
        ({"web_listen": "127.0.0.1:70000"}, "as 127.0.0.1:8700 is"),
        ({"web_tls_key": "k"}, "given together"),
        ({"web_session_hours": 0}, "from 1 to"),
        ({"web_idle_hours": 10**400}, "from 1 to"),
        ({"web_url": "gpus.example.org"}, "as https://gpus.example.org/bireme is"),
        ({"web_url": 'https://x/"><b>'}, "as https://gpus.example.org/bireme is"),
        ({"web_url": "https://x/?a=b"}, "as https://gpus.example.org/bireme is"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(settings: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(says)):
        WebPlan.of(Settings(**settings))  # type: ignore[arg-type]


def test_where_people_find_the_pages() -> None:
    assert WebPlan.of(Settings()).url_at(7) == "http://bireme.localhost:7"
    behind = WebPlan.of(Settings(web_url="https://gpus.example.org/bireme/"))
    assert (behind.url_at(7), behind.prefix) == ("https://gpus.example.org/bireme", "/bireme")
    open_to_all = Settings(web_listen="[::]:8443", web_tls_certificate="c", web_tls_key="k")
    assert WebPlan.of(open_to_all).url_at(8443) == f"https://{socket.gethostname()}:8443"


def test_what_is_no_certificate_is_said(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("root:x:0:0")
    for certificate in ("key.pem", "missing.pem"):
        files = {"web_tls_certificate": str(tmp_path / certificate), "web_tls_key": str(tmp_path / "key.pem")}
        with pytest.raises(SettingsError, match="no certificate and its key"):
            WebPlan.of(Settings(**files)).check_certificate()  # type: ignore[arg-type]
    WebPlan.of(Settings()).check_certificate()


HOSTILE = '</script><b>\x1b[31m"\u202e'


def test_every_value_is_text_whoever_forgets_it() -> None:
    drawing = Drawing({"menu": (), "root": "", "static": "", "release": "", "proof_of": proof_of})
    drawn = drawing.page(
        "failed.html", {"title": HOSTILE, "why": HOSTILE, "hint": HOSTILE, "status": 1, "visitor": None}
    )
    assert "<b>" not in drawn
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn
    assert drawn.count("&lt;/script&gt;&lt;b&gt;\\u001b[31m&#34;\\u202e") == 4


def test_json_ends_no_script_and_lines_stay_lines() -> None:
    assert "<" not in data({"a": HOSTILE})
    assert data("\u2028") == '"\\u2028"'
    assert lines("a\n<b>\x1b") == "a\n&lt;b&gt;\\u001b"
    assert time_of(None) == "–"
    assert time_of(0.0).startswith('<time datetime="1970-01-01T00:00:00+00:00"')


def test_no_template_says_that_something_is_safe_and_none_has_a_script_or_style_of_its_own() -> None:
    for path in TEMPLATES.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text), path
        for script in re.findall(r"<script[^>]*>", text):
            assert "src=" in script or "application/json" in script, (path, script)


def test_nothing_is_asked_of_another_host() -> None:
    for path in [*TEMPLATES.rglob("*.html"), *STATIC.iterdir()]:
        found = set(re.findall(r"https?://[^\s\"'`)]+", path.read_text())) - {"http://www.w3.org/2000/svg"}
        assert not {each for each in found if "example" not in each}, path
    assert "unsafe" not in SAFE_HEADERS["content-security-policy"]
