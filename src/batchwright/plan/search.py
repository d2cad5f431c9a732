"""Choose the settings: every way to spread the model over the cards, the fastest by prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from batchwright.core.errors import JobError
from batchwright.core.plan import (
    GpuFacts,
    Memory,
    ModelFacts,
    Plan,
    Prediction,
    default_batched_tokens,
)
from batchwright.core.workload import Workload
from batchwright.plan.given import check_given
from batchwright.plan.limit import (
    Work,
    count_rows_in_cache,
    expected_outputs,
    find_limit,
    measure_work,
)
from batchwright.plan.memory import Sizes, memory_sum, plan_memory, refusal, valid_tensor_parallel
from batchwright.plan.reasons import Choice, notes_of, settings_of
from batchwright.plan.sharing import room_for_sharing, rows_to_plan_for
from batchwright.plan.speed import Speed, predict

BLOCK = 16
DEFAULT_UTILIZATION = 0.92
MOST_ROWS = 1024
# Places for rows, as multiples of the rows that the KV cache holds on average: young rows take less
# of it than old ones, so at times more fit. vLLM itself lets in what fits (decision 0033). Before a
# pilot the average is a guess, and as a rule too large: half of the cap. Answers of nearly one length
# grow old together, and what more is let in while all are young is thrown out later.
PLACES, PLACES_ALIKE, PLACES_BY_GUESS = 1.5, 1, 3
ALIKE_SPREAD = 0.6


@dataclass(frozen=True, slots=True)
class Task:
    """What a search is for; the same for all of its candidates.

    `work` is the whole job with the outputs that are paid for, `planned` with those that the cache
    is filled by.
    """

    facts: ModelFacts
    gpu: GpuFacts
    workload: Workload
    given: dict[str, Any]
    linked_by_nvlink: bool
    work: Work
    planned: Work


def make_plan(
    facts: ModelFacts,
    gpu: GpuFacts,
    num_gpus: int,
    workload: Workload,
    *,
    user: dict[str, Any],
    usd_per_gpu_hour: float | None,
    linked_by_nvlink: bool,
) -> Plan:
    """Plan the job.

    Args:
        facts: of the model.
        gpu: the kind of card, all the same.
        num_gpus: how many there are.
        workload: the data's lengths.
        user: settings by the engine's names (and `replicas`) that are not to be chosen.
        usd_per_gpu_hour: price; None when it is not known.
        linked_by_nvlink: whether the cards reach each other by NVLink (or Infinity Fabric).

    Raises:
        JobError: the model does not fit, or a value of the user's cannot work.
    """
    given = {name: value for name, value in user.items() if value is not None}
    facts = check_given(facts, gpu, num_gpus, given)
    work = measure_work(facts, workload)
    planned = measure_work(facts, rows_to_plan_for(workload))
    task = Task(facts, gpu, workload, given, linked_by_nvlink, work, planned)
    length = choose_max_model_len(facts, workload, given)
    found = [
        choice
        for wide, deep, copies in list_layouts(facts, num_gpus, given, nvlink=linked_by_nvlink)
        for choice in _fit(task, wide, deep, copies, length)
    ]
    if not found:
        raise _refuse(task, num_gpus, length)
    best = max(found, key=lambda choice: (round(choice.rows_per_s, 6), -choice.sizes.gpus,
                                          choice.sizes.max_num_batched_tokens))  # fmt: skip
    return _plan(task, num_gpus, best, found, usd_per_gpu_hour)


def choose_max_model_len(facts: ModelFacts, workload: Workload, given: dict[str, Any]) -> int:
    """Longest prompt + output cap, rounded up to whole blocks, at most the model's context."""
    if "max_model_len" in given:
        return int(given["max_model_len"])
    wanted = max(2, workload.prompts.longest + workload.max_tokens)
    return min(facts.context, math.ceil(wanted / BLOCK) * BLOCK)


