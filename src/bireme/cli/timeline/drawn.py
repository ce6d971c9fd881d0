"""A timeline as text for a terminal of any width: rows over one axis, then what happened, in order.

Takes what the daemon answered, with every text made visible before; returns lines that rich prints, with colours where
there are any. Without UTF-8 the same rows are drawn with ASCII.
Invariant: no drawn row is wider than the terminal; the marks, sentences and lines of output below may wrap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from bireme.cli.top.figures import figure, sparkline
from bireme.core.telemetry.timeline import Span, times_of

Record = dict[str, Any]
_NARROWEST = 40
_TITLE = 13
_STEPS_DRAWN = 12
_EVENTS_SHOWN = 60
_COLOURS = {
    "wait": "yellow",
    "start": "cyan",
    "run": "green",
    "pause": "magenta",
    "end": "cyan",
    "good": "green",
    "bad": "red",
    "note": "default",
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What rows are drawn with."""

    fills: dict[str, str]
    levels: str
    mark: str
    tick: str
    rule: str
    dash: str


_UTF8 = Glyphs(
    {"wait": "░", "start": "▒", "run": "█", "pause": "▚", "end": "▓", "good": "█", "bad": "█", "note": "▒"},
    "▁▂▃▄▅▆▇█", "◆", "┬", "─", "–",
)  # fmt: skip
_ASCII = Glyphs(
    {"wait": ".", "start": ":", "run": "#", "pause": "=", "end": "+", "good": "#", "bad": "X", "note": "-"},
    "_.-=+*%#", "^", "|", "-", "-",
)  # fmt: skip


def glyphs_for(encoding: str) -> Glyphs:
    return _UTF8 if encoding.lower().replace("-", "").startswith("utf8") else _ASCII


def text_of(told: Record, width: int, glyphs: Glyphs) -> Iterator[Text]:
    for place, timeline in enumerate(told["timelines"]):
        if place:
            yield Text()
        yield from _Drawing(timeline, max(_NARROWEST, width), glyphs).lines()
    if told["left_out"]:
        yield Text()
        yield Text(f"{told['left_out']} more of this array: name one task, as {told['timelines'][0]['job']}", "dim")


