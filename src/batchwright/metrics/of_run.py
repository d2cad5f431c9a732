"""Metrics of the whole run: rows by fate, chunks, tokens, time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from batchwright.metrics.words import Family, Kind, Look, Value
from batchwright.running.drive import Progress


def of_run(name: str, kind: Kind, text: str, one: Callable[[Look], float | None]) -> Family:
    """A metric of one sample."""
    return Family(name, kind, text, lambda look: [({"run": look.run}, one(look))])


def of_progress(
    name: str, kind: Kind, text: str, values: Callable[[Progress], Iterable[Value] | float | None]
) -> Family:
    """A metric of how far the run is: one sample, or several with labels of their own."""

    def found(look: Look) -> Iterator[Value]:
        if look.progress is None:
            return
        value = values(look.progress)
        for labels, one in value if not isinstance(value, int | float | None) else [({}, value)]:
            yield {"run": look.run, **labels}, one

    return Family(name, kind, text, found)


def _fates(progress: Progress) -> list[Value]:
    counts = progress.counts
    fates = {"ok": counts.ok, "failed": counts.failed, "rejected": counts.rejected}
    return [({"fate": fate}, rows) for fate, rows in fates.items()]


def _failures(progress: Progress) -> list[Value]:
    return [({"code": code}, rows) for code, rows in progress.counts.failures.items()]


def _tokens(progress: Progress) -> list[Value]:
    counts = progress.counts
    kinds = {"prompt": counts.prompt_tokens, "completion": counts.completion_tokens}
    return [({"kind": kind}, tokens) for kind, tokens in kinds.items()]


def _about(look: Look) -> list[Value]:
    return [({"run": look.run, **look.about}, 1)]


def _done_share(progress: Progress) -> float | None:
    return progress.rows_done / progress.rows_expected if progress.rows_expected else None


FAMILIES = (
    Family("batchwright_run_info", "gauge", "What the run is; always 1.", _about),
    of_progress("batchwright_run_phase", "gauge", "What goes on; 1 for the phase of now.",
                lambda at: [({"phase": at.phase}, 1)]),
    of_run("batchwright_run_start_time_seconds", "gauge",
           "Unix time at which the process that tells this was started.",
           lambda look: look.started_at),
    of_progress("batchwright_rows", "gauge",
                "Committed rows by fate: ok, failed, rejected. A retry takes rows from failed.",
                _fates),
    of_progress("batchwright_rows_expected", "gauge",
                "Rows of the whole input; an estimate until all are numbered.",
                lambda at: at.rows_expected),
    of_progress("batchwright_rows_done_ratio", "gauge",
                "Share of the expected rows that are committed or finished.", _done_share),
    of_progress("batchwright_failed_rows", "gauge", "Failed rows by code.", _failures),
    of_progress("batchwright_truncated_rows", "gauge", "Answers that were cut by max_tokens.",
                lambda at: at.counts.truncated),
    of_progress("batchwright_committed_tokens_total", "counter",
                "Tokens of committed rows, by kind: prompt, completion.", _tokens),
    of_progress("batchwright_chunks", "gauge", "Chunks that the rows are cut into so far.",
                lambda at: at.counts.chunks),
    of_progress("batchwright_chunks_done", "gauge", "Chunks of which every row is committed.",
                lambda at: at.counts.chunks_done),
    of_progress("batchwright_eta_seconds", "gauge",
                "Time to the end at the rate of the last half minute; none while that is unknown.",
                lambda at: at.eta_s),
    of_run("batchwright_run_estimated_seconds", "gauge",
           "What the whole run takes by its pilot; none without one.",
           lambda look: look.estimated_s),
    of_run("batchwright_run_limit_seconds", "gauge",
           "What the run may take by plan.max_hours; none without it.",
           lambda look: look.limit_s),
)  # fmt: skip
