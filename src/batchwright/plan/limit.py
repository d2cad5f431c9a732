"""How fast the hardware could do this workload: a roofline over the whole job.

Roofline model: Williams et al., CACM 52(4), 2009. FLOPs and bytes per token follow the counting
of Kaplan et al. (arXiv 2001.08361, section 2.1) and of vLLM's own `vllm/v1/metrics/perf.py`:
2 FLOPs per parameter and token, 4 x heads x head_dim per layer and pair of query and key.

L0 lets everything overlap. L1 lets matrix products, attention and cache traffic follow each other
as in an engine with one stream; published TensorRT-LLM figures are at 50 to 72 % of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchwright.core.plan import GpuFacts, Limit, ModelFacts
from batchwright.core.workload import LengthHistogram, Workload
from batchwright.plan.memory import (
    Sizes,
    blocks_of_row,
    kv_per_token_and_gpu,
    weights_per_gpu,
)

# Host work of one engine, seconds: to take in a row, a prompt token, an output token. Measured on
# one H200 with vLLM 0.25.1, Qwen2.5-0.5B: 20,000 rows of about 150 tokens in and 8 out, text to
# text with a bounded feed, took 11.3 s, which is all host. The output share is from vLLM pull
# request 43469: 67,000 to 85,000 output tokens/s per engine with a 0.6B model.
HOST_S_PER_ROW = 400e-6
HOST_S_PER_PROMPT_TOKEN = 0.4e-6
HOST_S_PER_OUTPUT_TOKEN = 13e-6

# Bins that stand for a histogram where prompts and outputs have to be combined.
_BINS = 48


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a job, or of one replica's share of it.

    Attributes:
        rows: how many.
        prompt_tokens: of which `computed_tokens` are not in the prefix cache.
        output_tokens: in all; `longest_output` of one row.
        prefill_pairs: query-key pairs in prefill, summed over the layers.
        decode_reads: key reads in decode, summed over the layers.
        resident: mean tokens that a running row holds, over its time in the engine.
    """

    rows: float
    prompt_tokens: float
    computed_tokens: float
    output_tokens: float
    longest_prompt: int
    longest_output: int
    prefill_pairs: float
    decode_reads: float
    resident: float

    def split(self, replicas: int) -> Work:
        """One of `replicas` equal shares."""
        return replace(
            self,
            rows=self.rows / replicas,
            prompt_tokens=self.prompt_tokens / replicas,
            computed_tokens=self.computed_tokens / replicas,
            output_tokens=self.output_tokens / replicas,
            prefill_pairs=self.prefill_pairs / replicas,
            decode_reads=self.decode_reads / replicas,
        )


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of the peaks that kernels reach; 1 for a limit."""

    compute: float = 1.0
    bandwidth: float = 1.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds that each resource would take alone, for one replica.

    `steps` are the engine's; `waits` says that the longest row, not the mass, makes them so many.
    """

    products_s: float
    weights_s: float
    attention_s: float
    cache_s: float
    tail_s: float
    host_s: float
    steps: float
    waits: bool

    def overlapped_s(self) -> float:
        """Everything at the same time (L0)."""
        compute = self.products_s + self.attention_s
        return max(compute, self.weights_s + self.cache_s, self.tail_s, self.host_s)

    def serial_s(self) -> float:
        """Kernels one after the other (L1)."""
        gpu = max(self.products_s, self.weights_s) + self.attention_s + self.cache_s
        return max(gpu, self.tail_s, self.host_s)

    def bound_by(self) -> str:
        """What would have to be faster."""
        gpu = max(self.products_s, self.weights_s) + self.attention_s + self.cache_s
        if self.host_s >= max(gpu, self.tail_s):
            return "host"
        reading = self.weights_s > max(self.products_s, self.attention_s + self.cache_s)
        if self.tail_s >= gpu or (self.waits and reading):
            return "tail"
        if self.attention_s + self.cache_s > max(self.products_s, self.weights_s):
            return "attention"
        return "compute" if self.products_s >= self.weights_s else "memory bandwidth"


def count_rows_in_cache(facts: ModelFacts, work: Work, sizes: Sizes, blocks: int) -> float:
    """Rows of this workload that a pool of `blocks` holds at the same time, on average."""
    return blocks / max(1e-9, blocks_of_row(facts, sizes, max(1.0, work.resident)))


