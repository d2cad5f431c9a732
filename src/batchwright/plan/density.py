"""How many engines share a card: more than one where the host, not the card, is the bottleneck.

A small model's steps end before the host has scheduled the next one, and each engine has a host
process of its own: on one H200 with vLLM 0.25.1, three engines of Qwen2.5-0.5B made 1.68 times as
many rows/s as one (10,000 rows each of about 150 tokens in and 8 out).
"""

from __future__ import annotations

from dataclasses import replace

from batchwright.core.plan import Memory, Plan, Prediction, Setting

MOST_ENGINES = 4
# Each engine is taken to keep three cores busy: its scheduler, its front-end, and our feeder.
CORES_PER_ENGINE = 3
# A prediction of less is not worth the memory; what is measured while running decides in the end.
LEAST_GAIN = 0.10
# One engine more must bring this much over fewer.
WORTH_ONE_MORE = 0.05
# Of the pool that the arithmetic leaves: engines that start side by side cannot measure it.
POOL_SHARE = 0.97


def share_cards(plan: Plan, cores: int, asked: int | None) -> Plan:
    """The plan with as many engines on each card as are worth it.

    Args:
        plan: with one engine to a card, or to several cards.
        cores: of the host, per card.
        asked: engines on each card that the user wants; None for as many as are worth it.
    """
    if asked is not None:
        return _shared(plan, asked, Setting(asked, "given by the user"))
    if plan.gpus != plan.replicas:
        return _shared(plan, 1, Setting(1, "an engine has several cards"))
    card_s, host_s = plan.prediction.card_s, plan.prediction.host_s
    fitting = [
        count
        for count in range(2, min(MOST_ENGINES, cores // CORES_PER_ENGINE) + 1)
        if pool_of_each(plan.memory, count) >= needed_pool(plan)
    ]
    seconds = {count: max(card_s, host_s / count) for count in [1, *fitting]}
    best = min(seconds.values())
    count = min(n for n, time in seconds.items() if time <= best * (1 + WORTH_ONE_MORE))
    gain = seconds[1] / max(1e-9, seconds[count]) - 1
    if gain < LEAST_GAIN:
        return _shared(plan, 1, Setting(1, _why_one(plan.prediction, cores)))
    why = (
        f"the host is the bottleneck of one engine (host {host_s:,.0f} s, card {card_s:,.0f} s): "
        f"{gain:+.0%} by prediction; each is kept only if it brings 5 % when it runs"
    )
    limit = f"{cores} cores of the host; each engine has its own copy of the weights"
    return _shared(plan, count, Setting(count, why, limit))


def _why_one(prediction: Prediction, cores: int) -> str:
    if prediction.host_s <= prediction.card_s * (1 + LEAST_GAIN):
        return "the card is the bottleneck, not the host"
    return f"{cores} cores and the memory of the card are enough for one engine only"


def _shared(plan: Plan, count: int, setting: Setting) -> Plan:
    """The plan with that many engines on each card, and its prediction."""
    settings = {**plan.settings, "engines_per_gpu": setting}
    if count == 1:
        return replace(plan, settings=settings)
    before = plan.prediction
    now = max(before.card_s, before.host_s / count)
    faster = max(before.card_s, before.host_s) / max(1e-9, now)
    prediction = replace(
        before,
        rows_per_s=before.rows_per_s * faster,
        prompt_tokens_per_s=before.prompt_tokens_per_s * faster,
        output_tokens_per_s=before.output_tokens_per_s * faster,
        hours=before.hours / faster,
        gpu_hours=before.gpu_hours / faster,
        usd=None if before.usd is None else before.usd / faster,
    )
    pool = int(pool_of_each(plan.memory, count) * POOL_SHARE)
    return replace(plan, settings=settings, prediction=prediction, pool_of_each=pool)


def pool_of_each(memory: Memory, count: int) -> int:
    """KV pool in bytes of each of `count` engines, each with its own weights and reserve."""
    own = memory.weights + memory.activations + memory.graphs + memory.reserve
    return memory.allowed // count - own


def needed_pool(plan: Plan) -> int:
    """KV cache in bytes that an engine should have: its longest row, and the rows that run."""
    memory = plan.memory
    tokens_per_row = memory.capacity_tokens / max(1, plan.max_concurrent_rows)
    rows = min(int(plan.value("max_num_seqs")), plan.max_concurrent_rows)
    return max(memory.longest_row, int(rows * tokens_per_row * memory.kv_per_token))
