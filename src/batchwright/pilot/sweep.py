"""Which settings a sweep tries, when it stops, and which of them it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from batchwright.core.sweep import (
    Change,
    Reading,
    RememberedSweep,
    SweepKey,
    SweepPoint,
    SweepReport,
    bucket,
)

# A KV cache that is fuller than this has no room for the rows that wait: vLLM keeps a reserve of 5 %.
FULL = 0.93
# Two runs of the same settings differ by as much: less is no gain.
NOISE = 0.02

ROWS_STEP = 16
MOST_BATCHED_TOKENS = 32_768
FEWEST_BATCHED_TOKENS = 2_048
MOST_ENGINES = 3
DEFAULT_UTILIZATION = 0.92
# vLLM's own list of graphs ends here at the latest.
DEFAULT_LARGEST_GRAPH = 512


def values_around(planned: int, most: int) -> tuple[int, ...]:
    """Values of `max_num_seqs` to try, upward: an eighth of the planned one up to twice as many.

    Args:
        planned: the run's own value.
        most: that the memory, a step and the job allow.
    """
    below = [_rounded(planned // part) for part in (8, 4, 2)]
    return tuple(sorted({min(most, rows) for rows in (*below, planned, 2 * planned)}))


def _rounded(rows: int) -> int:
    """To a multiple of 16: graphs are captured for these. Small counts stay as they are."""
    return max(1, rows) if rows <= ROWS_STEP else round(rows / ROWS_STEP) * ROWS_STEP


def point_of(
    settings: Mapping[str, Any], reading: Reading, tokens_per_row: float, start_up_s: float
) -> SweepPoint:
    """A reading as a point; `tokens_per_row` are those that the engine computes for a row."""
    tokens_per_s = reading.prompt_tokens_per_s + reading.output_tokens_per_s
    return SweepPoint(
        settings=settings,
        rows_per_s=tokens_per_s / max(1.0, tokens_per_row),
        prompt_tokens_per_s=reading.prompt_tokens_per_s,
        output_tokens_per_s=reading.output_tokens_per_s,
        kv_use=reading.kv_use,
        preemptions=reading.preemptions,
        seconds=reading.seconds,
        start_up_s=start_up_s,
    )


def is_overfull(point: SweepPoint) -> bool:
    """Whether more rows than these have no room: the upward search ends."""
    return point.kv_use > FULL or point.preemptions > 0


def is_gain(new: SweepPoint, old: SweepPoint) -> bool:
    """Whether a setting is worth keeping against the simpler one.

    Rows that are thrown out of the cache are in the rate: vLLM keeps a reserve, so they are young
    and cost little (decision 0033).
    """
    return new.tokens_per_s >= old.tokens_per_s * (1 + NOISE)


def smallest_of_the_fastest(points: Sequence[SweepPoint]) -> int:
    """Index of the first point that the fastest beats by no more than noise.

    Args:
        points: by ascending `max_num_seqs`; not empty.
    """
    fastest = max(points, key=lambda point: point.tokens_per_s)
    return next(index for index, point in enumerate(points) if not is_gain(fastest, point))


def changes_to_try(
    kind: str, options: Mapping[str, Any], rows: int, *, on_gpu: bool, host_bound: bool
) -> tuple[Change, ...]:
    """Settings that need an engine of their own, those with the largest expected gain first.

    Several engines on one card made 1.68 times the rows of one with a 0.5B model, graphs up to the
    rows that run 1.33 times with a 7B model (one H200, vLLM 0.25.1); the others bring little.

    Args:
        kind: of the engine.
        options: of the run's engine.
        rows: the `max_num_seqs` that is best so far.
        on_gpu: whether the engine has a card, for graphs and block sizes.
        host_bound: whether the host and not the card is expected to limit the rate.
    """
    found: list[Change] = []
    if host_bound and int(options.get("tensor_parallel_size", 1)) == 1:
        found += [_engines(kind, options, count) for count in range(2, MOST_ENGINES + 1)]
    if kind != "vllm":
        return tuple(found)
    if on_gpu:
        found += _graphs(options, rows)
    found += _batched_tokens(options, rows, on_gpu=on_gpu)
    if on_gpu and options.get("block_size") in {None, 16}:
        found.append(Change("block_size", 32, {"block_size": 32}))
    return tuple(found)


def _engines(kind: str, options: Mapping[str, Any], count: int) -> Change:
    """So many engines on one card, each with its share of the memory."""
    changed: dict[str, Any] = {}
    if kind == "vllm":
        share = float(options.get("gpu_memory_utilization", DEFAULT_UTILIZATION))
        changed["gpu_memory_utilization"] = int(100 * share / count) / 100
    for name in ("kv_cache_memory_bytes", "kv_tokens"):
        if options.get(name):
            changed[name] = int(options[name]) // count
    return Change("engines_per_gpu", count, changed, count)


def _graphs(options: Mapping[str, Any], rows: int) -> list[Change]:
    """Graphs up to the rows that run, where the engine's own list ends before."""
    known = any(options.get(name) for name in ("cudagraph_capture_sizes", "enforce_eager"))
    largest = int(options.get("max_cudagraph_capture_size") or DEFAULT_LARGEST_GRAPH)
    if known or rows <= largest:
        return []
    name = "max_cudagraph_capture_size"
    return [Change(name, rows, {name: rows})]


def _batched_tokens(options: Mapping[str, Any], rows: int, *, on_gpu: bool) -> list[Change]:
    name = "max_num_batched_tokens"
    own = int(options.get(name) or (8_192 if on_gpu else 2_048))
    fewest = max(rows, FEWEST_BATCHED_TOKENS if on_gpu else 512)
    values = (min(2 * own, MOST_BATCHED_TOKENS), own // 2)
    return [Change(name, value, {name: value}) for value in values if fewest <= value != own]


def to_remember(
    key: SweepKey,
    report: SweepReport,
    output_mean: float,
    measured_on: str,
    options: Mapping[str, Any],
) -> RememberedSweep:
    """A finished sweep as it is kept.

    Args:
        key: of the job.
        report: of the sweep.
        output_mean: output tokens of a row.
        measured_on: date.
        options: of the run's own engine, which the sweep was made around.
    """
    reference = report.points[report.reference]
    wide, deep = (int(options.get(f"{name}_parallel_size", 1)) for name in ("tensor", "pipeline"))
    return RememberedSweep(
        key=key,
        output_mean=bucket(output_mean),
        measured_on=measured_on,
        engine=report.engine,
        gpus=wide * deep,
        settings=dict(report.best.settings),
        reference={**options, **reference.settings},
        worth=report.worth(report.best),
        points=[asdict(point) for point in report.points],
    )
