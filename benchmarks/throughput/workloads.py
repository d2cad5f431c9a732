"""The workloads: each a pure function from sizes and a seed to rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from benchmarks.throughput.lengths import Lengths
from benchmarks.throughput.records import Row, Segment, Workload


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the workloads are. `kv_tokens` is the pool of those that are bound by it."""

    uniform_rows: int
    uniform_prompt: int
    uniform_output: int
    long_rows: int
    system_rows: int
    system_prompt: int
    document_tokens: int
    question_tokens: int
    questions: int
    document_output: int
    tree: tuple[int, int, int, int]
    decode_rows: int
    decode_median: float
    mixed_rows: int
    tail_rows: int
    tail_median: float
    longest_output: int
    embed_rows: int
    kv_tokens: int


# A card of 24 GB has room for about 100,000 tokens beside a model of 7 billion parameters.
GPU = Sizes(
    uniform_rows=8_000, uniform_prompt=128, uniform_output=128, long_rows=4_000,
    system_rows=20_000, system_prompt=512,
    document_tokens=2_000, question_tokens=200, questions=8, document_output=100,
    tree=(256, 16, 16, 1_024), decode_rows=600, decode_median=900.0, mixed_rows=1_000,
    tail_rows=2_000, tail_median=150.0, longest_output=8_192, embed_rows=60_000,
    kv_tokens=100_000,
)  # fmt: skip

# Two cores and a small model: blocks of 128 tokens, so shared prefixes are several of them long.
CPU = Sizes(
    uniform_rows=384, uniform_prompt=128, uniform_output=32, long_rows=96,
    system_rows=512, system_prompt=256,
    document_tokens=256, question_tokens=32, questions=8, document_output=4,
    tree=(256, 4, 4, 256), decode_rows=96, decode_median=60.0, mixed_rows=48,
    tail_rows=256, tail_median=16.0, longest_output=400, embed_rows=2_000,
    kv_tokens=16_384,
)  # fmt: skip


def uniform(rows: int, prompt: int, output: int) -> list[Row]:
    """Rows that share nothing and are all alike."""
    return [Row(f"r{n}", (Segment(n, prompt),), output) for n in range(rows)]


def system_prompt(rows: int, shared: int, own: int, output: int) -> list[Row]:
    """One prefix for all rows."""
    return [Row(f"r{n}", (Segment(-1, shared), Segment(n, own)), output) for n in range(rows)]


def documents(
    groups: int, document: int, questions: int, question: int, output: int, rng: random.Random
) -> list[Row]:
    """Questions on documents, shuffled: the document stands before each question."""
    rows = [
        Row(f"d{group}q{n}", (Segment(-1 - group, document), Segment(group * questions + n, question)), output)
        for group in range(groups)
        for n in range(questions)
    ]  # fmt: skip
    rng.shuffle(rows)
    return rows


def tree(
    root: int, branches: int, leaves: int, tokens: int, questions: int, output: int,
    rng: random.Random,
) -> list[Row]:  # fmt: skip
    """Three levels of shared text: one root, branches, documents; then questions, shuffled."""
    keys = count(-2, -1)
    rows: list[Row] = []
    for branch in range(branches):
        bough = Segment(next(keys), tokens)
        for leaf in range(leaves):
            document = Segment(next(keys), tokens)
            for n in range(questions):
                own = Segment(len(rows), 64)
                name = f"b{branch}d{leaf}q{n}"
                rows.append(Row(name, (Segment(-1, root), bough, document, own), output))
    rng.shuffle(rows)
    return rows


