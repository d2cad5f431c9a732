"""Whether grouped chunks really run faster than those in file order, by their receipts."""

from __future__ import annotations

from collections.abc import Iterable, Set
from statistics import median
from typing import Literal, NamedTuple

from batchwright.core.records import Receipt
from batchwright.plan.gate import work

# Grouped chunks are judged by threes; twice in a row below this share is too slow.
ROUND = 3
ROUNDS = 2
LEAST_RATIO = 0.98

# Chunks in file order that a comparison needs.
LEAST_IN_FILE_ORDER = 2


class Rates(NamedTuple):
    """Work per second of single chunks on one engine each, in the order of their numbers."""

    in_file_order: tuple[float, ...]
    grouped: tuple[float, ...]


def measure_rates(receipts: Iterable[Receipt], grouped: Set[int]) -> Rates:
    """The rate of each finished chunk.

    A worker reads a chunk while it still runs the one before, so a chunk's time counts from the
    end of that. The first chunk of a worker is left out: its engine was filling up.

    Args:
        receipts: of the first pass.
        grouped: numbers of the chunks with grouped rows.
    """
    whole = sorted(
        _whole_chunks(receipts), key=lambda one: (one.worker, one.finished_at, one.chunk)
    )
    found: list[tuple[int, float]] = []
    previous: Receipt | None = None
    for receipt in whole:
        if previous is not None and previous.worker == receipt.worker:
            seconds = receipt.seconds
            if previous.finished_at and receipt.finished_at:
                seconds = min(seconds, receipt.finished_at - previous.finished_at)
            done = work(receipt.prompt_tokens, receipt.completion_tokens)
            found.append((receipt.chunk, done / max(seconds, 1e-3)))
        previous = receipt
    found.sort()
    return Rates(
        tuple(rate for chunk, rate in found if chunk not in grouped),
        tuple(rate for chunk, rate in found if chunk in grouped),
    )


def _whole_chunks(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Chunks that were committed in one piece: the pieces of others say little about their time."""
    return [one for one in receipts if one.generation == 0 and one.sequence == 0 and one.last]


def judge(rates: Rates) -> Literal["wait", "keep", "back"]:
    """Whether grouped rows go on, go back to file order, or it is too early to say."""
    if len(rates.in_file_order) < LEAST_IN_FILE_ORDER:
        return "keep" if len(rates.grouped) >= ROUND else "wait"
    wanted = LEAST_RATIO * median(rates.in_file_order)
    for number in range(ROUNDS):
        chunks = rates.grouped[number * ROUND : (number + 1) * ROUND]
        if len(chunks) < ROUND:
            return "wait"
        if median(chunks) >= wanted:
            return "keep"
    return "back"
