"""Hostlists: `r[1-2]n[01-03],login` to names and back, as `scontrol show hostnames|hostlist|hostlistsorted`.

Not a resolver and not a check that the nodes exist: text in, text out. Called by the configuration reader,
the options, the commands and whoever prints a node list.

Invariant: `expand(compress(names)) == names` for any list of node names, order and duplicates included.

Beyond Slurm 22.05, which rejects it, text after the last bracket (`n[1-2]-ib`) is accepted. An unclosed or
stray bracket, which Slurm turns into a host with a bracket in its name, is an error here.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bireme.slurm.errors import SlurmSyntaxError

MAX_HOSTS = 65536
"""As many hosts as one expression may name; Slurm's limit for a range."""

_SEPARATORS = frozenset(", \t\n")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]*)", re.DOTALL)
_DIGIT_RUNS = re.compile(r"([0-9]+)")
_MAX_DIGITS = 64  # a longer number is no node's; it also keeps int() cheap on hostile text


def expand(text: str) -> list[str]:
    """The names that a hostlist expression stands for, in Slurm's order, duplicates kept."""
    names: list[str] = []
    for expression in _split_outside_brackets(text):
        names.extend(_expand_one(expression, text))
        if len(names) > MAX_HOSTS:
            raise _invalid(text, f"it names more than {MAX_HOSTS} hosts")
    return names


def compress(names: Iterable[str]) -> str:
    """One expression for these names in this order, as `scontrol show hostlist` prints it.

    Only neighbours are joined: `n2,n1` becomes `n[2,1]`; another prefix in between starts a new bracket.
    """
    return _ranges_text(_joined(map(_host_of, names)))


def compress_sorted(names: Iterable[str]) -> str:
    """As `scontrol show hostlistsorted`: sorted, duplicates kept."""
    return _ranges_text(_joined(_sorted_hosts(names)))


def sort_names(names: Iterable[str]) -> list[str]:
    """Names in Slurm's order: prefix as people read it (`r9` before `r10`), then padding, then number."""
    return [host.prefix + str(host) for host in _sorted_hosts(names)]


@dataclass(frozen=True, slots=True)
class _Range:
    """Consecutive hosts of one prefix. `width` is the number of digits of the first, zeros included."""

    prefix: str
    first: int = 0
    last: int = 0
    width: int = 0

    @property
    def is_numbered(self) -> bool:
        return self.width > 0

    def continues_with(self, host: "_Range") -> bool:
        """Whether printing `last + 1` at this range's width gives exactly the next host's digits."""
        return (
            self.is_numbered
            and host.is_numbered
            and self.prefix == host.prefix
            and self.last + 1 == host.first
            and f"{host.first:0{self.width}d}" == f"{host.first:0{host.width}d}"
        )

    def pads_like(self, other: "_Range") -> bool:
        """Whether one padding prints both first hosts: 9 and 10 do, 08 and 10 do, 08 and 9 do not."""
        return self.is_numbered == other.is_numbered and any(
            f"{self.first:0{width}d}" == f"{self.first:0{self.width}d}"
            and f"{other.first:0{width}d}" == f"{other.first:0{other.width}d}"
            for width in (self.width, other.width)
        )

    def extended(self) -> "_Range":
        return _Range(self.prefix, self.first, self.last + 1, self.width)

    def hosts(self) -> "Iterator[_Range]":
        """Each host as a range of its own that keeps this range's padding."""
        return (_Range(self.prefix, number, number, self.width) for number in range(self.first, self.last + 1))

    def __str__(self) -> str:
        if not self.is_numbered:
            return ""
        first = f"{self.first:0{self.width}d}"
        return first if self.first == self.last else f"{first}-{self.last:0{self.width}d}"


def _host_of(name: str) -> _Range:
    match = _TRAILING_NUMBER.fullmatch(name)
    assert match is not None, "the pattern matches every string"
    prefix, digits = match.groups()
    if not digits or len(digits) > _MAX_DIGITS:
        return _Range(name)
    return _Range(prefix, int(digits), int(digits), len(digits))


def _joined(hosts: Iterable[_Range]) -> list[_Range]:
    """Neighbours that count on from each other, made one range."""
    ranges: list[_Range] = []
    for host in hosts:
        if ranges and ranges[-1].continues_with(host):
            ranges[-1] = ranges[-1].extended()
        else:
            ranges.append(host)
    return ranges


def _sorted_hosts(names: Iterable[str]) -> list[_Range]:
    """Slurm sorts ranges, not names, so that in `n9,n10,n08` the 10 is unpadded like the 9 before it."""
    ranges = sorted(_joined(map(_host_of, names)), key=functools.cmp_to_key(_compare))
    families: list[list[_Range]] = []  # ranges whose paddings agree: their hosts interleave by number
    for run in ranges:
        if families and families[-1][-1].prefix == run.prefix and families[-1][-1].pads_like(run):
            families[-1].append(run)
        else:
            families.append([run])
    return [
        host
        for family in families
        for host in sorted((host for run in family for host in run.hosts()), key=lambda host: host.first)
    ]