def expected_outputs(workload: Workload) -> LengthHistogram:
    """The outputs measured in a pilot; before one, every row's whole cap: the most."""
    if workload.outputs is not None and workload.outputs.rows:
        return workload.outputs
    if workload.caps.rows:
        return workload.caps
    return LengthHistogram((workload.max_tokens,), (max(1, workload.prompts.rows),))


def measure_work(facts: ModelFacts, workload: Workload) -> Work:
    """Sum up the whole workload."""
    prompts, outputs = workload.prompts, expected_outputs(workload)
    rows = prompts.rows
    share = max(1, outputs.rows)
    mean_output = outputs.mean
    held = prompts.mean * (1 - workload.cached_share)
    pairs, reads = _layer_sums(facts, prompts, outputs, workload.cached_share)
    second = sum(n * n * c for n, c in _items(outputs)) / share
    return Work(
        rows=rows,
        prompt_tokens=rows * prompts.mean,
        computed_tokens=max(rows, rows * prompts.mean * (1 - workload.cached_share)),
        output_tokens=rows * mean_output,
        longest_prompt=prompts.longest,
        longest_output=outputs.longest,
        prefill_pairs=rows * pairs,
        decode_reads=rows * reads,
        # Length-biased: a row that runs longer is met more often (inspection paradox).
        resident=held + (second / (2 * mean_output) if mean_output else 0.0),
    )


def _items(histogram: LengthHistogram) -> zip[tuple[int, int]]:
    return zip(histogram.lengths, histogram.counts, strict=True)


def _layer_sums(
    facts: ModelFacts, prompts: LengthHistogram, outputs: LengthHistogram, cached: float
) -> tuple[float, float]:
    """Per row, summed over layers: pairs in prefill, reads in decode."""
    narrow = facts.window.layers if facts.window else 0
    widths: list[tuple[int, int | None]] = [(facts.layers - narrow, None)]
    if facts.window:
        widths.append((narrow, facts.window.tokens))
    pairs = reads = 0.0
    few_prompts, few_outputs = condense(prompts), condense(outputs)
    for layers, window in widths:
        for prompt, weight in few_prompts:
            whole = _area(prompt, window)
            pairs += layers * weight * (whole - _area(prompt * cached, window))
            for output, chance in few_outputs:
                last = _area(prompt + max(0.0, output - 1), window)
                reads += layers * weight * chance * (last - whole)
    return pairs, reads


def _area(tokens: float, window: int | None) -> float:
    """Keys seen by queries 1 to `tokens`: the sum of min(t, window)."""
    if window is None or tokens <= window:
        return tokens * (tokens + 1) / 2
    return window * (window + 1) / 2 + (tokens - window) * window


def condense(histogram: LengthHistogram) -> list[tuple[float, float]]:
    """At most `_BINS` lengths with the shares of rows that they stand for; the mean is kept."""
    rows = histogram.rows
    if not rows:
        return []
    room = rows / _BINS
    found: list[tuple[float, float]] = []
    total = count = 0.0
    for length, number in _items(histogram):
        total, count = total + length * number, count + number
        if count >= room:
            found.append((total / count, count / rows))
            total = count = 0.0
    if count:
        found.append((total / count, count / rows))
    return found


