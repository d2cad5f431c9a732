"""The hardware's limit for a workload, by the plan's own arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.throughput.records import Workload

from batchwright.core.plan import GpuFacts, ModelFacts
from batchwright.core.workload import LengthHistogram
from batchwright.core.workload import Workload as Work
from batchwright.plan.limit import count_rows_in_cache, find_limit, measure_work
from batchwright.plan.memory import Sizes, kv_per_token_and_gpu, plan_memory
from batchwright.plan.model_facts import model_facts


def read_facts(model: Path, dtype: str) -> ModelFacts:
    """The model's facts from its config.json."""
    return model_facts(
        json.loads((model / "config.json").read_text()), weight_bytes=None, dtype=dtype
    )


def is_encoder(model: Path) -> bool:
    """Whether it only makes vectors: then there is no KV pool, and no limit is computed."""
    return json.loads((model / "config.json").read_text())["model_type"] in ("bert", "roberta")


def kv_bytes(facts: ModelFacts, tokens: int) -> int:
    """Bytes of a KV pool for so many tokens on one card."""
    return tokens * kv_per_token_and_gpu(facts, Sizes(1, 1, 1))


def limit_s(facts: ModelFacts, gpu: GpuFacts, workload: Workload, longest: int) -> float:
    """L1: the least seconds that one card could take, if every shared prefix is computed once.

    Args:
        facts: of the model.
        gpu: the card.
        workload: whose rows share what they share, whatever a system makes of it.
        longest: the context that every system was given.
    """
    rows = workload.rows
    work = Work(
        prompts=LengthHistogram.of(row.prompt_tokens for row in rows),
        outputs=LengthHistogram.of(row.max_tokens for row in rows),
        max_tokens=max(row.max_tokens for row in rows),
        cached_share=workload.shareable_tokens() / workload.prompt_tokens,
    )
    pool = kv_bytes(facts, workload.kv_tokens) if workload.kv_tokens else None
    sizes = Sizes(
        max_model_len=longest,
        max_num_seqs=1024,
        max_num_batched_tokens=16384,
        kv_cache_memory_bytes=pool,
    )
    memory = plan_memory(facts, gpu, sizes)
    held = count_rows_in_cache(facts, measure_work(facts, work), sizes, memory.blocks)
    return find_limit(facts, gpu, work, sizes=sizes, rows_in_cache=held).l1_s