def lognormal(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    """A whole number, most of them near the median, a few far above."""
    return max(low, min(high, round(rng.lognormvariate(math.log(median), sigma))))


def decode_heavy(
    rows: int, median: float, sigma: float, longest: int, rng: random.Random
) -> list[Row]:
    """Prompts of 300 tokens with answers that are mostly longer, and very different."""
    return [
        Row(f"r{n}", (Segment(n, 300),), lognormal(rng, median, sigma, 1, longest))
        for n in range(rows)
    ]


def bimodal(rows: int, order: str, rng: random.Random) -> list[Row]:
    """Half long prompts with short answers, half the other way round, in one of three orders."""
    prefill = [Row(f"p{n}", (Segment(n, 3_000),), 4) for n in range(rows)]
    decode = [Row(f"d{n}", (Segment(rows + n, 200),), 600) for n in range(rows)]
    if order == "prefill-first":
        return prefill + decode
    if order == "decode-first":
        return decode + prefill
    both = prefill + decode
    rng.shuffle(both)
    return both


def texts_to_embed(rows: int, rng: random.Random) -> list[Row]:
    """Short texts, a few long ones; no answer."""
    return [Row(f"r{n}", (Segment(n, lognormal(rng, 64, 0.8, 8, 512)),), 0) for n in range(rows)]


Maker = Callable[[Sizes, int, random.Random], list[Row]]


def _documents(factor: float) -> Maker:
    def make(sizes: Sizes, scale: int, rng: random.Random) -> list[Row]:
        groups = max(2, round(factor * scale * sizes.kv_tokens / 100 / sizes.document_tokens))
        return documents(
            groups, sizes.document_tokens, sizes.questions, sizes.question_tokens,
            sizes.document_output, rng,
        )  # fmt: skip

    return make


DECODE_SIGMA = 0.9
TAIL_SIGMA = 1.1


def _part(rows: int, scale: int) -> int:
    return max(2, rows * scale // 100)


@dataclass(frozen=True, slots=True)
class Kind:
    """A workload by name: how it is made, whether the KV pool is cut for it, who knows its lengths."""

    make: Maker
    purpose: str
    cut_pool: bool = False
    task: str = "generate"
    hidden: Callable[[Sizes, int], Lengths] | None = None
    longest_last: bool = False


# Sizes of single workloads that the two presets share are written here.
KINDS: dict[str, Kind] = {
    "W1-short": Kind(
        lambda s, k, _: uniform(_part(s.uniform_rows, k), s.uniform_prompt, s.uniform_output),
        "uniform rows: parity, flags, the host's ceiling",
    ),
    "W1-long": Kind(
        lambda s, k, _: uniform(_part(s.long_rows, k), 1_024, s.uniform_output),
        "uniform rows with long prompts",
    ),
    "W2": Kind(
        lambda s, k, _: system_prompt(_part(s.system_rows, k), s.system_prompt, 192, 4),
        "one system prompt, short answers: how fast rows get in",
    ),
    "W3-0.3": Kind(_documents(0.3), "documents that fit into the cache: order must not harm", True),
    "W3-1.2": Kind(_documents(1.2), "documents that just do not fit", True),
    "W3-5": Kind(_documents(5), "documents of five times the cache", True),
    "W4": Kind(
        lambda s, k, r: tree(
            s.tree[0], s.tree[1], _part(s.tree[2], k), s.tree[3], 4, s.document_output, r
        ),
        "a tree of shared prefixes",
        True,
    ),
    "W5": Kind(
        lambda s, k, r: decode_heavy(
            _part(s.decode_rows, k), s.decode_median, DECODE_SIGMA, s.longest_output, r
        ),
        "long answers, bound by the KV pool (lengths known as max_tokens)",
        True,
    ),
    "W5-hidden": Kind(
        lambda s, k, _: uniform(_part(s.decode_rows, k), 300, s.longest_output),
        "long answers, bound by the KV pool (lengths known to nobody)",
        True,
        hidden=lambda s, seed: Lengths(s.decode_median, DECODE_SIGMA, s.longest_output, seed),
    ),
    "W6-shuffled": Kind(lambda s, k, r: bimodal(_part(s.mixed_rows, k), "shuffled", r), "two kinds of rows, mixed"),
    "W6-prefill-first": Kind(
        lambda s, k, r: bimodal(_part(s.mixed_rows, k), "prefill-first", r), "long prompts first"
    ),
    "W6-decode-first": Kind(
        lambda s, k, r: bimodal(_part(s.mixed_rows, k), "decode-first", r), "long answers first"
    ),
    "W7": Kind(
        lambda s, k, r: sorted(
            decode_heavy(_part(s.tail_rows, k), s.tail_median, TAIL_SIGMA, s.longest_output, r),
            key=lambda row: row.max_tokens,
        ),
        "a heavy tail, longest rows last",
    ),
    "W7-hidden": Kind(
        lambda s, k, _: uniform(_part(s.tail_rows, k), 300, s.longest_output),
        "a heavy tail that nobody knows of, longest rows last",
        hidden=lambda s, seed: Lengths(s.tail_median, TAIL_SIGMA, s.longest_output, seed),
        longest_last=True,
    ),
    "W8": Kind(
        lambda s, k, r: texts_to_embed(_part(s.embed_rows, k), r), "embeddings", task="embed"
    ),
}  # fmt: skip


def make_workload(
    name: str, sizes: Sizes, *, scale: int = 100, seed: int = 0, kv_tokens: int | None = None
) -> Workload:
    """The rows of a workload, always the same for the same arguments.

    Where lengths are hidden, its rows have the cap until their prompts are known: see `reveal`.

    Args:
        name: a key of `KINDS`.
        sizes: of this kind of machine.
        scale: percent of the usual number of rows.
        seed: of everything that is random.
        kv_tokens: cut the KV pool to this, whatever the workload asks for.
    """
    kind = KINDS[name]
    rows = kind.make(sizes, scale, random.Random(f"{seed}/{name}"))
    pool = kv_tokens or (sizes.kv_tokens if kind.cut_pool else None)
    hidden = kind.hidden(sizes, seed) if kind.hidden else None
    return Workload(name, tuple(rows), pool, kind.task, kind.purpose, hidden)


def reveal(workload: Workload, prompts: Mapping[str, Sequence[int]]) -> Workload:
    """The workload with each row's true length, for us to check; no system is told.

    Args:
        workload: whose lengths are hidden, or not: then nothing changes.
        prompts: token ids by row id.
    """
    law = workload.hidden
    if law is None:
        return workload
    rows = [row._replace(max_tokens=law.of(prompts[row.id])) for row in workload.rows]
    if KINDS[workload.name].longest_last:
        rows.sort(key=lambda row: row.max_tokens)
    return replace(workload, rows=tuple(rows))


def names_of(text: str) -> Iterator[str]:
    """`W1,W3` to names of workloads; one that is no workload itself means all its variants.

    Raises:
        ValueError: there is no such workload.
    """
    for wanted in text.split(","):
        variants = [name for name in KINDS if name.startswith(f"{wanted}-")]
        found = [wanted] if wanted in KINDS else variants
        if not found:
            raise ValueError(f"no workload {wanted}; there are {', '.join(KINDS)}")
        yield from found