class _Drawing:
    """One timeline, for so many columns."""

    def __init__(self, timeline: Record, width: int, glyphs: Glyphs) -> None:
        self._told, self._glyphs = timeline, glyphs
        self._room = width - _TITLE - 1
        self._start, self._end = timeline["start"], max(timeline["end"], timeline["start"] + 1e-3)
        self._open_end = self._end if timeline["is_over"] else min(timeline["now"], self._end)
        self._lanes = {lane["name"]: lane for lane in timeline["lanes"]}
        runs = (span["start"] for span in self._lanes.get("placement", {}).get("spans", ()))
        self._ran_from = min(runs, default=self._start)
        """A step of a curve may begin before the job had anything: it is drawn from then on."""
        self._days = time.strftime("%x", time.localtime(self._start)) != time.strftime("%x", time.localtime(self._end))

    def lines(self) -> Iterator[Text]:
        yield self._headline()
        yield from self._axis()
        for lane in self._told["lanes"]:
            yield from self._rows(lane)
        yield from self._reasons()
        yield from self._steps()
        yield from self._events()
        yield from self._log()
        for sentence in self._told["absent"]:
            yield Text(f"absent: {sentence}", "dim")

    def _headline(self) -> Text:
        told = self._told
        head = Text(f"job {told['job']}", "bold")
        head.append(f"  {told['name']}  {told['user']}  ", "default")
        head.append(told["state"], "bold")
        head.append(f"  {lasted(self._open_end - self._start)}", "default")
        if told["expected_start"] is not None:
            head.append(f"  expected to start {self._when(told['expected_start'])}", "cyan")
        return head

    # --- rows over the axis --------------------------------------------------------------------------------

    def _column(self, at: float) -> int:
        part = (at - self._start) / (self._end - self._start)
        return max(0, min(self._room - 1, int(part * self._room)))

    def _axis(self) -> Iterator[Text]:
        count = max(1, min(6, self._room // 14))
        ticks, words = [self._glyphs.rule] * self._room, [" "] * self._room
        for place in range(count + 1):
            at = self._start + (self._end - self._start) * place / count
            column = self._column(at)
            ticks[column] = self._glyphs.tick
            text = self._when(at)
            begin = min(column, self._room - len(text))
            if begin >= 0 and all(letter == " " for letter in words[max(0, begin - 1) : begin + len(text)]):
                words[begin : begin + len(text)] = text
        yield Text(" " * (_TITLE + 1) + "".join(words).rstrip(), "dim")
        yield Text(" " * (_TITLE + 1) + "".join(ticks), "dim")

    def _rows(self, lane: Record) -> Iterator[Text]:
        if lane["name"] == "events":
            marks = [mark for mark in lane["marks"] if mark["tone"] in ("bad", "good", "wait")]
            if marks:
                yield self._row(lane["title"], self._marks(marks))
        elif lane["name"] == "reasons":
            yield from self._reason_rows(lane)
        elif lane["name"] == "steps" and len(lane["spans"]) > 1:
            for span in lane["spans"][:_STEPS_DRAWN]:
                yield self._row(f"step {span['text']}", self._spans([span]))
        elif lane["spans"]:
            yield self._row(lane["title"], self._spans(lane["spans"]))
        elif lane["marks"]:
            yield self._row(lane["title"], self._marks(lane["marks"]))
        drawn = [(line, self._in_columns(line)) for line in lane["lines"]]
        top = lane["top"] or max((value for _, values in drawn for value in values if value is not None), default=0.0)
        for place, (line, values) in enumerate(drawn):
            yield from self._curve(lane, line, values, top, is_first=place == 0)

    def _reason_rows(self, lane: Record) -> Iterator[Text]:
        """A row for each reason: several hold at once."""
        words = dict.fromkeys(word for span in lane["spans"] for word in span["text"].split(" + "))
        for word in list(words)[:_STEPS_DRAWN]:
            mine = [span for span in lane["spans"] if word in span["text"].split(" + ")]
            yield self._row(f" {word}", self._spans(mine))

    def _row(self, title: str, drawn: Text) -> Text:
        shown = title if len(title) <= _TITLE else title[: _TITLE - 1] + "."
        return Text(f"{shown:<{_TITLE}} ", "default", no_wrap=True).append(drawn)

    def _spans(self, spans: Sequence[Record]) -> Text:
        cells: list[tuple[str, str]] = [(" ", "default")] * self._room
        for span in spans:
            end = self._open_end if span["end"] is None else span["end"]
            first, last = self._column(span["start"]), self._column(max(span["start"], end))
            if last > first and end < self._end:
                last -= 1  # where it ends the next begins
            for column in range(first, last + 1):
                cells[column] = (self._glyphs.fills[span["tone"]], _COLOURS[span["tone"]])
        return _joined(cells)

    def _marks(self, marks: Sequence[Record]) -> Text:
        cells: list[tuple[str, str]] = [(" ", "default")] * self._room
        for mark in sorted(marks, key=lambda one: one["tone"] == "bad"):
            cells[self._column(mark["at"])] = (self._glyphs.mark, _COLOURS[mark["tone"]])
        return _joined(cells)

    def _curve(
        self, lane: Record, line: Record, columns: Sequence[float | None], top: float, *, is_first: bool
    ) -> Iterator[Text]:
        """All of a lane have one scale. The figures are of what was measured, however it falls into columns."""
        known = [value for _, _, value in self._steps_of(line)]
        if not known:
            return
        yield self._row(lane["title"] if is_first else "", Text(sparkline(columns, top, self._glyphs.levels), "green"))
        mean, unit = sum(known) / len(known), lane["unit"]
        facts = f"{line['name']}: mean {figure(mean, unit)}, most {figure(max(known), unit)}"
        yield Text(" " * (_TITLE + 1) + facts[: self._room], "dim", no_wrap=True)

    def _in_columns(self, line: Record) -> list[float | None]:
        sums: list[list[float]] = [[] for _ in range(self._room)]
        for begin, end, value in self._steps_of(line):
            first, last = self._column(begin), self._column(end)
            for column in range(first, max(first, last) + 1):
                sums[column].append(value)
        return [sum(each) / len(each) if each else None for each in sums]

    def _steps_of(self, line: Record) -> Iterator[tuple[float, float, float]]:
        """(from, until, mean) of those that are known and lie on the axis."""
        for place, value in enumerate(line["mean"]):
            begin = line["start"] + place * line["step_s"]
            end = min(begin + line["step_s"], self._open_end)
            begin = max(begin, self._ran_from)
            if value is not None and math.isfinite(value) and begin <= end:
                yield begin, end, value

    # --- below --------------------------------------------------------------------------------------------

    def _reasons(self) -> Iterator[Text]:
        lane = self._lanes.get("reasons")
        if lane is None:
            return
        yield Text()
        yield Text("Why it waited", "bold")
        spans = [Span(one["start"], one["end"], one["text"], "wait", one["more"]) for one in lane["spans"]]
        for words, seconds in times_of(spans, self._open_end).items():
            yield Text(f"  {lasted(seconds):>10}  {words}")
        for span in spans[-_STEPS_DRAWN:]:
            until = "now" if span.end is None else self._when(span.end)
            yield Text(f"  {self._when(span.start)} {self._glyphs.dash} {until}  {span.more}", "dim")

    def _steps(self) -> Iterator[Text]:
        lane = self._lanes.get("steps")
        if lane is None:
            return
        yield Text()
        yield Text("Steps", "bold")
        for span in lane["spans"][-_EVENTS_SHOWN:]:
            end = self._open_end if span["end"] is None else span["end"]
            style = _COLOURS["bad"] if span["tone"] == "bad" else "default"
            yield Text(
                f"  {self._when(span['start'])}  {lasted(end - span['start']):>9}  {span['text']}  {span['more']}",
                style,
            )

    def _events(self) -> Iterator[Text]:
        marks = [
            (mark["at"], mark["text"], mark["more"], mark["tone"])
            for lane in self._told["lanes"]
            for mark in lane["marks"]
        ]
        marks.sort(key=lambda one: one[0])
        if not marks:
            return
        yield Text()
        yield Text("What happened", "bold")
        if len(marks) > _EVENTS_SHOWN:
            yield Text(f"  {len(marks) - _EVENTS_SHOWN} earlier ones: --json has them", "dim")
        for at, text, more, tone in marks[-_EVENTS_SHOWN:]:
            row = Text(f"  {self._when(at)}  ").append(text, _COLOURS[tone])
            yield row.append(f"  {more}", "dim") if more else row

    def _log(self) -> Iterator[Text]:
        for output in self._told.get("log", ()):
            yield Text()
            yield Text("Output" if output["stream"] == "out" else "Errors", "bold").append(f"  {output['path']}", "dim")
            if output["problem"]:
                yield Text(f"  {output['problem']}", "red")
            elif not output["lines"]:
                yield Text("  nothing", "dim")
            gap = output["skipped"]
            for place, line in enumerate(output["lines"]):
                if gap and place and place == _head_length(output["lines"]):
                    yield Text(f"  ... {gap:,} bytes not shown", "dim")
                yield Text(f"  {self._span_of(line):<20} ", "dim").append(line["text"], "default")

    def _span_of(self, line: Record) -> str:
        """An own time has a `=` before it; a span says between which looks it was written."""
        if line["start"] is None:
            return "?"
        if line["source"] == "own":
            return f"={self._when(line['start'])}"
        if int(line["start"]) == int(line["end"]):
            return self._when(line["start"])
        return f"{self._when(line['start'])}{self._glyphs.dash}{self._when(line['end'])}"

    def _when(self, at: float) -> str:
        return time.strftime("%m-%d %H:%M:%S" if self._days else "%H:%M:%S", time.localtime(at))


def _head_length(lines: Sequence[Record]) -> int:
    return len(lines) // 4 or 1


def _joined(cells: Sequence[tuple[str, str]]) -> Text:
    text = Text(no_wrap=True)
    for letter, style in cells:
        text.append(letter, style)
    text.rstrip()
    return text


def lasted(seconds: float) -> str:
    """`3.2s`, `4m 05s`, `2h 10m`, `3d 4h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"
    days, rest = divmod(whole, 86400)
    hours, minutes = rest // 3600, rest % 3600 // 60
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest % 60:02}s"
