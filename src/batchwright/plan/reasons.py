"""For each setting of a plan: the value, why, what limits it, what was rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchwright.core.plan import GpuFacts, Memory, ModelFacts, Setting
from batchwright.core.workload import Workload
from batchwright.plan.lora import lora_bytes
from batchwright.plan.memory import GB, Sizes
from batchwright.plan.speculation import TRADE

GIVEN = "given by the user"
LOOKED_AT = frozenset({"speculative_config", "quantization", "enable_lora", "max_loras",
                       "max_lora_rank"})  # fmt: skip
# Host to GPU over PCIe 5.0 x16, bytes/s reached (NVIDIA H100 datasheet: 128 GB/s both ways).
HOST_LINK_BYTES_S = 55e9


@dataclass(frozen=True, slots=True)
class Choice:
    """One candidate of the search, and what it promises.

    `resident` is the mean tokens of a running row, `rows_in_cache` how many of them the KV cache
    of a replica holds, `seconds` the predicted time of the whole job.
    """

    sizes: Sizes
    memory: Memory
    replicas: int
    graphs: tuple[int, ...]
    seconds: float
    rows_per_s: float
    bound_by: str
    resident: float
    rows_in_cache: float

    @property
    def layout(self) -> str:
        """`2 replicas x tensor parallel 4`."""
        found = f"{self.replicas} replica{'s' if self.replicas > 1 else ''}"
        found += f" x tensor parallel {self.sizes.tensor_parallel_size}"
        if self.sizes.pipeline_parallel_size > 1:
            found += f" x pipeline parallel {self.sizes.pipeline_parallel_size}"
        return found


def settings_of(
    facts: ModelFacts,
    gpu: GpuFacts,
    workload: Workload,
    given: Mapping[str, Any],
    best: Choice,
    found: list[Choice],
    what_if: Mapping[str, tuple[int, float]],
) -> dict[str, Setting]:
    """Every setting by name; the user's own are marked so, and unknown ones are passed on."""
    chosen = {
        **_layout(facts, best, found),
        **_lengths(facts, workload, best),
        **_rows(workload, best, found, what_if),
        **_cache(facts, best, what_if),
        **_graphs(best, given),
        **_rest(facts, gpu, best),
    }
    for name, value in given.items():
        if name in chosen:
            chosen[name] = Setting(value, GIVEN, chosen[name].limited_by)
        else:
            seen = "" if name in LOOKED_AT else "; the plan does not look at it"
            chosen[name] = Setting(value, GIVEN + seen)
    return chosen


def _layout(facts: ModelFacts, best: Choice, found: list[Choice]) -> dict[str, Setting]:
    sizes = best.sizes
    others = _best_per_layout(best, found)
    cards = sizes.gpus
    why = (
        "the model fits on one card, and replicas exchange nothing"
        if cards == 1
        else f"weights of {facts.weight_bytes / GB:.1f} GB over {cards} cards, fastest by prediction"
    )
    return {
        "tensor_parallel_size": Setting(
            sizes.tensor_parallel_size, why,
            f"must divide {facts.heads} heads ({facts.kv_heads} KV heads)",
            others,
        ),
        "pipeline_parallel_size": Setting(
            sizes.pipeline_parallel_size,
            "stages hand over little, which suits cards linked by PCIe"
            if sizes.pipeline_parallel_size > 1
            else "no stages: they wait for each other",
            f"{facts.layers} layers",
        ),
        "replicas": Setting(
            best.replicas,
            "every card, or group of cards, works on its own rows",
            "GPUs over cards per replica",
        ),
    }  # fmt: skip


def _best_per_layout(best: Choice, found: list[Choice]) -> tuple[tuple[Any, str], ...]:
    fastest: dict[str, Choice] = {}
    for choice in found:
        known = fastest.get(choice.layout)
        if known is None or choice.rows_per_s > known.rows_per_s:
            fastest[choice.layout] = choice
    ranked = sorted(fastest.values(), key=lambda choice: -choice.rows_per_s)
    return tuple(
        (choice.layout, f"{choice.rows_per_s:,.1f} rows/s instead of {best.rows_per_s:,.1f}")
        for choice in ranked
        if choice.layout != best.layout
    )[:4]


