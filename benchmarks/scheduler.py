"""How many rows should run at a time, tried on a simulation of vLLM's scheduler.

    python -m benchmarks.scheduler                 # the table of decision 0033, four minutes
    python -m benchmarks.scheduler --check RUN/results/part-0.jsonl --kv-tokens 16352 \
      --block-size 32 --max-num-seqs 96 --prompt 300 --max-num-batched-tokens 2048

The scheduler is simulated to the block: first come first served, a row comes in when its whole prompt
fits beside the reserve (`watermark`), the row that came in last is preempted, its blocks stay in the
prefix cache until they are taken. Times are a model's (`Costs`), so they are as good as that is;
steps and preemptions need none. `--check` runs the rows of a finished run in the order of its results
and prints steps and preemptions: compare them with the run's telemetry (`engine.steps`,
`engine.preemptions`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from batchwright.core.ports import EngineGauges
from batchwright.core.records import Request
from batchwright.engines.flow import Flow, ahead_of

LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step: in all, for each token in the cache that is read, for each computed anew.

    The defaults are Qwen2.5-7B on one H200: with them 300 rows of W5 take 64.5 s as vLLM runs them;
    65.9 s were measured.
    """

    step_s: float = 0.005
    cached_token_s: float = 57_344 / (4.8e12 * 0.7)
    new_token_s: float = 2 * 7.6e9 / (989e12 * 0.6)


@dataclass(eq=False, slots=True)
class Row:
    """A row, and how far it is."""

    number: int
    prompt: int
    output: int
    max_tokens: int
    made: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.prompt + self.made


