"""The environment a fresh login would have: what `--export=NONE`, `--export=NAME,...` and `--get-user-env` start from.

Slurm asks the node for it when the job starts; here it is read where the job is submitted, with the submitter's own
login shell, so that neither the daemon nor an agent ever runs a user's profile on another's behalf. Called by sbatch,
only for jobs that want it: a login shell may take long.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from bireme.commands.voice import Voice
from bireme.slurm.options.job import JobRequest

_PATIENCE_S = 8.0
_MARK = "--the environment follows--"
_OF_THE_SHELL_ITSELF = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "DISPLAY", "ENVIRONMENT", "HOSTNAME"})
_FIRST_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
_FIRST_PATH_OF_ROOT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def with_login_environment(requests: Sequence[JobRequest], voice: Voice) -> tuple[JobRequest, ...]:
    """The requests, each that asked for it with the login environment beneath its own."""
    if not any(request.spec.get_user_env for request in requests):
        return tuple(requests)
    login = login_environment()
    if login is None:
        voice.error("Unable to get user's local environment, running only with passed environment")
        return tuple(requests)
    return tuple(
        replace(request, environment={**login, "SLURM_GET_USER_ENV": "1", **request.environment})
        if request.spec.get_user_env
        else request
        for request in requests
    )


def login_environment(patience_s: float = _PATIENCE_S) -> dict[str, str] | None:
    """None: the shell did not answer in time, or not at all."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return None
    shell = entry.pw_shell or "/bin/sh"
    first = {
        "HOME": entry.pw_dir,
        "LOGNAME": entry.pw_name,
        "PATH": _FIRST_PATH if entry.pw_uid else _FIRST_PATH_OF_ROOT,
        "SHELL": shell,
        "USER": entry.pw_name,
    }
    command = [shell, "-l", "-c", f"echo '{_MARK}'; exec env -0"]
    try:
        done = subprocess.run(
            command,
            env=first,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=patience_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return _parse(done.stdout)


def _parse(printed: bytes) -> dict[str, str]:
    """What follows the mark: profiles may print what they like before it."""
    listed = printed.rpartition(f"{_MARK}\n".encode())[2].decode("utf-8", "surrogateescape")
    pairs = (entry.partition("=") for entry in listed.split("\0"))
    return {name: value for name, equals, value in pairs if equals and name and name not in _OF_THE_SHELL_ITSELF}
