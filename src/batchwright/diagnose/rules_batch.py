"""Rules about how many rows run at a time, and what keeps them from being more."""

from __future__ import annotations

from batchwright.core.findings import Change, Finding, Weight
from batchwright.core.losses import PREEMPTED_AT
from batchwright.diagnose.evidence import Evidence, PlanEvidence, WorkerEvidence
from batchwright.diagnose.figures import over_time, percent
from batchwright.diagnose.rules_host import (
    MOSTLY_FULL,
    NEARLY_FULL,
    host_bound_workers,
    more_memory,
    working,
)
from batchwright.diagnose.window import OUTPUT_WEIGHT

# Below this use of the KV cache it has room for twice the rows.
HALF_EMPTY = 0.5

# Rows are not raised beyond what leaves the cache this full, nor by more than a factor of 4 at once:
# answers of later rows may be longer.
TARGET_KV_USE = 0.85
MOST_AT_ONCE = 4.0

# Products take as long as the reading of weights at 150 to 300 rows on the cards that engines run on:
# with so many rows and no figures, nothing says that more would help.
ROWS_OF_RIDGE = 128

# While rows wait for the KV cache, fewer run than there are places.
LIMITED = 0.9

# A change that is worth less is not worth a restart.
LEAST_GAIN = 0.05

# What batchwright starts vLLM with: `engines.vllm_setup.KV_WATERMARK`.
USUAL_WATERMARK = 0.05

# Recomputed work below this share is what a full cache costs anyway: to let in fewer rows costs more.
LEAST_RECOMPUTED = 0.05
LEAST_PREEMPTIONS = 20

# Peaks that kernels reach in practice: see `plan.speed.REACH`.
COMPUTE_REACH, BANDWIDTH_REACH = 0.58, 0.82
STEP_S = 0.2e-3


def small_batch(evidence: Evidence) -> Finding | None:
    """All slots run, and the KV cache is half empty: more rows could run in the same steps."""
    found = [one for one in working(evidence) if _is_small(one)]
    if not found or host_bound_workers(evidence):
        return None
    worker = max(found, key=lambda one: one.seconds)
    to = _more_rows(worker, evidence.plan)
    gain = batch_gain(worker, to, evidence)
    if gain is None and worker.running >= ROWS_OF_RIDGE:
        return None
    if gain is not None and gain < LEAST_GAIN:
        return None
    return Finding(
        code="small_batch",
        title="Too few rows run at the same time",
        weight=Weight.LOSS if gain is not None else Weight.HINT,
        evidence=(
            ("running", f"{worker.running:,.0f} of {worker.max_num_seqs:,} slots"),
            ("KV cache in use", f"{percent(worker.kv_use)}, {percent(worker.kv_peak)} at its peak"),
            *_step_figures(worker, evidence),
        ),
        cause="Every step reads all weights, however few rows share it; with all slots taken and "
        "half of the cache empty, max_num_seqs is what limits the batch.",
        remedy="Let more rows run at the same time.",
        changes=(Change("engine.options.max_num_seqs", f"{worker.max_num_seqs}", f"{to}"),),
        gain=gain,
    )


def _is_small(worker: WorkerEvidence) -> bool:
    return worker.full >= MOSTLY_FULL and 0 < worker.kv_use < HALF_EMPTY


