"""Images of a real registry: pulled, resumed, shared, and refused; with a password, and behind a proxy that is bad."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support import registry as registries
from tests.support.images import INDEX, Made, Put, index_of, push_manifest, tar_of
from tests.support.registry import PASSWORD, USER, BadProxy, Registry, bad_proxy, registry

from bireme.images.cache.holding import hold
from bireme.images.cache.listing import listed
from bireme.images.cache.store import Cache
from bireme.images.fetching import fetch
from bireme.images.messages import Image, Policy, Progress, Wanted, decode_told, encode, folder_of
from bireme.images.refusing import RefusedError
from bireme.images.registry import download

pytestmark = pytest.mark.skipif(bool(registries.missing()), reason=registries.missing())

LAYERS = (tar_of(Put("bin/a", os.urandom(600_000))), tar_of(Put("bin/b", os.urandom(400_000))))


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def locked_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("locked"), password=True) as running:
        yield running


@pytest.fixture
def proxy(open_registry: Registry) -> Iterator[BadProxy]:
    with bad_proxy(open_registry.host) as running:
        yield running


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's credentials and no proxies; no pauses."""
    for name in (
        "DOCKER_CONFIG",
        "ENROOT_CONFIG_PATH",
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "http_proxy",
        "HTTP_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(download, "_PAUSES_S", (0.0, 0.0, 0.0, 0.0))


def policy_for(tmp_path: Path, host: str, **more: object) -> Policy:
    return Policy(cache=str(tmp_path / "cache"), insecure=(host,), fresh_s=0, **more)  # type: ignore[arg-type]


def pulled(image: str, policy: Policy, heard: list[Progress] | None = None) -> Image:
    done = fetch(Wanted(image=image, policy=policy), (heard if heard is not None else []).append)
    done.settle()
    return done.image


def blobs(made: Made) -> set[str]:
    return {
        f"/v2/{NAME}/blobs/{digest}" for digest in (json.loads(made.manifest)["layers"][i]["digest"] for i in (0, 1))
    }


NAME = "team/made"


def put(open_registry: Registry, **run: object) -> Made:
    made = Made(LAYERS, Env=[f"AT={time.time_ns()}"], **run)
    made.push(open_registry.host, NAME)
    return made


# --- well ---------------------------------------------------------------------------------------------------


def test_an_image_is_pulled_once_and_its_tag_looked_up_each_time(
    open_registry: Registry, proxy: BadProxy, tmp_path: Path
) -> None:
    made = put(open_registry)
    heard: list[Progress] = []
    policy = policy_for(tmp_path, proxy.host)
    image = pulled(f"{proxy.host}#{NAME}:1", policy, heard)
    assert (Path(image.root) / "bin/b").stat().st_size == 400_000
    assert (image.digest, image.name) == (made.digest, f"{proxy.host}/{NAME}:1")
    assert {each.doing for each in heard} <= {"pulling", "unpacking"}
    assert pulled(f"{proxy.host}/{NAME}:1", policy).root == image.root
    assert pulled(f"{proxy.host}#{NAME}@{made.digest}", policy).root == image.root
    assert {proxy.asked[blob] for blob in blobs(made)} == {1}
    assert proxy.asked[f"/v2/{NAME}/manifests/1"] == 2
    newer = put(open_registry)
    assert pulled(f"{proxy.host}#{NAME}:1", policy).digest == newer.digest
    assert {proxy.asked[blob] for blob in blobs(made)} == {1}, "the layers are the same, and are here"
    names = {each.digest: each.names for each in listed(Cache(folder_of(policy, os.geteuid())))}
    assert names == {
        newer.digest: (f"{proxy.host}/{NAME}:1",),
        made.digest: (f"{proxy.host}/{NAME}@{made.digest}",),
    }


def test_the_manifest_for_this_machine_is_chosen(open_registry: Registry, tmp_path: Path) -> None:
    own, other = put(open_registry), Made(LAYERS, architecture="s390x")
    other.push(open_registry.host, NAME, "other")
    push_manifest(open_registry.host, NAME, "both", INDEX, index_of(other, own))
    push_manifest(open_registry.host, NAME, "foreign", INDEX, index_of(other))
    policy = policy_for(tmp_path, open_registry.host)
    assert pulled(f"{open_registry.host}#{NAME}:both", policy).digest == own.digest
    with pytest.raises(RefusedError, match=r"not made for this machine's processors .*; it is there for: s390x"):
        pulled(f"{open_registry.host}#{NAME}:foreign", policy)
    with pytest.raises(RefusedError, match=r"is made for other processors \(s390x\)"):
        pulled(f"{open_registry.host}#{NAME}:other", policy)


def test_ten_processes_that_ask_pull_once(open_registry: Registry, proxy: BadProxy, tmp_path: Path) -> None:
    made = put(open_registry)
    first, gate = threading.Event(), threading.Event()

    def slow(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
        if "/blobs/" in handler.path and not gate.is_set():
            first.set()
            gate.wait(60)
        return False

    proxy.spoil = slow
    wanted = encode(Wanted(image=f"{proxy.host}#{NAME}:1", policy=policy_for(tmp_path, proxy.host, parallel=1)))
    words = [sys.executable, "-m", "bireme.images"]
    askers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(10)]
    for asker in askers:
        assert asker.stdin is not None
        asker.stdin.write(wanted)
        asker.stdin.close()
    assert first.wait(60)
    assert _waiting(askers, 9), "one pulls, the others say that they wait"
    gate.set()
    told = []
    for asker in askers:
        assert asker.stdout is not None
        told.append(decode_told(asker.stdout.read().splitlines()[-1]))
        assert asker.wait() == 0
    assert len({each.root for each in told if isinstance(each, Image)}) == 1
    assert {proxy.asked[blob] for blob in blobs(made)} == {1}


def _waiting(askers: Sequence[subprocess.Popen[bytes]], number: int) -> bool:
    """Whether so many say that they wait; the one that pulls says nothing before its first byte."""
    silent = {asker.stdout: asker for asker in askers}
    while len(silent) > len(askers) - number:
        for stream in select.select(list(silent), [], [], 60)[0]:
            if b'"waiting"' not in stream.readline():
                return False
            del silent[stream]
    return True


# --- not so well --------------------------------------------------------------------------------------------


def test_a_pull_that_is_cut_off_goes_on_where_it_was(open_registry: Registry, proxy: BadProxy, tmp_path: Path) -> None:
    put(open_registry)
    cuts = iter([200_000, 100_000, 50_000])

    def cut(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
        if "/blobs/" not in handler.path or int(answer.headers["Content-Length"]) < 100_000:
            return False
        if (most := next(cuts, None)) is None:
            return False
        handler.head(answer)
        handler.wfile.write(answer.read()[:most])
        return True

    proxy.spoil = cut
    image = pulled(f"{proxy.host}#{NAME}:1", policy_for(tmp_path, proxy.host, parallel=1))
    assert (Path(image.root) / "bin/a").stat().st_size == 600_000
    assert proxy.ranges == ["bytes=200000-", "bytes=300000-", "bytes=350000-"]


def test_half_a_pull_of_a_process_that_was_killed_is_gone_on_with(
    open_registry: Registry, proxy: BadProxy, tmp_path: Path
) -> None:
    put(open_registry)
    half = threading.Event()

    def stall(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
        if "/blobs/" in handler.path and int(answer.headers["Content-Length"]) > 500_000 and not half.is_set():
            handler.head(answer)
            handler.wfile.write(answer.read()[:250_000])
            handler.wfile.flush()
            half.set()
            proxy.over.wait(60)
            return True
        return False

    proxy.spoil = stall
    policy = policy_for(tmp_path, proxy.host)
    first = subprocess.Popen([sys.executable, "-m", "bireme.images"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert first.stdin is not None
    first.stdin.write(encode(Wanted(image=f"{proxy.host}#{NAME}:1", policy=policy)))
    first.stdin.close()
    folder = Path(folder_of(policy, os.geteuid()))
    while not any(part.stat().st_size == 250_000 for part in folder.glob("blobs/sha256/*.part")):
        assert first.poll() is None
    first.kill()
    first.wait()
    assert list(folder.glob("roots/*.new"))
    image = pulled(f"{proxy.host}#{NAME}:1", policy)
    assert "bytes=250000-" in proxy.ranges
    assert [path.name for path in folder.glob("roots/*")] == [Path(image.lock).parent.name]
    assert list(folder.glob("blobs/sha256/*.part")) == []


def lying(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
    if "/blobs/" not in handler.path or answer.status != 200:
        return False
    data = bytearray(answer.read())
    data[len(data) // 2] ^= 1
    handler.head(answer)
    handler.wfile.write(data)
    return True


def lying_manifest(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
    if "/manifests/" not in handler.path:
        return False
    data = answer.read().replace(b'"size": ', b'"size":  ')[: int(answer.headers["Content-Length"])]
    handler.head(answer)
    handler.wfile.write(data)
    return True


def endless(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
    handler.send_response_only(200)
    handler.end_headers()
    while not handler.proxy.over.is_set():
        handler.wfile.write(bytes(1 << 20))
    return True


def silent(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
    handler.proxy.over.wait(60)
    return True


def silent_in_a_layer(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
    if "/blobs/" not in handler.path:
        return False
    handler.head(answer)
    handler.wfile.write(answer.read()[:10])
    handler.wfile.flush()
    return silent(handler, answer)


def dripping_head(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
    while not handler.proxy.over.wait(0.2):
        handler.wfile.write(b"H")
    return True


def says(status: int, **headers: str) -> registries.Spoil:
    def say(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
        handler.send_response_only(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        return True

    return say


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lying, "sends something else for .* than its digest says: pull it again, or tell its keeper"),
        (lying_manifest, "sends something else for .* than its digest says"),
        (endless, "answers with more than .* bytes: this is no registry"),
        (silent, "does not answer within 1 s: try again later, or use a mirror"),
        (silent_in_a_layer, "stopped sending: try again later, or use a mirror"),
        (dripping_head, "broke|does not answer"),
        (says(404), "the image is not there; is name and tag spelled right"),
        (says(500), "is too busy for .* .500.: try again later, or use a mirror"),
        (says(418), r"does not hand out .* \(HTTP 418\): is it a registry"),
        (says(302, Location="file:///etc/passwd"), "which is no web address: this is no registry"),
        (says(302, Location="http://x:99999/"), "which is no web address: this is no registry"),
        (says(302, Location="http://["), "which is no web address: this is no registry"),
        (says(302, Location="/v2/"), "sends us in a circle: this is no registry"),
        (says(401), "does not say what it wants to be shown"),
        (says(401, WWW_Authenticate='Bearer realm="ftp://x/"'), "which is no web address"),
        (says(401, WWW_Authenticate='Basic realm="x"'), "is not there, or needs a password: put `machine 127.0.0.1"),
    ],
)
def test_a_bad_registry_costs_a_sentence_and_leaves_nothing(
    open_registry: Registry, proxy: BadProxy, tmp_path: Path, spoil: registries.Spoil, sentence: str
) -> None:
    put(open_registry)
    proxy.spoil = spoil
    policy = policy_for(tmp_path, proxy.host, idle_s=1)
    with pytest.raises(RefusedError, match=sentence):
        pulled(f"{proxy.host}#{NAME}:1", policy)
    assert os.listdir(Path(folder_of(policy, os.geteuid())) / "roots") == []


def test_nobody_there_and_no_such_image(open_registry: Registry, tmp_path: Path) -> None:
    policy = policy_for(tmp_path, open_registry.host)
    for image, sentence in (
        (f"{open_registry.host}#none", "the image is not there; is name and tag spelled right"),
        ("127.0.0.1:1#a", "no registry answers at 127.0.0.1:1: is it up, and is its port right"),
        ("no-such-host.invalid#a", "is not known to this machine's name service: is it spelled right"),
    ):
        with pytest.raises(RefusedError, match=sentence):
            pulled(image, policy)
    tls = Policy(cache=policy.cache)
    with pytest.raises(RefusedError, match=r"does not speak TLS: if that is meant, name it in .* images\.insecure"):
        pulled(f"{open_registry.host}#{NAME}:1", tls)


def test_what_is_here_is_run_while_its_registry_is_away(
    open_registry: Registry, proxy: BadProxy, tmp_path: Path
) -> None:
    put(open_registry)
    policy = policy_for(tmp_path, proxy.host)
    image = pulled(f"{proxy.host}#{NAME}:1", policy)
    assert image.notice == ""
    proxy.spoil = says(503)
    away = pulled(f"{proxy.host}#{NAME}:1", policy)
    assert away.root == image.root
    assert "is run as it was on" in away.notice
    proxy.spoil = says(404)
    with pytest.raises(RefusedError, match="the image is not there"):
        pulled(f"{proxy.host}#{NAME}:1", policy)


def test_a_mirror_is_asked_first_and_passed_over_when_it_fails(
    open_registry: Registry, proxy: BadProxy, tmp_path: Path
) -> None:
    made = put(open_registry)
    policy = Policy(
        cache=str(tmp_path / "cache"),
        fresh_s=0,
        insecure=(open_registry.host, proxy.host),
        mirrors=(f"{open_registry.host}={proxy.host}",),
    )
    pulled(f"{open_registry.host}#{NAME}:1", policy)
    assert {proxy.asked[blob] for blob in blobs(made)} == {1}
    proxy.spoil = lying
    again = Policy(cache=str(tmp_path / "again"), fresh_s=0, insecure=policy.insecure, mirrors=policy.mirrors)
    assert pulled(f"{open_registry.host}#{NAME}:1", again).digest == made.digest


# --- passwords ----------------------------------------------------------------------------------------------


def docker_file(folder: Path, host: str, password: str = PASSWORD) -> None:
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / ".docker").mkdir()
    (folder / ".docker/config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def enroot_file(folder: Path, host: str, password: str = PASSWORD) -> None:
    (folder / ".config/enroot").mkdir(parents=True)
    lines = f"# mine\nmachine elsewhere login x password y\nmachine {host} login {USER}\n  password {password}\n"
    (folder / ".config/enroot/.credentials").write_text(lines)


def helper(folder: Path, host: str, password: str = PASSWORD) -> None:
    (folder / ".docker").mkdir()
    (folder / ".docker/config.json").write_text(json.dumps({"credHelpers": {host: "made"}}))
    told = json.dumps({"Username": USER, "Secret": password})
    (folder / "docker-credential-made").write_text(f"#!/bin/sh\nread -r host; [ $host = {host} ] && echo '{told}'\n")
    (folder / "docker-credential-made").chmod(0o755)


@pytest.mark.parametrize("write", [docker_file, enroot_file, helper])
def test_credentials_are_found_where_people_keep_them(
    locked_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    image = Made(LAYERS).push(locked_registry.host, NAME, authorization=locked_registry.authorization)
    policy = policy_for(tmp_path, locked_registry.host)
    with pytest.raises(RefusedError, match=r"needs a password: put `machine .*` into .*/enroot/.credentials, or use"):
        pulled(image, policy)
    write(tmp_path, locked_registry.host)
    assert (Path(pulled(image, policy).root) / "bin/a").exists()
    assert pulled(f"{USER}@{image}", policy).name == f"{locked_registry.host}/{NAME}:1"
    with pytest.raises(RefusedError, match="needs a password of bob"):
        pulled(f"bob@{image}", policy)


def test_a_wrong_password_is_told_by_its_place_and_not_by_its_value(locked_registry: Registry, tmp_path: Path) -> None:
    docker_file(tmp_path, locked_registry.host, "wrong-5e")
    with pytest.raises(RefusedError) as told:
        pulled(f"{locked_registry.host}#{NAME}:1", policy_for(tmp_path, locked_registry.host))
    assert f"password in {tmp_path}/.docker/config.json is wrong" in str(told.value)
    assert "wrong-5e" not in str(told.value)


def test_a_token_is_had_for_the_password_and_shown_to_the_registry_alone(
    open_registry: Registry, proxy: BadProxy, tmp_path: Path
) -> None:
    """The registry sends on to a store on another host, which must not see the token."""
    put(open_registry)
    docker_file(tmp_path, proxy.host)
    seen: list[tuple[str, str]] = []
    with bad_proxy(open_registry.host) as store:

        def gate(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
            shown = handler.headers.get("Authorization", "")
            seen.append((handler.path.partition("?")[0], shown))
            if handler.path.startswith("/token"):
                handler.send_response_only(200)
                handler.end_headers()
                handler.wfile.write(b'{"token": "t0ken"}')
                return True
            if shown != "Bearer t0ken":
                realm = f'Bearer realm="http://{proxy.host}/token",service="s",scope="repository:{NAME}:pull"'
                return says(401, WWW_Authenticate=realm)(handler, answer)
            if "/blobs/" in handler.path:
                return says(307, Location=f"http://{store.host}{handler.path}")(handler, answer)
            return False

        def note(handler: registries._Handler, answer: http.client.HTTPResponse) -> bool:
            seen.append(("store", handler.headers.get("Authorization", "")))
            return False

        proxy.spoil, store.spoil = gate, note
        pulled(f"{proxy.host}#{NAME}:1", policy_for(tmp_path, proxy.host))
    basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert ("/token", basic) in seen
    assert {shown for path, shown in seen if path == "store"} == {""}


# --- the cache ----------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_makes_way_and_never_what_runs(open_registry: Registry, tmp_path: Path) -> None:
    images = []
    for number in range(3):
        made = Made([tar_of(Put("data", os.urandom(1 << 20)))], "")
        images.append(made.push(open_registry.host, f"team/n{number}"))
    policy = policy_for(tmp_path, open_registry.host, most_bytes=7 << 19)
    first, second = pulled(images[0], policy), pulled(images[1], policy)
    held = hold(first.lock)
    assert held is not None
    os.utime(first.lock, (0, 0))  # used longest ago, and runs
    third = pulled(images[2], policy)
    assert (Path(first.root).exists(), Path(second.root).exists(), Path(third.root).exists()) == (True, False, True)
    tight = policy_for(tmp_path, open_registry.host, most_bytes=1 << 20)
    with pytest.raises(RefusedError, match=r"it has 1.0 MiB, your images may take 1.0 MiB \(images.most_gib\)"):
        pulled(images[1], tight)
    assert Path(first.root).exists(), "what runs stays"
    os.close(held)
    assert pulled(images[1], policy).root == second.root
    assert not Path(first.root).exists()


def test_what_a_crash_of_the_machine_may_have_torn_is_made_again(
    open_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(open_registry)
    policy = policy_for(tmp_path, open_registry.host)
    done = fetch(Wanted(image=f"{open_registry.host}#{NAME}:1", policy=policy), lambda _: None)
    mark = Path(done.image.root) / "mark"
    mark.touch()
    assert pulled(f"{open_registry.host}#{NAME}:1", policy).root == done.image.root
    assert mark.exists()
    monkeypatch.setattr("bireme.images.cache.store.boot_id", lambda: "another")
    pulled(f"{open_registry.host}#{NAME}:1", policy)
    assert not mark.exists(), "it was not written out when the machine went down"
    mark.touch()
    pulled(f"{open_registry.host}#{NAME}:1", policy)
    assert mark.exists()


def test_a_full_disk_is_told_before_anything_is_pulled(
    open_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(open_registry)
    monkeypatch.setattr("bireme.images.cache.eviction.free_bytes", lambda _: 1000)
    with pytest.raises(RefusedError, match=r"it needs .* and 1000 B are free in .*; make room, or name another folder"):
        pulled(f"{open_registry.host}#{NAME}:1", policy_for(tmp_path, open_registry.host))


def test_a_process_that_is_gone_leaves_no_lock(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path))
    with contextlib.suppress(ZeroDivisionError), cache.pulling("x", lambda _: None):
        raise ZeroDivisionError
    heard: list[Progress] = []
    with cache.pulling("x", heard.append):
        assert cache.is_pulled("x")
    assert heard == []
    assert not cache.is_pulled("x")
