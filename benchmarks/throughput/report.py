"""Records to a table: the median of the runs that count, their range, and why others do not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.throughput.records import Measured, Record

HEAD = (
    "workload", "system", "runs", "rows/s", "range", "prompt tok/s", "output tok/s", "work s",
    "ready s", "wall s", "hit rate", "preempt", "CPU s", "of it work", "RSS MiB", "% of L1", "vs llm-tuned",
)  # fmt: skip
BASELINE = "llm-tuned"


def table(records: Sequence[Record]) -> list[str]:
    """A Markdown table: one line per workload and system, then a line for each that has no run."""
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    groups = _groups(records)
    for (workload, system), group in groups.items():
        base = _rate_of(groups.get((workload, BASELINE), []))
        lines.append(_line(_cells(workload, system, group, base)))
    problems = [record for record in records if record.problem]
    if problems:
        lines += ["", "Runs that do not count:", ""]
        lines += [
            f"- {one.workload}, {one.system}, run {one.repeat + 1}: {one.problem}"
            for one in problems
        ]
    return lines


def _groups(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.workload, record.system), []).append(record)
    return dict(sorted(found.items(), key=lambda item: item[0][0]))


def good(group: Sequence[Record]) -> list[tuple[Record, Measured]]:
    """The runs that count."""
    return [(one, one.measured) for one in group if one.measured and not one.problem]


def seconds(measured: Measured) -> float:
    """What a rate is made of: from engine ready to last answer, or all if that is not known."""
    return measured.work_s if measured.work_s else measured.wall_s


def _rate_of(group: Sequence[Record]) -> float | None:
    """Median rows per second."""
    rates = [record.rows / seconds(measured) for record, measured in good(group)]
    return median(rates) if rates else None


def _cells(workload: str, system: str, group: Sequence[Record], base: float | None) -> list[str]:
    runs = good(group)
    if not runs:
        return [workload, system, "0", group[0].problem, *["–"] * (len(HEAD) - 4)]
    record = runs[0][0]
    rates = [record.rows / seconds(one) for _, one in runs]
    rate = median(rates)
    shares = [one.limit_share for one, _ in runs if one.limit_share is not None]
    return [
        workload,
        system,
        str(len(runs)),
        f"{rate:,.1f}",
        f"{min(rates):,.1f}–{max(rates):,.1f}",
        f"{rate * record.prompt_tokens / record.rows:,.0f}",
        f"{rate * record.output_tokens / record.rows:,.0f}",
        _median("{:.1f}", [one.work_s for _, one in runs]),
        _median("{:.1f}", [one.ready_s for _, one in runs]),
        _median("{:.1f}", [one.wall_s for _, one in runs]),
        _median("{:.3f}", [_hit_rate(one, record) for _, one in runs]),
        _median("{:.0f}", [one.preemptions for _, one in runs]),
        _median("{:.1f}", [one.cpu_s for _, one in runs]),
        _median("{:.1f}", [_work_cpu_s(one) for _, one in runs]),
        _median("{:,.0f}", [one.peak_rss_bytes / 2**20 for _, one in runs]),
        f"{median(shares):.0%}" if shares else "–",
        f"{rate / base:.2f}x" if base else "–",
    ]


def _hit_rate(measured: Measured, record: Record) -> float | None:
    if measured.cached_tokens is None:
        return None
    return measured.cached_tokens / record.prompt_tokens


def _work_cpu_s(measured: Measured) -> float | None:
    """CPU seconds from engine ready to last answer: what a busy machine cannot distort much."""
    by_role = measured.details.get("work_cpu_s")
    return sum(by_role.values()) if by_role else None


def _median(form: str, values: Sequence[float | None]) -> str:
    """A dash where some run does not tell."""
    known = [value for value in values if value is not None]
    return form.format(median(known)) if len(known) == len(values) else "–"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def read_records(path: Path) -> list[Record]:
    """The raw figures of a benchmark; the last line may be cut off where it was killed."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            values = json.loads(line)
            measured = values.pop("measured")
            found.append(Record(**values, measured=Measured(**measured) if measured else None))
    return found