def list_layouts(
    facts: ModelFacts, num_gpus: int, given: dict[str, Any], *, nvlink: bool
) -> Iterator[tuple[int, int, int]]:
    """Tensor parallel size, pipeline parallel size and replicas that use up to `num_gpus` cards.

    Pipelines only where the cards are not linked directly, or where the heads leave no other way.
    """
    for wide in range(1, num_gpus + 1):
        if given.get("tensor_parallel_size", wide) != wide or not valid_tensor_parallel(
            facts, wide
        ):
            continue
        for deep in range(1, min(facts.layers, num_gpus // wide) + 1):
            if given.get("pipeline_parallel_size", deep) != deep:
                continue
            linked = nvlink and deep > 1 and valid_tensor_parallel(facts, wide * deep)
            if linked and "pipeline_parallel_size" not in given:
                continue
            copies = given.get("replicas", num_gpus // (wide * deep))
            if copies * wide * deep <= num_gpus:
                yield wide, deep, copies


def capture_sizes(rows: int, given: dict[str, Any]) -> tuple[int, ...]:
    """Batch sizes with a CUDA graph, up to the rows that really run; coarse above 32.

    vLLM's own list ends at 512 (`VllmConfig._set_cudagraph_sizes`) and decode batches above have no
    graph: with graphs up to 1,024 a 7B model made 20,343 output tokens/s instead of 15,269 (one
    H200, vLLM 0.25.1). Each costs memory and start-up time, so there are few.
    """
    if given.get("enforce_eager"):
        return ()
    if given.get("cudagraph_capture_sizes"):
        return tuple(sorted(int(size) for size in given["cudagraph_capture_sizes"]))
    most = int(given.get("max_cudagraph_capture_size", rows))
    steps = [1, 2, 4, 8, 16, *range(32, 513, 32), *range(640, most + 1, 128)]
    return (*(size for size in steps if size < most), most)


def choose_max_num_seqs(task: Task, sizes: Sizes, work: Work) -> tuple[Sizes, Memory] | None:
    """The most rows that fit the cache and the job; None when nothing fits.

    More rows need more memory for logits, so each start is tried and the largest outcome taken:
    with more memory it is never smaller.
    """
    best: tuple[Sizes, Memory] | None = None
    wanted = min(
        MOST_ROWS, sizes.max_num_batched_tokens, _round_rows(math.ceil(work.rows), up=True)
    )
    starts = [wanted, *(n for n in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1) if n < wanted)]
    if "max_num_seqs" in task.given:
        starts = [int(task.given["max_num_seqs"])]
    for start in starts:
        tried = _with_rows(task, sizes, start)
        memory = plan_memory(task.facts, task.gpu, tried)
        if not memory.fits or memory.pool_too_large:
            continue
        if "max_num_seqs" not in task.given:
            held = count_rows_in_cache(task.facts, work, tried, memory.blocks)
            places = int(held * _places_per_row(task))
            rows = max(1, min(start, _round_rows(places, up=False)))
            tried = _with_rows(task, sizes, rows)
            memory = plan_memory(task.facts, task.gpu, tried)
        if best is None or tried.max_num_seqs > best[0].max_num_seqs:
            best = tried, memory
    return best


def _places_per_row(task: Task) -> float:
    """Places for rows that an engine should have, for each that fits its cache on average."""
    workload = task.workload
    guessed = rows_to_plan_for(workload) is not workload
    alike = workload.outputs is not None and workload.outputs.spread <= ALIKE_SPREAD
    places = PLACES_BY_GUESS if guessed else PLACES_ALIKE if alike else PLACES
    shared = room_for_sharing(workload.prompts, expected_outputs(workload), task.given)
    return max(places, shared)


def _round_rows(rows: int, *, up: bool) -> int:
    """To a multiple of 16 or, where that is much, of 4; small counts stay as they are."""
    if rows <= 32:
        return max(1, rows)
    unit = 16 if rows > 128 else 4
    return math.ceil(rows / unit) * unit if up else rows // unit * unit


def _with_rows(task: Task, sizes: Sizes, rows: int) -> Sizes:
    return replace(sizes, max_num_seqs=rows, captured=len(capture_sizes(rows, task.given)))


def _fit(task: Task, wide: int, deep: int, copies: int, length: int) -> Iterator[Choice]:
    """The choices of one layout, one per number of tokens per step, that fit."""
    given = task.given
    most = default_batched_tokens(task.gpu.name, task.gpu.memory_bytes)
    steps = [n for n in (16_384, 8_192, 4_096, 2_048) if n <= most]
    if given.get("enable_chunked_prefill") is False:
        steps = [max(most, length)]
    if "max_num_batched_tokens" in given:
        steps = [int(given["max_num_batched_tokens"])]
    steps = list(dict.fromkeys(max(n, given.get("max_num_seqs", 1)) for n in steps))
    for tokens in steps:
        sizes = Sizes(
            max_model_len=length,
            max_num_seqs=1,
            max_num_batched_tokens=tokens,
            tensor_parallel_size=wide,
            pipeline_parallel_size=deep,
            gpu_memory_utilization=given.get("gpu_memory_utilization", DEFAULT_UTILIZATION),
            block_size=given.get("block_size", BLOCK),
            kv_cache_memory_bytes=given.get("kv_cache_memory_bytes"),
        )
        fitted = choose_max_num_seqs(task, sizes, task.planned.split(copies))
        if fitted is not None:
            yield _choice(task, *fitted, copies)


def _choice(task: Task, sizes: Sizes, memory: Memory, copies: int) -> Choice:
    graphs = capture_sizes(sizes.max_num_seqs, task.given)
    speed = predict_choice(task, sizes, memory, copies)
    return Choice(
        sizes=sizes,
        memory=memory,
        replicas=copies,
        graphs=graphs,
        seconds=speed.seconds,
        rows_per_s=task.workload.prompts.rows / max(1e-9, speed.seconds),
        bound_by=speed.bound_by,
        resident=task.planned.resident,
        rows_in_cache=count_rows_in_cache(task.facts, task.planned, sizes, memory.blocks),
    )


def predict_choice(task: Task, sizes: Sizes, memory: Memory, copies: int) -> Speed:
    """The speed with these settings, every row taking its expected output."""
    work = task.work.split(copies)
    graphs = capture_sizes(sizes.max_num_seqs, task.given)
    return predict(
        task.facts,
        task.gpu,
        work,
        expected_outputs(task.workload),
        sizes=sizes,
        rows_in_cache=count_rows_in_cache(task.facts, work, sizes, memory.blocks),
        largest_graph=graphs[-1] if graphs else 0,
        linked_by_nvlink=task.linked_by_nvlink,
    )


def _refuse(task: Task, num_gpus: int, length: int) -> JobError:
    """The model does not fit: the sum for the widest layout allowed."""
    most = max(1, num_gpus // task.given.get("replicas", 1))
    wide = task.given.get("tensor_parallel_size") or max(
        n for n in range(1, most + 1) if valid_tensor_parallel(task.facts, n)
    )
    tokens = task.given.get("max_num_batched_tokens", 2_048)
    sizes = Sizes(
        max_model_len=length,
        max_num_seqs=task.given.get("max_num_seqs", 1),
        max_num_batched_tokens=tokens,
        tensor_parallel_size=wide,
        pipeline_parallel_size=task.given.get("pipeline_parallel_size", 1),
        gpu_memory_utilization=task.given.get("gpu_memory_utilization", DEFAULT_UTILIZATION),
        captured=1,
        block_size=task.given.get("block_size", BLOCK),
        kv_cache_memory_bytes=task.given.get("kv_cache_memory_bytes"),
    )
    return JobError(*refusal(task.facts, task.gpu, sizes))


def _plan(
    task: Task, num_gpus: int, best: Choice, found: list[Choice], usd_per_gpu_hour: float | None
) -> Plan:
    facts, workload = task.facts, task.workload
    limit = find_limit(
        facts,
        task.gpu,
        workload,
        sizes=best.sizes,
        rows_in_cache=count_rows_in_cache(facts, task.work, best.sizes, best.memory.blocks),
        replicas=best.replicas,
    )
    proof = memory_sum(facts, task.gpu, best.sizes, best.memory)
    return Plan(
        model=facts,
        gpu=task.gpu,
        gpus=best.sizes.gpus * best.replicas,
        replicas=best.replicas,
        settings=settings_of(
            facts, task.gpu, workload, task.given, best, found, _what_if(task, best)
        ),
        memory=best.memory,
        max_concurrent_rows=int(best.rows_in_cache),
        prediction=_prediction(task, best, usd_per_gpu_hour),
        limit=limit,
        notes=notes_of(
            facts, task.gpu, workload, best, given=task.given, num_gpus=num_gpus, proof=proof
        ),
    )


def _prediction(task: Task, best: Choice, usd_per_gpu_hour: float | None) -> Prediction:
    hours = best.seconds / 3600
    speed = predict_choice(task, best.sizes, best.memory, best.replicas)
    gpu_hours = hours * best.sizes.gpus * best.replicas
    prompts = task.workload.prompts.total
    outputs = expected_outputs(task.workload).mean * task.workload.prompts.rows
    assumes = ["start-up (25 to 70 s on one H200 with vLLM 0.25.1) is not counted"]
    if task.workload.outputs is None:
        assumes.insert(0, f"every row makes its whole max_tokens ({task.workload.max_tokens}) "
                       "until a pilot has measured the outputs: the most it can be")  # fmt: skip
    return Prediction(
        rows_per_s=best.rows_per_s,
        prompt_tokens_per_s=prompts / max(1e-9, best.seconds),
        output_tokens_per_s=outputs / max(1e-9, best.seconds),
        hours=hours,
        gpu_hours=gpu_hours,
        usd=None if usd_per_gpu_hour is None else gpu_hours * usd_per_gpu_hour,
        assumes=tuple(assumes),
        card_s=max(speed.card_s, speed.terms.tail_s),
        host_s=speed.terms.host_s,
    )


def _what_if(task: Task, best: Choice) -> dict[str, tuple[int, float]]:
    """KV tokens and rows/s with one thing changed: fp8 keys and values, half of the rows."""
    found: dict[str, tuple[int, float]] = {}
    if "fp8" in task.gpu.flops and task.facts.kv_value_bytes >= 2:
        facts = replace(task.facts, kv_cache_dtype="fp8", kv_value_bytes=1.0)
        other = replace(task, facts=facts)
        fitted = choose_max_num_seqs(other, best.sizes, task.planned.split(best.replicas))
        if fitted:
            speed = predict_choice(other, *fitted, best.replicas)
            rate = task.workload.prompts.rows / max(1e-9, speed.seconds)
            found["fp8"] = fitted[1].capacity_tokens, rate
    half = _with_rows(task, best.sizes, max(1, best.sizes.max_num_seqs // 2))
    memory = plan_memory(task.facts, task.gpu, half)
    speed = predict_choice(task, half, memory, best.replicas)
    found["half"] = memory.capacity_tokens, task.workload.prompts.rows / max(1e-9, speed.seconds)
    return found
