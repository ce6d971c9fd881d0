"""Node features: `intel&gpu`, `[rack1|rack2]`, `graphics*4`, `[rack1*2&rack2*4]`, as a typed tree.

Says what one node's features satisfy and which counts a job's nodes must reach together; choosing the nodes is
`fit`'s work. The parser lives here and not in `slurm/` because placement needs the tree and jobs keep the text.
Invariant: `Constraint.text` parses to the same tree again.

Slurm's rules: `&` (or `,`) and `|` are read from left to right, neither binds tighter; parentheses do not nest and
hold no counts; one pair of square brackets, holding either alternatives without counts (`[a|b]`: every node of the
job by the same one) or counts joined by & (`[a*2&b*4]`: so many nodes of each).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

MOST_TOKENS = 256
"""Names, operators and brackets: `a&b|c&d` is as deep as it is long, and every node is asked at every pass."""


class FeatureError(ValueError):
    """A constraint that cannot be read; the message says where."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature. With a count: at least so many of the job's nodes have it, the others need not."""

    name: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Expression, ...]
    count: int | None = None


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Expression, ...]
    count: int | None = None


@dataclass(frozen=True, slots=True)
class OneForAll:
    """`[a|b]`: one of these, the same for every node of the job."""

    options: tuple[Expression, ...]
    count: None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """`[a*2&b*4]`: for each part, `count` nodes of its own that satisfy it."""

    parts: tuple[Expression, ...]
    count: None = None


Expression = Feature | AllOf | AnyOf | OneForAll | Shares


@dataclass(frozen=True, slots=True)
class Constraint:
    """A parsed constraint; the empty one is satisfied by every node."""

    text: str
    root: Expression

    def matches(self, features: Set[str]) -> bool:
        """Whether a node with these features may be among the job's nodes, as far as one node can tell."""
        return _satisfied(self.root, features)

    def counts(self) -> tuple[tuple[Expression, int], ...]:
        """Every (expression, n) such that n of the job's nodes must satisfy the expression."""
        if "*" not in self.text:
            return ()
        return tuple((part, part.count) for part in _walk(self.root) if part.count is not None)

    @property
    def nodes_counted(self) -> int:
        """How many nodes the counts take at least: those of `[a*2&b*4]` are different nodes, others may be the same."""
        several = [sum(part.count or 0 for part in one.parts) for one in _walk(self.root) if isinstance(one, Shares)]
        return max([0, *several, *(count for _, count in self.counts())])

    def alternatives(self) -> tuple[Constraint, ...]:
        """One constraint for each option of `[a|b]`, to be tried for the whole job; else just this one."""
        for part in _walk(self.root):
            if isinstance(part, OneForAll):
                return tuple(Constraint(self.text, _replaced(self.root, part, option)) for option in part.options)
        return (self,)

    def feature_names(self) -> frozenset[str]:
        """All names used, to check that the cluster knows them."""
        return frozenset(part.name for part in _walk(self.root) if isinstance(part, Feature))


def expression_matches(expression: Expression, features: Set[str]) -> bool:
    """Whether a node satisfies an expression of `Constraint.counts`, its own count aside."""
    match expression:
        case Feature(name):
            return name in features
        case AllOf(parts):
            return all(_satisfied(part, features) for part in parts)
        case AnyOf(parts) | OneForAll(parts) | Shares(parts):
            return any(expression_matches(part, features) for part in parts)


def chosen_for_counts(
    counts: tuple[tuple[Expression, int], ...], features: Sequence[Set[str]]
) -> tuple[int, ...] | None:
    """Places in `features` of nodes that fulfil the counts, a node for one of them only; None: there are not enough.

    Earlier nodes are preferred. What the fewest nodes have is looked for first, so that no other count takes them.
    """
    fitting = [[i for i, have in enumerate(features) if expression_matches(part, have)] for part, _ in counts]
    taken: list[int] = []
    for which in sorted(range(len(counts)), key=lambda which: (len(fitting[which]) - counts[which][1], which)):
        free = [i for i in fitting[which] if i not in taken]
        if len(free) < counts[which][1]:
            return None
        taken += free[: counts[which][1]]
    return tuple(sorted(taken))


