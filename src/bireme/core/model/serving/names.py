"""What services, host names, models and the like may be called: one rule each, for the language and for the core.

These texts become parts of addresses, headers and file names: nothing in them may mean something there.
"""

from __future__ import annotations

import re

LONGEST_NAME = 63
RESERVED = frozenset({"v1"})
"""Names that mean something else in the router's addresses."""

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(_LABEL, re.ASCII)
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", re.ASCII)
_MODEL = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,256}", re.ASCII)
_PATH = re.compile(r"/[\x21-\x7e]{0,1023}", re.ASCII)


def is_service_name(text: str) -> bool:
    """A label of a host name, as Kubernetes wants it too."""
    return _NAME.fullmatch(text) is not None and text not in RESERVED


def is_host(text: str) -> bool:
    """A host name in small letters, without port. No address, nor a name of every machine's own: at these the router
    itself is found, and with it everybody's services. `chat.localhost` leads to this machine and is nobody's: good to
    try one with."""
    labels = text.split(".")
    of_the_machine = labels[0] == "localhost"
    return _HOST.fullmatch(text) is not None and not labels[-1].isdigit() and not of_the_machine


def is_token(text: str) -> bool:
    """The name of a header or of a cookie."""
    return _TOKEN.fullmatch(text) is not None


def is_model(text: str) -> bool:
    """Printable, without spaces and commas."""
    return _MODEL.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """What a request may ask for: printable, without spaces."""
    return _PATH.fullmatch(text) is not None
