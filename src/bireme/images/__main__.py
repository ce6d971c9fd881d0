"""`python -I -m bireme.images`: fetches one image with the rights of the user who asks, and says how that goes.

The request is one line of JSON on standard input, the answer lines of JSON on standard output (`messages`). Who starts
it gives it the user's identity, and ends it when nobody waits for it any more. Memory and descriptors are bounded.
Invariant: it writes nowhere but into its own user's folder of the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from bireme.bound_process import bind
from bireme.images.fetching import fetch
from bireme.images.messages import ImageRefused, Progress, Told, decode_wanted, encode
from bireme.images.refusing import RefusedError, in_words

MOST_REQUEST = 4 << 20
_MEMORY, _CPU_S, _DESCRIPTORS = 4 << 30, 6 * 3600, 512


def main() -> int:
    bind(memory_bytes=_MEMORY, cpu_s=_CPU_S, descriptors=_DESCRIPTORS)
    try:
        wanted = decode_wanted(sys.stdin.buffer.read(MOST_REQUEST))
    except ValueError as error:
        _tell(ImageRefused(f"the request cannot be read: {error}"))
        return 2
    os.environ.update(wanted.environment)  # where the user's credentials are, which proxy
    try:
        fetched = fetch(wanted, _tell)
    except RefusedError as error:
        _tell(ImageRefused(str(error)))
        return 1
    except MemoryError:
        _tell(ImageRefused(f"{wanted.image} needs more memory to read than any image should: it is damaged, or a bomb"))
        return 1
    except OSError as error:
        _tell(ImageRefused(str(in_words(error, f"{wanted.image} cannot be fetched"))))
        return 1
    except Exception as error:  # whoever waits is told, whatever an image does to us
        what = f"{type(error).__name__}: {error}"
        _tell(
            ImageRefused(
                f"{wanted.image} cannot be fetched ({what[:200]}): this is a mistake of ours, please report it"
            )
        )
        return 1
    _tell(fetched.image)
    fetched.settle()
    return 0


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(encode(told))
    sys.stdout.buffer.flush()


Tell = Callable[[Progress], None]

if __name__ == "__main__":
    code = main()
    os._exit(code)  # threads that wait for a registry are nobody's business any more
