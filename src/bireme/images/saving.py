"""Writes a root to a `.sqsh` that Enroot, Pyxis and Bireme read: `--container-save`. mksquashfs does it, as the user.

Run by the agent as the user's process, `python -I -m bireme.images.saving`: one `Saving` on standard input, and the
sentence that says why not on standard output, or nothing. What the image says of how to run it goes along in the files
that `sources.stated` reads.
Invariant: at the target is what was there before, or all of the new one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory

import msgspec

from bireme.bound_process import bind
from bireme.images.messages import Image
from bireme.images.refusing import RefusedError, in_words
from bireme.images.sources.stated import ENVIRONMENT, RC
from bireme.images.targets import PROGRAM, why_not_at

_MOST_REQUEST = 4 << 20
_MEMORY, _CPU_S, _DESCRIPTORS = 16 << 30, 6 * 3600, 512
_PACKING = ("-comp", "zstd", "-Xcompression-level", "3")
"""As small as gzip makes it, in a quarter of the time."""
_MESSAGE_BYTES = 300


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """`root`: the folder, or `/proc/PID/root` of what runs in it. `without`: places in it, from the root on, of which
    the content stays out (what is mounted there)."""

    root: str
    target: str
    image: Image
    without: tuple[str, ...] = ()


def save(saving: Saving) -> None:
    """Raises RefusedError, OSError."""
    if why := why_not_at(saving.target):
        raise RefusedError(why)
    part = f"{saving.target}.{os.getpid()}.part"
    try:
        with TemporaryDirectory() as made:
            words = [PROGRAM, f"{saving.root}/", part, "-noappend", "-all-root", "-no-progress", "-quiet", *_PACKING]
            words += ["-exit-on-error", *_stated(saving, made), "-wildcards", "-e", *_left_out(saving)]
            quiet = subprocess.DEVNULL
            done = subprocess.run(words, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["mksquashfs was killed"]
            raise RefusedError(f"{saving.target} could not be written: {lines[-1][:_MESSAGE_BYTES]}")
        os.rename(part, saving.target)
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _stated(saving: Saving, folder: str) -> Iterator[str]:
    """Files that say how to run it, in place of those that the root may have."""
    for name, lines in ((ENVIRONMENT, _environment(saving.image)), (RC, _rc(saving.image))):
        source = os.path.join(folder, os.path.basename(name))
        with open(source, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{line}\n" for line in lines)
        # mksquashfs has a shell run this: a temporary folder's name, and a word of ours.
        yield from ("-p", f"{name} f {'755' if name == RC else '644'} 0 0 cat {shlex.quote(source)}")


def _environment(image: Image) -> Sequence[str]:
    return [f"{name}={value}" for name, value in image.environment.items() if "\n" not in value]


def _rc(image: Image) -> Iterator[str]:
    yield "#!/bin/sh"
    workdir = image.workdir or "/"
    if not set(workdir) & set('"$`\\\n'):
        yield f'cd "{workdir}" && unset OLDPWD || exit 1'
    entrypoint = "" if image.entrypoint == ("/bin/sh", f"/{RC}") else shlex.join(image.entrypoint)
    yield "if [ $# -gt 0 ]; then"
    yield f'    exec {entrypoint} "$@"'
    yield "else"
    yield f"    exec {' '.join(part for part in (entrypoint, shlex.join(image.command or ('/bin/sh',))) if part)}"
    yield "fi"


def _left_out(saving: Saving) -> Iterator[str]:
    yield from (ENVIRONMENT, RC)
    for place in saving.without:
        inside = "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in place.strip("/"))
        yield from (f"{inside}/*", f"{inside}/.*")


def main() -> int:
    bind(memory_bytes=_MEMORY, cpu_s=_CPU_S, descriptors=_DESCRIPTORS)
    try:
        saving = msgspec.json.decode(sys.stdin.buffer.read(_MOST_REQUEST), type=Saving)
        save(saving)
    except ValueError as error:
        print(f"the request cannot be read: {error}")
    except RefusedError as error:
        print(error)
    except OSError as error:
        print(in_words(error, f"{saving.target} cannot be written"))
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