def _lengths(facts: ModelFacts, workload: Workload, best: Choice) -> dict[str, Setting]:
    wanted = workload.prompts.longest + workload.max_tokens
    length = best.sizes.max_model_len
    rejected: tuple[tuple[Any, str], ...] = ()
    if facts.context > length:
        rejected = ((facts.context, "the model's own context: no row of this data needs it"),)
    return {
        "max_model_len": Setting(
            length,
            f"longest prompt {workload.prompts.longest:,} + output cap {workload.max_tokens:,} = "
            f"{wanted:,} tokens, in whole blocks",
            f"the model's context of {facts.context:,} tokens",
            rejected,
        )
    }


def _rows(
    workload: Workload,
    best: Choice,
    found: list[Choice],
    what_if: Mapping[str, tuple[int, float]],
) -> dict[str, Setting]:
    rows = best.sizes.max_num_seqs
    queued = max(16, rows // 4)  # as the feeder has it: `engines.flow.ahead_of`
    held = int(best.rows_in_cache)
    more = ""
    if rows > held:
        more = "; more fit while they are young or share a prefix, and vLLM lets in what fits"
    if rows >= 1024:
        limit = "1,024: more rows need more graphs and memory and bring little"
    elif rows >= workload.prompts.rows / best.replicas:
        limit = "the rows of the job"
    else:
        limit = f"the KV cache: {held:,} rows of {best.resident:,.0f} tokens on average"
    _, rate = what_if["half"]
    steps = tuple(
        (
            choice.sizes.max_num_batched_tokens,
            f"{choice.rows_per_s:,.1f} rows/s, KV cache {choice.memory.capacity_tokens:,} tokens",
        )
        for choice in found
        if choice.layout == best.layout
        and choice.sizes.max_num_batched_tokens != best.sizes.max_num_batched_tokens
    )
    return {
        "max_num_seqs": Setting(
            rows,
            f"the KV cache holds {held:,} rows of {best.resident:,.0f} tokens at a time{more}",
            limit,
            ((max(1, rows // 2), f"{rate:,.1f} rows/s instead of {best.rows_per_s:,.1f}"),),
        ),
        "in_flight": Setting(
            rows + queued,
            f"{rows:,} rows that run and {queued:,} that wait inside the engine, so that no step "
            "lacks one",
            "max_num_seqs",
        ),
        "max_num_batched_tokens": Setting(
            best.sizes.max_num_batched_tokens,
            "fewer and larger steps while the KV cache keeps its room",
            f"activations of {best.memory.activations / GB:.1f} GB per card",
            steps,
        ),
    }


def _cache(
    facts: ModelFacts, best: Choice, what_if: Mapping[str, tuple[int, float]]
) -> dict[str, Setting]:
    kv: list[tuple[Any, str]] = []
    if "fp8" in what_if:
        tokens, rate = what_if["fp8"]
        kv.append(
            (
                "fp8",
                f"would hold {tokens:,} tokens instead of {best.memory.capacity_tokens:,} and make "
                f"{rate:,.1f} rows/s instead of {best.rows_per_s:,.1f} by prediction, but answers "
                "change: set it yourself if that is acceptable",
            )
        )
    load = HOST_LINK_BYTES_S / max(1, facts.kv_bytes_per_token)
    return {
        "kv_cache_dtype": Setting(
            facts.kv_cache_dtype,
            f"{facts.kv_bytes_per_token:,} bytes of KV cache per token, answers as the model "
            "gives them",
            "",
            tuple(kv),
        ),
        "enable_prefix_caching": Setting(
            True,  # noqa: FBT003
            "rows that share a beginning compute it once; hashing costs 0.1 to 0.3 µs per token",
        ),
        "kv_offloading_size": Setting(
            None,
            "keys and values stay on the card",
            "host memory",
            (
                (
                    "GiB of host memory",
                    f"loading back over PCIe at 55 GB/s brings at most {load:,.0f} tokens/s; it "
                    "pays only where shared prefixes outgrow the KV cache of "
                    f"{best.memory.capacity_tokens:,} tokens and rows cannot be grouped",
                ),
            ),
        ),
    }


def _graphs(best: Choice, given: Mapping[str, Any]) -> dict[str, Setting]:
    if not best.graphs:
        return {"cudagraph_capture_sizes": Setting(None, "enforce_eager: no graphs")}
    if "max_cudagraph_capture_size" in given and "cudagraph_capture_sizes" not in given:
        most = given["max_cudagraph_capture_size"]
        return {"max_cudagraph_capture_size": Setting(most, GIVEN, "graphs cost memory")}
    return {
        "cudagraph_capture_sizes": Setting(
            list(best.graphs),
            f"up to the {best.sizes.max_num_seqs:,} rows that run: without a graph a decode step "
            "of a 7B model took 17 ms more (one H200, vLLM 0.25.1)",
            f"{best.memory.graphs / GB:.1f} GB and start-up time for {len(best.graphs)} graphs",
            (("the engine's own list", "ends at 512 rows"),) if best.graphs[-1] > 512 else (),
        )
    }


def _rest(facts: ModelFacts, gpu: GpuFacts, best: Choice) -> dict[str, Setting]:
    dtype = facts.dtype
    swapped = dtype == "bfloat16" and "bfloat16" not in gpu.flops
    return {
        "gpu_memory_utilization": Setting(
            best.sizes.gpu_memory_utilization,
            "the engine's default; weights, activations and graphs are inside it",
            "what lies outside: CUDA context, fragments",
            ((0.97, "leaves no room for what profiling has not seen: sampling with top-k, "
              "logprobs, long rows"),),
        ),
        "dtype": Setting(
            "float16" if swapped else dtype,
            f"{gpu.name} has no bfloat16" if swapped else "the checkpoint's own",
        ),
        "enable_chunked_prefill": Setting(
            True,  # noqa: FBT003
            "long prompts are cut to the token budget, so decode goes on beside them",
        ),
        "order": Setting(
            "auto",
            "file order, unless grouping by prefix is predicted to gain 3 %",
            "",
            (("longest output first", "long rows would grow together and overfill the cache"),),
        ),
    }  # fmt: skip


def _companions(facts: ModelFacts, best: Choice) -> list[str]:
    notes = []
    sizes = best.sizes
    if facts.lora:
        room = lora_bytes(facts, sizes.tensor_parallel_size, sizes.pipeline_parallel_size)
        notes.append(
            f"Among the weights is room for {facts.lora.count} LoRA adapters of rank "
            f"{facts.lora.rank} at a time: {room / GB:.2f} GB per card."
        )
    if facts.draft:
        notes.append(
            f"Speculative decoding ({facts.draft.method}, {facts.draft.tokens} tokens ahead) makes "
            f"each step of {sizes.max_num_seqs:,} rows check "
            f"{sizes.max_num_seqs * (1 + facts.draft.tokens):,} tokens; its weights take "
            f"{facts.draft.weight_bytes / GB:.2f} GB. {TRADE}"
        )
    return notes


def notes_of(
    facts: ModelFacts,
    gpu: GpuFacts,
    workload: Workload,
    best: Choice,
    *,
    given: Mapping[str, Any],
    num_gpus: int,
    proof: str,
) -> tuple[str, ...]:
    """The proof that the longest row fits, and what the user should know besides."""
    notes = [f"The longest row fits: {proof}."]
    wanted = workload.prompts.longest + workload.max_tokens
    if wanted > best.sizes.max_model_len:
        notes.append(
            f"The longest prompt ({workload.prompts.longest:,} tokens) and max_tokens "
            f"({workload.max_tokens:,}) need {wanted:,} tokens, but max_model_len is "
            f"{best.sizes.max_model_len:,}: such rows get fewer output tokens or are over the limit."
        )
    if best.sizes.max_num_seqs > best.rows_in_cache and "max_num_seqs" in given:
        notes.append(
            f"max_num_seqs {best.sizes.max_num_seqs:,} is more than the {best.rows_in_cache:,.0f} "
            "rows that the KV cache holds: rows will be thrown out and computed again."
        )
    idle = num_gpus - best.sizes.gpus * best.replicas
    if idle:
        notes.append(f"{idle} of {num_gpus} GPUs are not used.")
    notes += _companions(facts, best)
    if not facts.weights_known:
        notes.append("The size of the weights is computed from config.json, not read.")
    if facts.dtype not in gpu.flops:
        notes.append(f"{gpu.name} computes in float16, as it has no {facts.dtype}.")
    return tuple(notes)
