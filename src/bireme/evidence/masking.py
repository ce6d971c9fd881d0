"""Secrets in lines that are quoted, masked: what people print by mistake does not go into answers and tickets.

Known shapes only (tokens with a maker's prefix, headers, `--token X`, `PASSWORD=...`, addresses with a password, keys
in PEM): a masker that guesses would take away commits, UUIDs of GPUs and paths, which are the evidence. What it does
not know is not masked. Invariant: `mask(mask(text)) == mask(text)`.
"""

from __future__ import annotations

import re

MASK = "***"
_VALUE = r"[^\s'\",;&)\]}]"

_WHOLE = re.compile(
    r"""
    \b(?:
        hf_[A-Za-z0-9]{16,} | api_org_[A-Za-z0-9]{16,}                    # Hugging Face
      | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}         # GitHub
      | glpat-[A-Za-z0-9_-]{16,}                                          # GitLab
      | (?:AKIA|ASIA)[A-Z0-9]{16}                                         # AWS, the key's name
      | sk-(?:proj-|ant-|svcacct-|or-v1-)?[A-Za-z0-9_-]{20,}              # OpenAI and those who copied it
      | nvapi-[A-Za-z0-9_-]{20,}                                          # NVIDIA
      | AIza[A-Za-z0-9_-]{30,} | ya29\.[A-Za-z0-9_-]{20,}                 # Google
      | xox[abeoprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}           # Slack
      | wandb_v1_[A-Za-z0-9_]{20,}                                        # Weights & Biases
      | pypi-[A-Za-z0-9_-]{30,} | dckr_pat_[A-Za-z0-9_-]{20,}
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}        # JWT
    )
    """,
    re.VERBOSE,
)
_NAME = (
    r"[A-Za-z0-9_.-]{0,40}(?:password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
    r"|auth[_-]?token|access[_-]?token|token)"
)
_NAMED = re.compile(
    rf"(?i)(?P<kept>(?<![A-Za-z0-9])['\"]?{_NAME}['\"]?\s{{0,3}}[=:]\s{{0,3}}['\"]?)(?P<secret>{_VALUE}{{4,}})"
)
_FLAG = re.compile(
    rf"(?i)(?P<kept>(?<!\S)--?(?:[a-z0-9-]{{0,40}}-)?(?:token|password|passwd|secret|api-?key|access-?key)[ =]['\"]?)"
    rf"(?P<secret>(?!-){_VALUE}{{4,}})"
)
_QUOTED = re.compile(
    rf"(?i)(?P<kept>(?:(?<!\S)--?{_NAME}[ =]|(?<![A-Za-z0-9]){_NAME}['\"]?\s{{0,3}}[=:]\s{{0,3}})(?P<mark>['\"]))"
    r"(?P<secret>[^'\"\n]{4,200})(?=(?P=mark))"
)
"""With spaces in it, perhaps."""
_HEADER = re.compile(
    r"(?i)(?P<kept>\b(?:proxy-)?authorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:(?:bearer|basic|token)\s{1,3})?)"
    r"(?P<secret>(?!(?:bearer|basic|token)\s)[^\s'\",;]{4,})"
)
_BEARER = re.compile(r"(?P<kept>\b[Bb]earer\s{1,3})(?P<secret>[A-Za-z0-9._~+/=-]{16,})")
_ADDRESS = re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"]{0,80}:)(?P<secret>[^\s/@'\"]{1,200})(?=@)")
_ADDRESS_TOKEN = re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]{1,20}://)(?P<secret>[^\s/:@'\"]{20,200})(?=@)")
_WANDB = re.compile(r"(?i)(?P<kept>\bwandb(?:\b|_)[^\n]{0,60}?\b)(?P<secret>[0-9a-f]{40})\b")
_PEM = re.compile(r"(?P<kept>-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?P<secret>.+?)(?=-----END|$)", re.DOTALL)
_PEM_BODY = re.compile(r"(?![0-9a-f]+$)[A-Za-z0-9+/]{60,76}={0,2}")
_COUNTED = re.compile(
    r"(?i)(?:none|null|true|false|\d+(?:\.\d+)?[a-z/%]{0,4}|<[^>]*>|\*+|%s|\{[^}]*\}?|\$\{?\w+\}?|\[.*|\(.*)"
)
"""Values of names like `token` that are no secret: how many, whether there are any, a place for one."""


def mask(text: str) -> str:
    """The text with every secret of a known shape replaced by `***`."""
    if _PEM_BODY.fullmatch(text.strip()):  # a line from within a key; nothing else is just that
        return MASK
    text = _WHOLE.sub(_shortened, text)
    for pattern in (_PEM, _HEADER, _BEARER, _ADDRESS, _ADDRESS_TOKEN, _QUOTED, _FLAG, _NAMED, _WANDB):
        text = pattern.sub(_kept, text)
    return text


def _shortened(found: re.Match[str]) -> str:
    """What kind it was stays to be seen: `ghp_***`."""
    kind = re.match(r"[A-Za-z0-9]{2,6}[-_.]|AKIA|ASIA|AIza|eyJ", found[0])
    return (kind[0] if kind else "") + MASK


def _kept(found: re.Match[str]) -> str:
    if MASK in found["secret"] or _COUNTED.fullmatch(found["secret"]):
        return found[0]
    return found["kept"] + MASK
