"""How text that is no text is written: as the bytes that it was, or escaped, and never as an error.

Names of files and jobs may hold any bytes. Used where a command's text becomes bytes: near a terminal, in the daemon.
"""

from __future__ import annotations

import codecs

SHOWN = "bireme-shown"
"""What becomes of characters that the terminal's encoding does not have, by this name as of `errors=` of a stream."""


def _shown(error: UnicodeError) -> tuple[bytes, int]:
    """Bytes that were no text are themselves again, as by surrogateescape; what a terminal would obey, and what else
    cannot be said, is escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    odd = error.object[error.start : error.end]
    return b"".join(_of_one(letter) for letter in odd), error.end


def _of_one(letter: str) -> bytes:
    if "\udc80" <= letter <= "\udc9f":  # a control character to terminals that know one byte for each
        return b"\\x%02x" % (ord(letter) - 0xDC00)
    if "\udca0" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00])
    return letter.encode("ascii", "backslashreplace")


codecs.register_error(SHOWN, _shown)
