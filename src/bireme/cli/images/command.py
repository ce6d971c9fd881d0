"""bireme images: the container images that this user has on this machine; pulls some, and removes some.

What a job names with --container-image is pulled by itself; this looks at what is there, has it there beforehand, and
makes room. It works in the user's own folder of the cache, with the user's rights; the daemon says the settings.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable
from bireme.commands.voice import CommandFailure, run_command
from bireme.daemon.paths import Paths
from bireme.daemon.settings import SettingsError, as_texts, load
from bireme.images.bar import Bar
from bireme.images.cache.listing import Listed, blob_bytes, listed, prune, remove_images
from bireme.images.cache.store import Cache
from bireme.images.fetching import fetch
from bireme.images.messages import Policy, Progress, Wanted, folder_of
from bireme.images.policy import policy_from
from bireme.images.references import LocalPath, parse_reference
from bireme.images.refusing import RefusedError, in_words
from bireme.images.unpacking.bounds import shown
from bireme.slurm.formats.visible import visible_values
from bireme.slurm.times import format_elapsed

_DAY_S = 86_400
_DESCRIPTION = """\
Your container images on this machine.

  list              what is there (also without a word)
  pull IMAGE ...    have them there before a job asks
  rm IMAGE ...      remove these, by name or digest
  prune             remove all that nothing runs in (--older-than DAYS: what was not used since)
"""


def main(argv: list[str]) -> int:
    return run_command("bireme images", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    try:
        policy = _policy()
        code: int = given.run(policy, Cache(folder_of(policy, os.geteuid())), given)
    except RefusedError as error:
        raise CommandFailure(str(error)) from error
    except OSError as error:
        raise CommandFailure(str(in_words(error, "your images cannot be reached"))) from error
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(
        prog="bireme images",
        usage="bireme images [--json] [list|pull|rm|prune]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_list)
    verbs = parser.add_subparsers(prog=parser.prog, metavar="VERB", help=argparse.SUPPRESS)
    there = verbs.add_parser("list", description="Your images on this machine, what was used last first.")
    pull = verbs.add_parser("pull", description="Have images on this machine before a job asks for them.")
    gone = verbs.add_parser("rm", description="Remove images. What runs stays.")
    room = verbs.add_parser("prune", description="Remove what nothing runs in: images, and their layers as they came.")
    for verb, run in ((there, _list), (pull, _pull), (gone, _remove), (room, _prune)):
        verb.set_defaults(run=run)
    for verb in (pull, gone):
        verb.add_argument("images", nargs="+", metavar="IMAGE")
    room.add_argument("--older-than", type=_days, default=0, metavar="DAYS", help="only what was not used since")
    for each in (parser, there, pull, gone, room):
        each.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="for programs")
    return parser


def _days(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return int(text)


def _policy() -> Policy:
    """The daemon's settings; while it is away those of its files."""
    home = Paths().home
    try:
        with make_transport() as transport:
            settings = transport.get("/v1/config")["bireme"]
    except (ApiError, BiremeUnavailable):
        try:
            settings = as_texts(load(home))
        except SettingsError as error:
            raise CommandFailure(str(error)) from error
    try:
        return policy_from(settings, home)
    except ValueError as error:
        raise CommandFailure(str(error)) from error


def _is_json(given: argparse.Namespace) -> bool:
    return bool(getattr(given, "json", False))


# --- list --------------------------------------------------------------------------------------------------


def _list(policy: Policy, cache: Cache, given: argparse.Namespace) -> int:
    images, besides = list(listed(cache)), blob_bytes(cache)
    if _is_json(given):
        told = {"folder": cache.folder, "images": [_record(each) for each in images], "layer_bytes": besides}
        print(json.dumps(told | {"most_bytes": policy.most_bytes}))
        return 0
    rows = [("IMAGE", "SIZE", "USED", "DIGEST"), *map(_row, images)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, *others, digest in rows if images else ():
        print("  ".join((name.ljust(widths[0]), *(o.rjust(w) for o, w in zip(others, widths[1:])), digest)).rstrip())
    held = besides + sum(each.size for each in images)
    print(f"{shown(held)} of {shown(policy.most_bytes)} in {cache.folder}, {shown(besides)} of it layers as they came")
    return 0


def _record(image: Listed) -> dict[str, Any]:
    return {name: value for name, value in asdict(image).items() if name != "key"}


def _row(image: Listed) -> tuple[str, str, str, str]:
    used = "runs" if image.in_use else f"{format_elapsed(max(0, int(time.time() - image.used_at)))} ago"
    (names,) = visible_values([", ".join(image.names) or "(its name is another's now)"])
    return names, shown(image.size), used, image.digest.partition(":")[2][:12]


# --- pull --------------------------------------------------------------------------------------------------


def _pull(policy: Policy, _cache: Cache, given: argparse.Namespace) -> int:
    for name in given.images:
        bar = Bar(name)
        try:
            done = fetch(Wanted(image=name, folder=os.getcwd(), policy=policy), partial(_draw, bar))
        finally:
            bar.clear()
        done.settle()
        image = done.image
        if image.notice:
            print(f"bireme images: {image.notice}", file=sys.stderr)
        if _is_json(given):
            print(json.dumps({"name": image.name, "digest": image.digest, "root": image.root}))
        else:
            print(f"{image.name} is here" + (f" ({image.digest})" if image.digest else ""))
    return 0


def _draw(bar: Bar, progress: Progress) -> None:
    bar.show(progress.doing, progress.done, progress.of)


# --- rm and prune ------------------------------------------------------------------------------------------


def _remove(_policy: Policy, cache: Cache, given: argparse.Namespace) -> int:
    there = list(listed(cache))
    wanted = {name: [each for each in there if each.answers_to({name, _whole(name)})] for name in given.images}
    if missing := [name for name, found in wanted.items() if not found]:
        raise CommandFailure(*(f"there is no image {name!r} here; see `bireme images`" for name in missing))
    gone = remove_images(cache, {each.key: each for found in wanted.values() for each in found}.values())
    return _tell_removed(given, [each for each in there if each.key in gone], gone)


def _tell_removed(given: argparse.Namespace, images: list[Listed], gone: Any) -> int:
    if _is_json(given):
        print(json.dumps({"removed": [_record(each) for each in images if gone[each.key]]}))
    else:
        for each in images:
            if gone[each.key]:
                print(f"removed {', '.join(each.names)} ({shown(each.size)})")
    if used := [each for each in images if not gone[each.key]]:
        raise CommandFailure(*_in_use(used))
    return 0


def _in_use(images: list[Listed]) -> Iterator[str]:
    for each in images:
        yield f"{', '.join(each.names)} stays: something runs in it; remove it when its jobs have ended"


def _whole(name: str) -> str:
    """As the cache knows it."""
    try:
        named = parse_reference(name)
    except RefusedError:
        return name
    return named.absolute(os.getcwd()) if isinstance(named, LocalPath) else named.name


def _prune(_policy: Policy, cache: Cache, given: argparse.Namespace) -> int:
    before = time.time() - given.older_than * _DAY_S if given.older_than else float("inf")
    gone, kept = prune(cache, before)
    images = sum(not item.is_blob for item in gone)
    freed = sum(item.size for item in gone)
    if _is_json(given):
        print(json.dumps({"images": images, "bytes": freed, "in_use": len(kept)}))
    else:
        more = f"; {len(kept)} stay, in which something runs" if kept else ""
        print(f"removed {images} images and {len(gone) - images} layers, {shown(freed)}{more}")
    return 0