class Cache:
    """Blocks of the KV pool; those that are free keep what was in them until they are taken."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = OrderedDict.fromkeys(range(num_blocks))
        self._content: dict[int, tuple[int, int]] = {}
        self._place: dict[tuple[int, int], int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def use(self) -> float:
        """Share of the blocks that rows hold."""
        return 1 - len(self._free) / self.num_blocks

    def missing(self, row: Row, tokens: int) -> int:
        """Blocks that the row needs to hold so many tokens, besides its own."""
        return math.ceil(tokens / self.block_size) - len(row.blocks)

    def take(self, row: Row, count: int) -> None:
        """Give the row blocks, those first that have been free for longest."""
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            old = self._content.pop(block, None)
            if old is not None:
                self._place.pop(old, None)
            key = (row.number, len(row.blocks))
            row.blocks.append(block)
            self._content[block] = key
            self._place[key] = block

    def free(self, row: Row) -> None:
        """Take the row's blocks back, its last first."""
        for block in reversed(row.blocks):
            self._free[block] = None
        row.blocks = []

    def restore(self, row: Row) -> None:
        """Give the row what is still there of its beginning; its last token is computed anew."""
        for number in range((row.tokens - 1) // self.block_size):
            block = self._place.get((row.number, number))
            if block is None or block not in self._free:
                break
            del self._free[block]
            row.blocks.append(block)
        row.computed = len(row.blocks) * self.block_size


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine is started with."""

    kv_tokens: int
    max_num_seqs: int
    watermark: float = 0.0
    max_num_batched_tokens: int = 16_384
    block_size: int = 16


class Engine:
    """vLLM's scheduler without a model."""

    def __init__(self, setup: Setup, costs: Costs = Costs()) -> None:
        self.setup = setup
        self.costs = costs
        self.cache = Cache(setup.kv_tokens // setup.block_size, setup.block_size)
        self.reserve = int(setup.watermark * self.cache.num_blocks)
        self.waiting: deque[Row] = deque()
        self.running: list[Row] = []
        self.steps = self.preemptions = self.recomputed = 0
        self.seconds = 0.0
        self.use = 0.0  # summed over the steps

    def gauges(self) -> EngineGauges:
        """As vLLM tells them."""
        return EngineGauges(
            running=len(self.running), waiting=len(self.waiting), kv_use=self.cache.use,
            preemptions=self.preemptions, steps=self.steps,
        )  # fmt: skip

    def step(self) -> list[Row]:
        """Schedule, compute, and return the rows that are done."""
        before = self.preemptions
        work = self._go_on()
        if self.preemptions == before:
            work += self._let_in(self.setup.max_num_batched_tokens - sum(n for _, n in work))
        done = [row for row, tokens in work if self._compute(row, tokens)]
        for row in done:
            self.running.remove(row)
            self.cache.free(row)
        new = sum(tokens for _, tokens in work if tokens > 1)
        held = sum(row.computed for row, _ in work)
        costs = self.costs
        self.seconds += costs.step_s + held * costs.cached_token_s + new * costs.new_token_s
        self.steps += 1
        self.use += self.cache.use
        return done

    def _go_on(self) -> list[tuple[Row, int]]:
        """Running rows first, in the order in which they came; the last ones give way."""
        budget = self.setup.max_num_batched_tokens
        work: list[tuple[Row, int]] = []
        while len(work) < len(self.running):
            row = self.running[len(work)]
            tokens = min(budget, row.tokens - row.computed)
            missing = self.cache.missing(row, row.computed + tokens)
            while missing > self.cache.num_free and row in self.running:
                self._preempt(self.running.pop())
            if len(self.running) > len(work):
                self.cache.take(row, max(0, missing))
                work.append((row, tokens))
                budget -= tokens
        return work

    def _preempt(self, row: Row) -> None:
        self.cache.free(row)
        row.computed = 0
        self.waiting.appendleft(row)
        self.preemptions += 1

    def _let_in(self, budget: int) -> list[tuple[Row, int]]:
        work: list[tuple[Row, int]] = []
        while self.waiting and len(self.running) < self.setup.max_num_seqs and budget > 0:
            row = self.waiting[0]
            whole = math.ceil(row.tokens / self.setup.block_size)
            if whole > self.cache.num_free - self.reserve:
                break
            self.running.append(self.waiting.popleft())
            self.cache.restore(row)
            tokens = min(budget, row.tokens - row.computed)
            if row.made:
                self.recomputed += row.tokens - row.computed
            self.cache.take(row, max(0, self.cache.missing(row, row.computed + tokens)))
            work.append((row, tokens))
            budget -= tokens
        return work

    @staticmethod
    def _compute(row: Row, tokens: int) -> bool:
        row.computed += tokens
        if row.computed < row.tokens:
            return False
        row.made += 1
        return row.made >= row.output


def run_all(engine: Engine, rows: Sequence[Row]) -> Engine:
    """As `LLM.generate` does: the engine has every row from the start."""
    engine.waiting.extend(rows)
    left = len(rows)
    while left:
        left -= len(engine.step())
    return engine


def run_fed(engine: Engine, rows: Sequence[Row]) -> Engine:
    """As batchwright does: `engines.flow` says how many rows the engine has."""
    most = engine.setup.max_num_seqs
    flow = Flow(most, most + ahead_of(most), engine.setup.kv_tokens)
    asked = [Request(row.number, [0] * row.prompt, row.max_tokens, "{}") for row in rows[:most]]
    flow.begin(asked)
    left, held, wanted, looked_at = deque(rows), 0, 0, -math.inf
    while left or held:
        if engine.seconds - looked_at >= LOOK_EVERY_S:
            looked_at = engine.seconds
            wanted = flow.look(engine.gauges())
        while left and held < wanted:
            engine.waiting.append(left.popleft())
            held += 1
        held -= len(engine.step())
    return engine


def run_knowing(engine: Engine, rows: Sequence[Row]) -> Engine:
    """By a scheduler that knows every length: a row comes in if nobody will ever have to give way."""
    left, held, asked_at = deque(rows), 0, -math.inf
    while left or held:
        while left and engine.seconds >= asked_at + LOOK_EVERY_S:
            together = [*engine.running, *engine.waiting, left[0]]
            rounded = len(together) * engine.setup.block_size  # a row's last block is partly empty
            if peak_tokens(together) + rounded > engine.setup.kv_tokens:
                asked_at = engine.seconds
                break
            engine.waiting.append(left.popleft())
            held += 1
        held -= len(engine.step())
    return engine


def peak_tokens(rows: Sequence[Row]) -> int:
    """The most that these rows will hold together, each for as long as its answer takes."""
    ends = sorted((row.output - row.made, row.tokens) for row in rows)
    alive, peak = len(ends), 0
    rest = sum(tokens for _, tokens in ends)
    for steps, tokens in ends:
        peak = max(peak, rest + alive * steps)
        rest -= tokens
        alive -= 1
    return peak


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows with lognormal answers."""

    rows: int
    prompt: int
    median: float
    sigma: float
    longest: int

    def make(self, seed: int = 0) -> list[Row]:
        """The same rows each time."""
        rng = random.Random(seed)
        answers = (rng.lognormvariate(math.log(self.median), self.sigma) for _ in range(self.rows))
        lengths = [max(1, min(self.longest, round(answer))) for answer in answers]
        return [Row(n, self.prompt, output, self.longest) for n, output in enumerate(lengths)]

    def resident(self) -> float:
        """Mean tokens of a running row: a long answer is met more often than a short one."""
        outputs = [row.output for row in self.make()]
        return self.prompt + sum(n * n for n in outputs) / 2 / sum(outputs)


# Rows, a pool, and vLLM's own limit of rows for it.
CASES = (
    (Shape(300, 300, 900, 0.9, 8192), 100_000, 256),
    (Shape(600, 300, 900, 0.9, 8192), 100_000, 256),
    (Shape(2000, 300, 900, 0.9, 8192), 100_000, 256),
    (Shape(400, 300, 900, 0.9, 8192), 30_000, 256),
    (Shape(2000, 300, 900, 0.9, 8192), 400_000, 1024),
    (Shape(2000, 500, 250, 0.8, 2000), 100_000, 256),
    (Shape(2000, 1000, 300, 0.6, 2000), 100_000, 256),
    (Shape(3000, 1500, 60, 0.5, 400), 100_000, 256),
    (Shape(2000, 100, 400, 0.3, 2000), 100_000, 1024),  # nearly of one length
)
WATERMARKS = (0.02, 0.03, 0.04, 0.05, 0.08)
PLACES = (0.88, 1.0, 1.25, 1.5, 3.0)


def table_lines() -> Iterator[str]:
    """Per case: vLLM as it comes, with reserves, with all known, and fed, with several limits."""
    head = ["rows", "prompt", "answers", "pool", "vLLM s", *(f"reserve {n}" for n in WATERMARKS),
            "all known", *(f"fed, {n}x" for n in PLACES)]  # fmt: skip
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for shape, kv_tokens, most in CASES:
        plain = run_all(Engine(Setup(kv_tokens, most)), shape.make())
        cells = [f"{shape.rows:,}", f"{shape.prompt:,}", f"{shape.median:g}, σ {shape.sigma}",
                 f"{kv_tokens:,}", f"{plain.seconds:.1f} ({plain.preemptions:,})"]  # fmt: skip
        for watermark in WATERMARKS:
            one = run_all(Engine(Setup(kv_tokens, most, watermark)), shape.make())
            cells.append(f"{plain.seconds / one.seconds:.3f} ({one.preemptions:,})")
        known = run_knowing(Engine(Setup(kv_tokens, most)), shape.make())
        cells.append(f"{plain.seconds / known.seconds:.3f} ({known.preemptions:,})")
        for places in PLACES:
            rows = min(1024, round(places * kv_tokens / shape.resident()))
            one = run_fed(Engine(Setup(kv_tokens, rows, 0.05)), shape.make())
            cells.append(f"{plain.seconds / one.seconds:.3f} ({one.preemptions:,})")
        yield f"| {' | '.join(cells)} |"


def rows_of_results(path: Path, prompt: int) -> list[Row]:
    """The rows of a finished run, by their counts of tokens."""
    lengths = [json.loads(line)["completion_tokens"] for line in path.read_text().splitlines()]
    longest = max(lengths)
    return [Row(n, prompt, length, longest) for n, length in enumerate(lengths)]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=Path, help="results of a run, as JSON lines")
    parser.add_argument("--kv-tokens", type=int, default=100_000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=16_384)
    parser.add_argument("--prompt", type=int, default=300)
    given = parser.parse_args()
    if given.check is None:
        for line in table_lines():
            print(line, flush=True)
        return
    for watermark in (0.0, 0.05):
        setup = Setup(given.kv_tokens, given.max_num_seqs, watermark,
                      given.max_num_batched_tokens, given.block_size)  # fmt: skip
        rows = rows_of_results(given.check, given.prompt)
        found = run_all(Engine(setup), rows)
        print(f"watermark {watermark}: {found.steps} steps, {found.preemptions} preemptions")


if __name__ == "__main__":
    main()
