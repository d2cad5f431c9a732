"""What other orders and other limits would do to vLLM's scheduler, by its simulation.

    python -m benchmarks.what_if orders --rows 8000 --rows 16000   # W7 on one card and on two: docs/how-to/order.md
    python -m benchmarks.what_if shares                            # jobs that do not fill all cards: decision 0036
    python -m benchmarks.what_if places                            # how many rows at a time: decision 0033

Nothing is measured here: `benchmarks.scheduler` says what its times rest on.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from benchmarks.scheduler import Engine, Row, Setup, Shape, run_all, run_knowing
from benchmarks.throughput.workloads import GPU, make_workload

from batchwright.engines.flow import ahead_of
from batchwright.plan.blend import deal
from batchwright.plan.chunks import rows_at_the_end, rows_in_chunk
from batchwright.profile.keys import longest_keys
from batchwright.rundir.chunk_queue import is_above_share

# Qwen2.5-7B on an H200.
CARD = Setup(kv_tokens=1_900_000, max_num_seqs=1024, watermark=0.05)
MOST = CARD.max_num_seqs + ahead_of(CARD.max_num_seqs)

# Of two engines that are started together one is up so much later.
APART_S = 1.0

SHAPES = (  # rows, prompt, median answer, pool
    (3_000, 174, 128, 40_960), (3_000, 128, 128, 100_000), (1_500, 300, 600, 100_000),
    (1_500, 1_000, 300, 100_000), (1_500, 1_500, 60, 100_000), (2_000, 100, 400, 100_000),
)  # fmt: skip
JOBS = (  # rows, prompt, mean answer, cards
    (1_000, 300, 600, 2), (2_000, 300, 128, 2), (2_000, 300, 600, 4), (2_000, 2_000, 100, 4),
    (2_000, 300, 2_000, 8), (10_000, 300, 600, 8), (50_000, 300, 128, 8),
)  # fmt: skip
SIGMAS = (0.0, 0.15, 0.3, 0.5)
PLACES = (0.85, 1.0, 1.1, 1.25)


def heavy_tail(rows: int) -> list[Row]:
    """W7: the longest rows last in the file, every length known as the row's cap."""
    found = make_workload("W7", GPU, scale=100 * rows // GPU.tail_rows).rows
    return [Row(n, 300, one.max_tokens, one.max_tokens) for n, one in enumerate(found)]


def longest_first(rows: Sequence[Row], cards: int) -> list[Row]:
    """As `run.order: longest` puts them."""
    keys = longest_keys(np.array([row.max_tokens for row in rows]), 0).to_pylist()
    ranked = np.array(sorted(range(len(rows)), key=keys.__getitem__))
    places = deal(np.arange(len(rows)), cards * MOST)
    return [rows[ranked[rank]] for rank in np.argsort(places)]


def chunks_of(rows: Sequence[Row], cards: int) -> deque[Sequence[Row]]:
    """As the product cuts them."""
    found: deque[Sequence[Row]] = deque()
    first = 0
    while first < len(rows):
        size = rows_at_the_end(rows_in_chunk(len(found), None), len(rows) - first, cards)
        found.append(rows[first : first + size])
        first += size
    return found


def share_out(rows: Sequence[Row], cards: int, *, greedy: bool = False) -> list[float]:
    """Seconds until each engine is done, from when the first is up; the others follow it one by one.

    Args:
        rows: in the order in which they run.
        cards: engines that take chunks from one queue.
        greedy: each takes all it has room for, not its share.
    """
    engines = [Engine(CARD) for _ in range(cards)]
    for card, engine in enumerate(engines):
        engine.seconds = card * APART_S
    left, held = chunks_of(rows, cards), [0] * cards
    while left or any(held):
        busy = [card for card in range(cards) if held[card] or left]
        card = min(busy, key=lambda one: (engines[one].seconds, held[one]))
        engine = engines[card]
        unfinished = sum(held) + sum(map(len, left))
        above = left and is_above_share(held[card], len(left[0]), unfinished, cards)
        if left and held[card] < MOST and (greedy or not above or not held[card]):
            taken = left.popleft()
            engine.waiting.extend(taken)
            held[card] += len(taken)
        else:
            held[card] -= len(engine.step())
    return [engine.seconds for engine in engines]


def orders(counts: Sequence[int]) -> Iterator[str]:
    """For each number of rows: both orders on one card and on two."""
    yield "| rows | order | one card, s | two cards, s |"
    yield "|---|---|---|---|"
    ways: dict[str, Callable[[Sequence[Row], int], Sequence[Row]]] = {
        "file": lambda rows, _: rows, "longest": longest_first,
    }  # fmt: skip
    for count in counts:
        for name, order in ways.items():
            one, two = (share_out(order(heavy_tail(count), cards), cards) for cards in (1, 2))
            both = " and ".join(f"{seconds:.1f}" for seconds in two)
            yield f"| {count:,} | {name} | {one[0]:.1f} | {both} |"


def shares() -> Iterator[str]:
    """Seconds of jobs that do not fill all cards, when each takes its share and all it has room for."""
    yield "| rows | prompt | mean answer | cards | share, s | greedy, s |"
    yield "|---|---|---|---|---|---|"
    for count, prompt, mean, cards in JOBS:
        scales = np.random.default_rng(0).lognormal(0, 0.4, count)
        lengths = [max(1, int(mean * scale)) for scale in scales]
        found = []
        for greedy in (False, True):
            rows = [Row(n, prompt, length, 4 * mean) for n, length in enumerate(lengths)]
            found.append(max(share_out(rows, cards, greedy=greedy)))
        yield f"| {count:,} | {prompt:,} | {mean:,} | {cards} | {found[0]:.1f} | {found[1]:.1f} |"


def places() -> Iterator[str]:
    """The rate with a limit, as a multiple of the rate without, for each spread of the answers."""
    yield f"| rows | prompt | answers, σ | pool | {' | '.join(f'{n}x' for n in PLACES)} | all known |"
    yield f"|{'---|' * (5 + len(PLACES))}"
    for rows, prompt, median, pool in SHAPES:
        for sigma in SIGMAS:
            shape = Shape(rows, prompt, median, sigma, 8192)
            free = run_all(Engine(Setup(pool, 1024, 0.05)), shape.make()).seconds
            cells = []
            for factor in PLACES:
                most = min(1024, max(1, int(pool / shape.resident() * factor)))
                limited = run_all(Engine(Setup(pool, most, 0.05)), shape.make())
                cells.append(f"{free / limited.seconds:.3f}")
            known = run_knowing(Engine(Setup(pool, 1024)), shape.make())
            cells.append(f"{free / known.seconds:.3f}")
            yield f"| {rows:,} | {prompt:,} | {median}, {sigma} | {pool:,} | {' | '.join(cells)} |"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("orders", "shares", "places"))
    parser.add_argument("--rows", type=int, action="append", help="of W7; 8,000 unless given")
    given = parser.parse_args()
    tables = {"orders": lambda: orders(given.rows or [8_000]), "shares": shares, "places": places}
    for line in tables[given.what]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
