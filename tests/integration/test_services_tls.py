"""Services over HTTPS on a real cluster: by the settings, with certificates that are made on the spot and renewed."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.serving import listening_router, ready, router, shown, steady_load

SERVER = """#!{python} -IS
import base64, hashlib, http.server, os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/stream":
            return self.stream()
        if self.headers.get("Upgrade") == "websocket":
            return self.echo()
        said = self.headers.get("X-Forwarded-Proto", "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(20):
            event = b"data: %d\\n\\n" % number
            self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\\r\\n\\r\\n")
    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        first, size = self.rfile.read(2)
        mask, body = self.rfile.read(4), self.rfile.read(size & 127)
        self.wfile.write(bytes((first, len(body))) + bytes(each ^ mask[at % 4] for at, each in enumerate(body)))
        self.close_connection = True
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
"""


def make_certificate(folder: Path, name: str = "cert", key: str = "key") -> None:
    """For localhost; writes to files of their own, then puts them in place, as renewing programs do."""
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost"]
    words += ["-keyout", str(folder / "key.new"), "-out", str(folder / "cert.new")]
    subprocess.run(words, check=True, capture_output=True)
    (folder / "key.new").replace(folder / f"{key}.pem")
    (folder / "cert.new").replace(folder / f"{name}.pem")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(files: Path) -> Iterator[Cluster]:
    made = Cluster(virtual_nodes(1, 0, cpus=2))
    made.variables |= {
        "BIREME_ROUTER_ADDRESS": "127.0.0.1:0",
        "BIREME_ROUTER_WORKERS": "1",
        "BIREME_ROUTER_TLS_CERTIFICATE": str(files / "cert.pem"),
        "BIREME_ROUTER_TLS_KEY": str(files / "key.pem"),
    }
    with made.running() as running:
        script = running.script(SERVER.format(python=running.python), "chat.py")
        running.bireme("serve", str(script), "--name", "chat", "--cpus-per-task=1", "--mem=100M", "--replicas=1")
        ready(running, 1)
        listening_router(running)
        yield running


@contextmanager
def connected(cluster: Cluster, trusted: Path) -> Iterator[ssl.SSLSocket]:
    """To the address that is shown, with a certificate that this one vouches for."""
    port = urlsplit(shown(cluster)["url"]).port
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection(("127.0.0.1", port or 0), timeout=120.0) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        yield secure


def shown_certificate(cluster: Cluster) -> bytes:
    """The one that a new connection gets to see."""
    parts = urlsplit(router(cluster)["url"])
    text = ssl.get_server_certificate((parts.hostname or "", parts.port or 0), timeout=120.0)
    return ssl.PEM_cert_to_DER_cert(text)


def certificate_in(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def ask(secure: ssl.SSLSocket, path: str, *fields: str) -> None:
    secure.sendall("\r\n".join([f"GET /chat{path} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode())


def read_until(secure: ssl.SSLSocket, end: bytes) -> bytes:
    """All that comes up to these bytes, in however many pieces."""
    said = b""
    while not said.endswith(end):
        piece = secure.recv(65536)
        assert piece, f"it ended after {said!r}"
        said += piece
    return said


def test_the_address_is_https_and_what_is_sent_streams(cluster: Cluster, files: Path) -> None:
    url = shown(cluster)["url"]
    assert url.startswith("https://127.0.0.1:")
    assert url in cluster.bireme("services").stdout
    with connected(cluster, files / "cert.pem") as secure:
        ask(secure, "/")
        assert read_until(secure, b"https")
        ask(secure, "/stream")
        said = read_until(secure, b"0\r\n\r\n")
        assert [b"data: %d\n" % number in said for number in range(20)] == [True] * 20
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=120.0) as plain:
        plain.sendall(b"GET /chat/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):
            assert not plain.recv(65536).startswith(b"HTTP/1.1 200"), "no TLS, no answer"


def test_a_websocket(cluster: Cluster, files: Path) -> None:
    key = base64.b64encode(b"0123456789abcdef").decode()
    with connected(cluster, files / "cert.pem") as secure:
        upgrade = (
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
        )
        ask(secure, "/socket", *upgrade)
        reader = secure.makefile("rb")
        head = b"".join(iter(reader.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 101")
        accept = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        assert base64.b64encode(accept) in head
        secure.sendall(b"\x81\x85abcd" + bytes(each ^ b"abcda"[at] for at, each in enumerate(b"hello")))
        assert reader.read(7) == b"\x81\x05hello"


def test_a_renewed_certificate_is_taken_when_the_settings_are_read_again(cluster: Cluster, files: Path) -> None:
    before = router(cluster)
    old = shown_certificate(cluster)
    with steady_load(shown(cluster)["url"], kept=False):
        make_certificate(files)
        assert shown_certificate(cluster) == old != certificate_in(files / "cert.pem")
        cluster.run("scontrol", "reconfigure")
        cluster.until(lambda: shown_certificate(cluster) == certificate_in(files / "cert.pem"), 120.0)
    assert router(cluster) == before
    make_certificate(files)
    cluster.down()
    cluster.up_again()
    cluster.until(lambda: router(cluster) == before, 120.0)
    cluster.until(lambda: shown_certificate(cluster) == certificate_in(files / "cert.pem"), 120.0)


def test_a_certificate_that_is_none_is_refused_and_the_one_before_stays(cluster: Cluster, files: Path) -> None:
    good, url = shown_certificate(cluster), router(cluster)["url"]
    right = (files / "key.pem").read_bytes()
    make_certificate(files, name="other")  # and the key of that one, which is not this one's
    with steady_load(shown(cluster)["url"], kept=False):
        cluster.run("scontrol", "reconfigure")
        cluster.until(lambda: "is not the key of the certificate" in router(cluster).get("warning", ""), 120.0)
        assert f"still listens at {url}" in cluster.bireme("doctor", check=False).stdout
        (files / "key.pem").write_bytes(b"no key")
        cluster.until(lambda: "are no certificate and its key in PEM" in router(cluster).get("warning", ""), 120.0)
        assert shown_certificate(cluster) == good
    (files / "key.pem").write_bytes(right)
    cluster.until(lambda: "warning" not in router(cluster), 120.0)
