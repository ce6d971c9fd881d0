"""What a user shows to a registry, from where they keep it: Enroot's `.credentials`, Docker's and Podman's files.

Read by the process of the user's own. Helpers that Docker's file names are run as Docker runs them; commands in
Enroot's file (`$(...)`) are not run.
Invariant: no secret is in a message, an argument list or a file of ours.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_BYTES = 1 << 20
_HELPER = re.compile(r"[A-Za-z0-9._-]+")
_HELPER_S = 30.0
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io", "auth.docker.io")


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    secret: str
    source: str
    """The file or helper they came from."""
    is_token: bool = False
    """`secret` is exchanged for tokens, and is no password."""

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, from {self.source!r})"

    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def find(hosts: Sequence[str], user: str = "") -> Credentials | None:
    """The first that are kept for one of these hosts; `user`: whose are wanted."""
    for credentials in (*_of_enroot(hosts), *_of_files(hosts)):
        if not user or credentials.user == user:
            return credentials
    return None


# --- Enroot ------------------------------------------------------------------------------------------------


def enroot_file() -> str:
    folder = os.environ.get("ENROOT_CONFIG_PATH") or os.path.join(_config_home(), "enroot")
    return os.path.join(folder, ".credentials")


def _of_enroot(hosts: Sequence[str]) -> Iterator[Credentials]:
    """Entries `machine HOST login USER password SECRET`, in netrc's form, over one or more lines."""
    path = enroot_file()
    words = [word for line in _read(path).splitlines() if not line.lstrip().startswith("#") for word in line.split(" ")]
    words = [word.strip() for word in words if word.strip()]
    entry: dict[str, str] = {}
    for key, value in [*zip(words[::2], words[1::2]), ("machine", "")]:
        if key == "machine" and entry:
            is_wanted = entry.get("machine") in hosts
            if is_wanted and entry.get("password") and not entry["password"].startswith("$("):
                yield Credentials(entry.get("login", ""), entry["password"], path)
            entry = {}
        entry[key] = value


# --- Docker and Podman -------------------------------------------------------------------------------------


def _of_files(hosts: Sequence[str]) -> Iterator[Credentials]:
    folder = os.environ.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")
    paths = [os.path.join(folder, "config.json")]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        paths.append(os.path.join(runtime, "containers", "auth.json"))
    paths.append(os.path.join(_config_home(), "containers", "auth.json"))
    for path in paths:
        try:
            document = json.loads(_read(path) or "{}")
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            for host in hosts:
                yield from _of_document(document, host, path)


def _of_document(document: dict[str, Any], host: str, path: str) -> Iterator[Credentials]:
    keys = _HUB_KEYS if host in _HUB_KEYS else (host, f"https://{host}", f"http://{host}", f"https://{host}/v2/")
    helpers = document.get("credHelpers") if isinstance(document.get("credHelpers"), dict) else {}
    auths = document.get("auths") if isinstance(document.get("auths"), dict) else {}
    assert isinstance(helpers, dict)
    assert isinstance(auths, dict)
    for key in keys:
        helper = helpers.get(key) or (document.get("credsStore") if key in auths else None)
        if isinstance(helper, str) and _HELPER.fullmatch(helper) and (found := _of_helper(helper, key)) is not None:
            yield found
    for key in keys:
        entry = auths.get(key)
        if isinstance(entry, dict) and (found := _of_entry(entry, path)) is not None:
            yield found


def _of_entry(entry: dict[str, Any], path: str) -> Credentials | None:
    try:
        user, _, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
    except (ValueError, binascii.Error):
        return None
    user, password = user or str(entry.get("username") or ""), password or str(entry.get("password") or "")
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return Credentials(user, token, path, is_token=True)
    return Credentials(user, password.rstrip("\0"), path) if password else None


def _of_helper(helper: str, host: str) -> Credentials | None:
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run([program, "get"], input=host.encode(), capture_output=True, timeout=_HELPER_S, check=True)
        told = json.loads(done.stdout[:_MOST_BYTES])
        user, secret = str(told["Username"]), str(told["Secret"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None
    return Credentials(user, secret, program, is_token=user == "<token>") if secret else None


def _config_home() -> str:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return given if given.startswith("/") else os.path.join(os.path.expanduser("~"), ".config")


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