@lru_cache(maxsize=1024)
def parse_constraint(text: str) -> Constraint:
    """The value of `--constraint` or `--prefer`. Empty text asks for nothing."""
    tokens = _tokens(text)
    if len(tokens) > MOST_TOKENS:
        raise _invalid(text[:80] + "...", f"at most {MOST_TOKENS // 2} features")
    if not tokens:
        return Constraint(text, AllOf(()))
    parser = _Parser(text, tokens)
    root = parser.chain(closing="")
    return Constraint(text, root)


def _satisfied(expression: Expression, features: Set[str]) -> bool:
    """A counted part asks something of some nodes, so it excludes none by itself."""
    return expression.count is not None or expression_matches(expression, features)


def _walk(expression: Expression) -> Iterator[Expression]:
    yield expression
    if isinstance(expression, OneForAll):
        for option in expression.options:
            yield from _walk(option)
    elif not isinstance(expression, Feature):
        for part in expression.parts:
            yield from _walk(part)


def _replaced(expression: Expression, old: Expression, new: Expression) -> Expression:
    if expression is old:
        return new
    if isinstance(expression, AllOf):
        return AllOf(tuple(_replaced(part, old, new) for part in expression.parts), expression.count)
    if isinstance(expression, AnyOf):
        return AnyOf(tuple(_replaced(part, old, new) for part in expression.parts), expression.count)
    return expression


_TOKEN = re.compile(r"""[&|,*()\[\]]|[^&|,*()\[\]\s"'!]+""")


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _invalid(text, f"unexpected {text[position]!r}")
        tokens.append("&" if match[0] == "," else match[0])
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent with the nesting that Slurm allows: brackets, in them parentheses, in them features."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text = text
        self._tokens = tokens
        self._position = 0
        self._brackets_seen = False

    def chain(self, closing: str) -> Expression:
        """Parts joined by & and | up to `closing`, read from left to right."""
        left = self._part(closing)
        while True:
            token = self._next()
            if token == closing:
                return left
            if token not in ("&", "|"):
                raise _invalid(self._text, f"expected & or | before {token!r}" if token else f"missing {closing!r}")
            left = _joined(left, token, self._part(closing))

    def _part(self, closing: str) -> Expression:
        token = self._next()
        if token == "(" and closing != ")":
            return self._counted(self.chain(closing=")"), closing)
        if token == "[" and closing == "" and not self._brackets_seen:
            self._brackets_seen = True
            return self._bracketed()
        if token == "" or token in "&|*()[]":
            raise _invalid(
                self._text, f"expected a feature before {token!r}" if token else "expected a feature at the end"
            )
        return self._counted(Feature(token), closing)

    def _counted(self, part: Expression, closing: str) -> Expression:
        if self._peek() != "*":
            return part
        self._next()
        number = self._next()
        if closing == ")" or not re.fullmatch(r"[0-9]{1,9}", number) or int(number) == 0:
            raise _invalid(self._text, "a count is *N with N at least 1, outside parentheses")
        match part:
            case Feature(name):
                return Feature(name, int(number))
            case AllOf(parts):
                return AllOf(parts, int(number))
            case AnyOf(parts):
                return AnyOf(parts, int(number))
        raise _invalid(self._text, "square brackets take no count")

    def _bracketed(self) -> Expression:
        parts = [self._part("]")]
        operators: set[str] = set()
        while (token := self._next()) != "]":
            if token not in ("&", "|"):
                raise _invalid(self._text, f"expected &, | or ] before {token!r}" if token else "missing ']'")
            operators.add(token)
            parts.append(self._part("]"))
        if self._peek() == "*":
            raise _invalid(self._text, "square brackets take no count")
        counted = [part.count is not None for part in parts]
        if operators <= {"|"} and not any(counted):
            return OneForAll(tuple(parts))
        if operators <= {"&"} and all(counted):
            return Shares(tuple(parts))
        raise _invalid(self._text, "square brackets hold alternatives ([a|b]) or counts ([a*2&b*4]), not both")

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._position += 1
        return token


def _joined(left: Expression, operator: str, right: Expression) -> Expression:
    """`a&b&c` as one AllOf of three; a group with a count of its own stays a part."""
    kind = AllOf if operator == "&" else AnyOf
    if isinstance(left, kind) and left.count is None:
        return kind((*left.parts, right))
    return kind((left, right))


def _invalid(text: str, why: str) -> FeatureError:
    return FeatureError(f"Invalid feature specification: {text} ({why})")
