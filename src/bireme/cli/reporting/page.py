"""A report as one page of HTML: styles and plots are in it, nothing is fetched, it is light or dark as its reader is.

Invariant: every text that came from somebody is escaped; a page has no script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from bireme.cli.reporting import text
from bireme.cli.reporting.text import Stamp, Told
from bireme.web import one_file

_STYLE = """
body{max-width:76rem;margin:0 auto;padding:1.5rem clamp(.75rem,2vw,1.5rem) 3rem}h1{margin-bottom:.6rem}
h2{margin:2rem 0 .6rem}p{color:var(--quiet)}td,th{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
th:first-child,td:first-child,td.text,th.text{text-align:left}ul{padding-left:1.2rem}
i.used{background:var(--l0)}i.unused{background:var(--l1)}i.unmeasured{background:var(--l7);opacity:.45}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.plot{color:var(--quiet);font-size:.8rem;margin:.5rem 0 1rem}
.bars{display:grid;grid-template-columns:fit-content(40%) 1fr auto;gap:.35rem .6rem;align-items:center}
.bars span{overflow-wrap:anywhere;text-align:right}.bars .bar{display:flex;width:auto;height:1.1rem;border-radius:0}
.top{position:static;display:block;background:none;border:0;padding:0;font-size:.8rem;margin:.5rem 0 0}
.plot.columns{display:flex;gap:2px;height:13rem;border-top:1px solid var(--edge);padding-bottom:1.4rem;
align-items:stretch}
.columns div{flex:1 1 0;min-width:0;max-width:5rem;display:flex;flex-direction:column-reverse;position:relative}
.columns span{position:absolute;top:100%;left:0;white-space:nowrap}
"""
_KEY = (
    '<p class="key"><span><i class="used"></i>used</span><span><i class="unused"></i>measured and unused</span>'
    '<span><i class="unmeasured"></i>not measured</span></p>'
)
_NAMES = ("used", "unused", "unmeasured")
_MOST_BARS = 40
_MOST_DATES = 7
"""Under standing bars: as many as have room on a telephone."""
Part = tuple[str, float, float, float]
"""A label, and what was used, unused and not measured."""


def of_many(told: Told, stamp: Stamp) -> str:
    heading = f"{text.title(told)}, {stamp(told['start'])} to {stamp(told['end'])}"
    if not told["total"]["starts"]:
        return _page(heading, ["<p>No run ended or goes on in this time that you may see.</p>"])
    return _page(heading, _many(told, stamp))


def _many(told: Told, stamp: Stamp) -> Iterator[str]:
    yield f"<p>{escape(text.shares_line(told['total']))}</p>"
    by_gpu = told["total"]["gpu_held_s"] > 0
    yield f"<h2>{'GPU' if by_gpu else 'CPU'}-hours by {'day' if told['period_s'] <= 86_400 else 'week'}</h2>{_KEY}"
    yield _columns([_part(stamp(row["start"])[:10], row, by_gpu) for row in told["periods"]])
    for name, key in (("account", "accounts"), ("user", "users")):
        yield f"<h2>By {name}, worst first</h2>"
        yield _bars([_part(str(row[name] or "-"), row, by_gpu) for row in told[key][:_MOST_BARS]])
        yield _table((name, *text.COLUMNS), [(str(row[name] or "-"), *text.cells(row)) for row in told[key]])
    yield "<h2>Worst runs</h2>"
    yield _table(
        ("job", "name", "user", "GPUs", "time", "GPU use", "GPU-h unused", "never used", "CPU use"),
        [_run(job) for job in told["jobs"]],
        texts=(1, 2),
    )


def _part(label: str, total: Told, by_gpu: bool) -> Part:
    if by_gpu:
        return label, total["gpu_used_s"], total["gpu_unused_s"], total["gpu_unmeasured_s"]
    used = min(total["cpu_used_s"], total["cpu_counted_s"])
    return label, used, total["cpu_counted_s"] - used, total["cpu_held_s"] - total["cpu_counted_s"]


def _run(job: Told) -> tuple[str, ...]:
    had, used = job["had"], job["efficiency"]
    known = used["gpu_use"] is not None
    return (
        str(job["job"]),
        str(job["name"] or ""),
        had["user"],
        str(had["gpus"]),
        text.clock(had["elapsed_s"]),
        text.percent(used["gpu_use"]) if known else "-",
        text.hours(used["gpu_unused_s"]) if known else "-",
        str(used["gpus_never_used"]) if known else "-",
        text.percent(used["cpu_use"]) if used["cpu_use"] is not None else "-",
    )


def of_jobs(told: Told, stamp: Stamp) -> str:
    jobs = told["jobs"]
    heading = f"Job {jobs[0]['job']}" if len(jobs) == 1 else f"{len(jobs)} jobs"
    return _page(heading, (part for job in jobs for part in _job(job, stamp)))


def _job(job: Told, stamp: Stamp) -> Iterator[str]:
    had, digest = job["had"], job["digest"]
    yield f"<h2>{escape(str(job['job']))} ({escape(str(job['name'] or ''))}) of {escape(had['user'])}: "
    yield f"{escape(str(job['state']))}</h2>"
    if had["start"] is None:
        yield f"<p>{escape(text.not_started(job))}</p>{_listed(text.starts_lines(job, stamp))}"
        return
    yield _table(("", ""), list(text.figures_of(job, stamp)), texts=(1,))
    if digest is None:
        yield f"<p>Not measured: {escape(job['unmeasured'])}.</p>"
    elif digest["gpus"]:
        yield f"<h2>GPUs</h2>{_KEY}"
        yield _bars([_gpu_part(gpu) for gpu in digest["gpus"]])
        yield _listed(text.gpu_line(gpu) for gpu in digest["gpus"])
    if job["advice"]:
        yield f"<h2>Advice</h2>{_listed(each['text'] for each in job['advice'])}"
    if job.get("starts"):
        yield f"<h2>All starts</h2><p>{escape(text.starts_title(job))}.</p>{_listed(text.starts_lines(job, stamp))}"


def _gpu_part(gpu: Told) -> Part:
    used = gpu["use"]["mean"] / 100.0 * gpu["measured_s"] if gpu["use"] else 0.0
    measured = gpu["measured_s"] if gpu["use"] else 0.0
    return f"{gpu['node']} {gpu['uuid']}", used, measured - used, max(0.0, gpu["held_s"] - measured)


# --- parts of a page -------------------------------------------------------------------------------------------------


def _page(heading: str, parts: Iterable[str]) -> str:
    title = escape(heading)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{one_file.style('plot.css')}{_STYLE}</style></head><body><h1>{title}</h1>\n{''.join(parts)}\n</body></html>\n"
    )


def _listed(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in items)}</ul>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int] = ()) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        marks = [' class="text"' if place in texts else "" for place in range(len(row))]
        return "".join(f"<{tag}{mark}>{escape(value)}</{tag}>" for mark, value in zip(marks, row, strict=True))

    head = f"<thead><tr>{cells('th', header)}</tr></thead>" if any(header) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>'


def _bars(parts: Sequence[Part]) -> str:
    """A lying bar for each, all to one scale."""
    most = max((sum(amounts) for _, *amounts in parts), default=0.0) or 1.0
    drawn = []
    for label, *amounts in parts:
        drawn.append(f'<span title="{escape(label)}">{escape(_short(label))}</span>')
        drawn.append(f'<div class="bar">{_pieces(label, amounts, most, "width")}</div>')
        drawn.append(f"<span>{text.hours(sum(amounts))} h</span>")
    return f'<div class="plot bars">{"".join(drawn)}</div>'


def _columns(parts: Sequence[Part]) -> str:
    """A standing bar for each period, all to one scale."""
    most = max((sum(amounts) for _, *amounts in parts), default=0.0) or 1.0
    every = max(1, -(-len(parts) // _MOST_DATES))
    drawn = []
    for place, (label, *amounts) in enumerate(parts):
        date = escape(label[5:]) if place % every == 0 else ""
        drawn.append(f"<div>{_pieces(label, amounts, most, 'height')}<span>{date}</span></div>")
    return f'<p class="top">{text.hours(most)} h</p><div class="plot columns">{"".join(drawn)}</div>'


def _pieces(label: str, amounts: Sequence[float], most: float, side: str) -> str:
    """What was used, unused and not measured, end to end. In elements, not in a picture: their words keep their size
    on a telephone."""
    pieces = (
        f'<i class="{name}" style="{side}:{100 * amount / most:.2f}%" '
        f'title="{escape(label)}: {amount / 3600:.2f} h {said}"></i>'
        for name, said, amount in zip(_NAMES, ("used", "unused", "not measured"), amounts, strict=True)
        if amount > 0
    )
    return "".join(pieces)


def _short(label: str) -> str:
    return label if len(label) <= 20 else f"{label[:9]}…{label[-9:]}"