def _more_rows(worker: WorkerEvidence, plan: PlanEvidence | None) -> int:
    """Rows that the cache has room for, but no more than bring something."""
    room = TARGET_KV_USE / max(worker.kv_peak, worker.kv_use)
    wanted = worker.max_num_seqs * min(room, MOST_AT_ONCE)
    if plan is not None and plan.active_parameters:
        per_row = 2 * plan.active_parameters / (plan.flops * COMPUTE_REACH)
        wanted = min(wanted, max(1.2 * _weights_s(plan) / per_row, worker.max_num_seqs * 1.25))
    step = 8 if wanted < 128 else 32
    return max(worker.max_num_seqs + 1, int(wanted) // step * step)


def batch_gain(worker: WorkerEvidence, to: int, evidence: Evidence) -> float | None:
    """Share of the time that `to` rows at a time save.

    A step costs a part that is the same for any number of rows (weights, launches) and one for
    each row; n times the rows pay the first part only once. By the plan's figures where there are
    some, else by the steps that were seen; None if all were alike.
    """
    fixed = _fixed_by_plan(worker, evidence) if evidence.plan else worker.fixed_step
    if fixed is None:
        return None
    gain = fixed * (1 - worker.running / to)
    return gain * _decode_share(worker, evidence.plan)


def _fixed_by_plan(worker: WorkerEvidence, evidence: Evidence) -> float:
    plan = evidence.plan
    assert plan is not None
    context = evidence.data.mean_prompt + 0.5 * _mean_output(worker)
    cache = worker.running * context * plan.kv_bytes_per_token / plan.cards
    cache_s = cache / (plan.bandwidth_bytes_s * BANDWIDTH_REACH)
    products = 2 * plan.active_parameters * worker.running / plan.cards
    products_s = products / (plan.flops * COMPUTE_REACH)
    weights_s = _weights_s(plan)
    whole = max(weights_s, products_s) + cache_s + STEP_S
    return max(0.0, max(weights_s, products_s) - products_s + STEP_S) / whole


def _weights_s(plan: PlanEvidence) -> float:
    return plan.weight_bytes / plan.cards / (plan.bandwidth_bytes_s * BANDWIDTH_REACH)


def _mean_output(worker: WorkerEvidence) -> float:
    return worker.output_tokens / max(1, worker.rows)


def _decode_share(worker: WorkerEvidence, plan: PlanEvidence | None) -> float:
    """Share of the time that goes to answers: prompts fill steps by themselves.

    With a plan, prompts take what their products do; without, an output token counts as two. With
    few rows at a time that is far from the truth: answers then take nearly all of the time.
    """
    if plan is not None and plan.active_parameters:
        products = 2 * plan.active_parameters * worker.computed_prompt_tokens / plan.cards
        return max(0.0, 1 - products / (plan.flops * COMPUTE_REACH) / max(1e-9, worker.seconds))
    made = OUTPUT_WEIGHT * worker.output_tokens
    return made / max(1.0, made + worker.computed_prompt_tokens)


def _step_figures(worker: WorkerEvidence, evidence: Evidence) -> tuple[tuple[str, str], ...]:
    found = [("a step", f"{1000 * worker.step_s:,.1f} ms")] if worker.step_s else []
    fixed = _fixed_by_plan(worker, evidence) if evidence.plan else worker.fixed_step
    if fixed is not None:
        found.append(("of it whatever the batch", percent(fixed)))
    return tuple(found)


def kv_full(evidence: Evidence) -> Finding | None:
    """Rows are thrown out of a full KV cache and computed again."""
    workers = working(evidence)
    preemptions = sum(one.preemptions for one in workers)
    share = over_time(workers, _recomputed)
    peak = max((one.kv_peak for one in workers), default=0.0)
    if preemptions < LEAST_PREEMPTIONS or share < LEAST_RECOMPUTED or peak < NEARLY_FULL:
        return None
    worker = max(workers, key=lambda one: one.preemptions)
    return Finding(
        code="kv_full",
        title="The KV cache is full, and rows are thrown out of it",
        weight=Weight.LOSS,
        evidence=(
            ("preemptions", f"{preemptions:,} of {sum(one.rows for one in workers):,} rows"),
            ("KV cache in use", f"{percent(worker.kv_use)}, {percent(peak)} at its peak"),
            ("work done twice", percent(share)),
            *((("the cache holds", f"{worker.kv_tokens:,} tokens"),) if worker.kv_tokens else ()),
        ),
        cause="More rows are let in than the cache has room for once their answers have grown; who "
        "is thrown out computes its prompt and its answer so far again.",
        remedy="Keep a part of the cache free when rows are let in (watermark), or make it larger: a "
        "higher gpu_memory_utilization, kv_cache_dtype: fp8, or more cards per engine.",
        changes=(*_reserve(evidence), *more_memory(evidence), *_smaller_cache(evidence)),
        gain=share,
    )


def _recomputed(worker: WorkerEvidence) -> float:
    """Share of a worker's time that went to rows that had been thrown out."""
    rows = max(1, worker.rows)
    again = worker.computed_prompt_tokens / rows + PREEMPTED_AT * _mean_output(worker)
    lost = worker.preemptions * again
    done = worker.computed_prompt_tokens + OUTPUT_WEIGHT * worker.output_tokens
    return lost / (lost + done) if lost else 0.0


def _reserve(evidence: Evidence) -> tuple[Change, ...]:
    """The reserve that batchwright gives vLLM, where the user has taken it away."""
    given = evidence.settings.watermark
    if given is None or given >= USUAL_WATERMARK:
        return ()
    return (Change("engine.options.watermark", f"{given:g}", f"{USUAL_WATERMARK:g}"),)


def _smaller_cache(evidence: Evidence) -> tuple[Change, ...]:
    """Half the bytes for each token, unless the user has chosen them."""
    if "kv_cache_dtype" in evidence.settings.user_options:
        return ()
    return (Change("engine.options.kv_cache_dtype", "auto", "fp8"),)


def kv_small(evidence: Evidence) -> Finding | None:
    """The KV cache has room for so few rows that each step is mostly the reading of weights."""
    found = [one for one in working(evidence) if _is_cramped(one)]
    if not found or kv_full(evidence) is not None:
        return None
    worker = max(found, key=lambda one: one.seconds)
    gain = batch_gain(worker, round(2 * worker.running), evidence)
    if gain is None or gain < 2 * LEAST_GAIN:
        return None
    return Finding(
        code="kv_small",
        title="The KV cache has room for few rows",
        # A card that is used to the full is no fault of the run, but more would run on a larger cache.
        weight=Weight.LOSS if more_memory(evidence) else Weight.HINT,
        evidence=(
            ("room for", f"{worker.cap:,.0f} of {worker.max_num_seqs:,} rows"),
            ("KV cache in use", percent(worker.kv_use)),
            *((("the cache holds", f"{worker.kv_tokens:,} tokens"),) if worker.kv_tokens else ()),
            *_step_figures(worker, evidence),
        ),
        cause="What the weights leave of the card's memory holds few rows of this length.",
        remedy="Make the cache larger: a higher gpu_memory_utilization, kv_cache_dtype: fp8, "
        "quantised weights, or more cards per engine. The gain is for a cache of twice the size.",
        changes=(*more_memory(evidence), *_smaller_cache(evidence)),
        gain=gain,
    )


def _is_cramped(worker: WorkerEvidence) -> bool:
    limited = 0 < worker.cap <= LIMITED * worker.max_num_seqs
    return limited and worker.kv_use >= NEARLY_FULL