def _compare(one: _Range, other: _Range) -> int:
    """Prefix as people read it; then by number where the paddings agree, else the narrower first."""
    if one.prefix != other.prefix:
        return -1 if _reading_order(one.prefix) < _reading_order(other.prefix) else 1
    if one.is_numbered != other.is_numbered:
        return -1 if other.is_numbered else 1
    return one.first - other.first if one.pads_like(other) else one.width - other.width


def _ranges_text(ranges: Iterable[_Range]) -> str:
    groups = itertools.groupby(ranges, key=lambda each: (each.prefix, each.is_numbered))
    return ",".join(_group_text(prefix, list(members)) for (prefix, _), members in groups)


def _group_text(prefix: str, ranges: Sequence[_Range]) -> str:
    """The ranges of one prefix; brackets only where there is more than one host."""
    if not ranges[0].is_numbered:
        return ",".join([prefix] * len(ranges))
    if len(ranges) == 1 and ranges[0].first == ranges[0].last:
        return f"{prefix}{ranges[0]}"
    return f"{prefix}[{','.join(map(str, ranges))}]"


_Token = tuple[int, bool, int, str]


def _reading_order(text: str) -> list[_Token]:
    """A sort key under which `r9` comes before `r10`."""
    tokens: list[_Token] = []
    for position, part in enumerate(_DIGIT_RUNS.split(text)):
        if position % 2:  # what the pattern matched: digits
            tokens.append(_digits_token(part))
        else:
            tokens.extend((ord(char), False, 0, "") for char in part)
    return tokens


def _digits_token(digits: str) -> _Token:
    """Among other characters by code; among digits as numbers, those with leading zeros first."""
    if digits.startswith("0") or len(digits) > _MAX_DIGITS:
        return ord("0"), False, 0, digits
    return ord("0"), True, int(digits), ""


def _split_outside_brackets(text: str) -> list[str]:
    """The expressions between commas and white space that are not inside brackets."""
    expressions: list[str] = []
    start, inside = 0, False
    for index, char in enumerate(text):
        if char == "[":
            if inside:
                raise _invalid(text, "brackets do not nest")
            inside = True
        elif char == "]":
            if not inside:
                raise _invalid(text, "']' without '['")
            inside = False
        elif char in _SEPARATORS and not inside:
            expressions.append(text[start:index])
            start = index + 1
    if inside:
        raise _invalid(text, "'[' is not closed")
    expressions.append(text[start:])
    return [expression for expression in expressions if expression]


def _expand_one(expression: str, whole: str) -> list[str]:
    """The names of one expression such as `r[1-2]n[01-03]`."""
    pieces = re.split(r"[\[\]]", expression)
    literals, brackets = pieces[0::2], pieces[1::2]
    choices = [_bracket_numbers(bracket, whole) for bracket in brackets]
    total = 1
    for numbers in choices:
        total *= len(numbers)
    if total > MAX_HOSTS:
        raise _invalid(whole, f"too many hosts in '{expression}', at most {MAX_HOSTS}")
    if not choices:
        return [expression]
    # Slurm's order: the last bracket runs fastest, and of those before it the first runs fastest.
    names: list[str] = []
    for leading in itertools.product(*reversed(choices[:-1])):
        stem = "".join(itertools.chain(*zip(literals, reversed(leading)))) + literals[len(choices) - 1]
        names.extend(f"{stem}{number}{literals[-1]}" for number in choices[-1])
    return names


def _bracket_numbers(bracket: str, whole: str) -> list[str]:
    """`01-03,7` to 01, 02, 03, 7; the first number of a range sets its zero padding."""
    numbers: list[str] = []
    for part in bracket.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or len(part) > 2 * _MAX_DIGITS:
            raise _invalid(whole, f"invalid range '{part}', expected a number or FIRST-LAST")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise _invalid(whole, f"invalid range '{part}', the first number is larger than the last")
        if int(high) - int(low) >= MAX_HOSTS:
            raise _invalid(whole, f"too many hosts in range '{part}', at most {MAX_HOSTS}")
        numbers.extend(f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
        if len(numbers) > MAX_HOSTS:
            raise _invalid(whole, f"too many hosts in '[{bracket}]', at most {MAX_HOSTS}")
    return numbers


def _invalid(text: str, why: str) -> SlurmSyntaxError:
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    return SlurmSyntaxError(f"Invalid hostlist: {shown} ({why})")