def terms(
    facts: ModelFacts,
    gpu: GpuFacts,
    work: Work,
    sizes: Sizes,
    rows_in_cache: float,
    reach: Efficiency = Efficiency(),
) -> Terms:
    """The seconds of each resource, for one replica of `sizes.gpus` cards.

    Steps are at least the longest output, the output tokens over the rows that can run at once
    (`max_num_seqs`, or what the KV cache holds), and all tokens over `max_num_batched_tokens`.
    """
    cards = sizes.gpus
    flops = gpu.peak_flops(facts) * reach.compute
    bandwidth = gpu.bandwidth_bytes_s * reach.bandwidth
    decoded = max(0.0, work.output_tokens - work.rows)
    tokens = work.computed_tokens + decoded
    products = 2 * facts.active_parameters * tokens
    products += 2 * facts.head_parameters * work.output_tokens
    steps = max(
        work.longest_output,
        work.output_tokens / max(1.0, min(sizes.max_num_seqs, rows_in_cache)),
        tokens / sizes.max_num_batched_tokens,
        1.0,
    )
    weights = steps * weight_reads(facts, sizes, tokens / steps)
    # A pipeline's stages work on as many groups of rows at a time, each of which reads the weights.
    weights *= sizes.pipeline_parallel_size
    pair_flops = attention_flops(facts)
    kv_layer = kv_per_token_and_gpu(facts, sizes) / max(1, facts.layers)
    cache = kv_layer * work.decode_reads
    cache += kv_per_token_and_gpu(facts, sizes) * tokens
    attention = pair_flops * (work.prefill_pairs + _decode_compute(facts, work)) / cards
    peak_16 = gpu.flops.get(facts.dtype, gpu.flops["float16"]) * reach.compute
    return Terms(
        products_s=products / cards / flops,
        weights_s=weights / bandwidth,
        attention_s=attention / peak_16,
        cache_s=cache / bandwidth,
        tail_s=_tail_s(facts, work, sizes, flops, bandwidth),
        host_s=work.rows * HOST_S_PER_ROW
        + work.prompt_tokens * HOST_S_PER_PROMPT_TOKEN
        + work.output_tokens * HOST_S_PER_OUTPUT_TOKEN,
        steps=steps,
        waits=steps <= work.longest_output,
    )


def attention_flops(facts: ModelFacts) -> float:
    """FLOPs per query-key pair and layer: 4 x heads x head_dim; for MLA on the latent."""
    if facts.latent:
        return 2 * facts.heads * (facts.latent.cached_dim + facts.latent.kv_rank)
    return 4 * facts.heads * facts.head_dim


def _decode_compute(facts: ModelFacts, work: Work) -> float:
    """Decode pairs count as compute only for MLA, whose heads share what is read."""
    return work.decode_reads if facts.latent else 0.0


def weight_reads(facts: ModelFacts, sizes: Sizes, tokens_per_step: float) -> float:
    """Bytes of weights that one card reads in a step.

    Of a mixture of experts only those that some token visits: with uniform routing
    E x (1 - (1 - k/E)^tokens) of E experts.
    """
    share = weights_per_gpu(facts, sizes.tensor_parallel_size, sizes.pipeline_parallel_size)
    if not facts.tie_embeddings and sizes.pipeline_parallel_size == 1:
        # A step looks up only some rows of the input embedding.
        share -= facts.head_parameters * facts.dtype_bytes // sizes.tensor_parallel_size
    if not facts.experts or not facts.body_parameters:
        return share
    experts_share = facts.expert_parameters / facts.body_parameters
    routed = facts.body_bytes * experts_share / sizes.gpus
    missed: float = (1 - facts.experts.active / facts.experts.count) ** tokens_per_step
    return share - routed * missed


def _tail_s(facts: ModelFacts, work: Work, sizes: Sizes, flops: float, bandwidth: float) -> float:
    """The row with the longest output, alone on the engine from start to end."""
    prefill = 2 * facts.active_parameters * work.longest_prompt / sizes.gpus / flops
    one = weight_reads(facts, sizes, 1.0) * sizes.pipeline_parallel_size / bandwidth
    return prefill + work.longest_output * one


def find_limit(
    facts: ModelFacts,
    gpu: GpuFacts,
    workload: Workload,
    *,
    sizes: Sizes,
    rows_in_cache: float,
    replicas: int = 1,
) -> Limit:
    """L0 and L1 of the workload on `replicas` replicas, in seconds.

    The host's share is left out of neither: an engine that cannot be fed faster is at its limit.
    """
    work = measure_work(facts, workload).split(replicas)
    found = terms(facts, gpu, work, sizes, rows_in_cache)
    return Limit(
        l0_s=found.overlapped_s(),
        l1_s=found.serial_s(),
        bound_by=found.bound_by(),
        terms_s={
            "matrix products": found.products_s,
            "weights read": found.weights_s,
            "attention in prefill": found.attention_s,
            "KV cache read and written": found.cache_s,
            "tail": found.tail_s,
            "host": found.host_s,
        },
    )
