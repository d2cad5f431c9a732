"""How fast the engine will really be: the limit's terms with what kernels, links and steps cost.

Calibrated on one H200 with vLLM 0.25.1, Qwen2.5 0.5B and 7B, random tokens; the figures that it
has to meet are in `tests/unit/plan/test_search.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchwright.core.plan import GpuFacts, ModelFacts
from batchwright.core.workload import LengthHistogram
from batchwright.plan.limit import Efficiency, Terms, Work, terms, weight_reads
from batchwright.plan.memory import Sizes

# Share of the peaks. Compute: the measured jobs of the 7B model imply 0.54 to 0.60 (clocks sag
# under load). Bandwidth is an assumption: none of those jobs was bound by it.
REACH = Efficiency(compute=0.58, bandwidth=0.82)

# One step of the engine beyond its kernels, with a CUDA graph; and what a layer adds without one:
# 8,000 rows of 128 + 128 tokens took 50.3 s with graphs up to 1,024 rows, 67.1 s without.
STEP_S = 0.2e-3
EAGER_S_PER_LAYER = 0.6e-3

# Bytes/s per direction between two cards, and seconds per all-reduce: NVLink 3 has 300 GB/s
# (NVIDIA A100 datasheet: 600 both ways), PCIe 4.0 x16 has 32 here taken as 25. Latencies are
# estimates: no job over several cards has been measured.
NVLINK_BYTES_S, NVLINK_LATENCY_S = 300e9, 10e-6
PCIE_BYTES_S, PCIE_LATENCY_S = 25e9, 40e-6
# Of the KV cache, in use while rows wait for it: vLLM keeps a reserve, and the next row must fit whole.
CACHE_SHARE = 0.93
# A pipeline's stages wait for each other now and then.
PIPELINE_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Speed:
    """The predicted time of one replica, all replicas running at the same time.

    `card_s` is what the card needs if the host keeps up.
    """

    seconds: float
    card_s: float
    terms: Terms
    steps_s: float
    links_s: float
    drain_s: float

    @property
    def bound_by(self) -> str:
        """What most of the time goes to."""
        return self.terms.bound_by()


def predict(
    facts: ModelFacts,
    gpu: GpuFacts,
    work: Work,
    outputs: LengthHistogram,
    *,
    sizes: Sizes,
    rows_in_cache: float,
    largest_graph: int,
    linked_by_nvlink: bool,
) -> Speed:
    """Seconds for one replica's share of the work; start-up not counted."""
    rows_in_cache *= CACHE_SHARE
    found = terms(facts, gpu, work, sizes, rows_in_cache, REACH)
    busy = max(found.products_s, found.weights_s) + found.attention_s + found.cache_s
    step = step_s(facts, sizes, rows_in_cache, largest_graph)
    steps_s = found.steps * step
    links_s = _links_s(facts, work, sizes, found.steps, linked_by_nvlink=linked_by_nvlink)
    drain_s = _drain_s(facts, gpu, work, outputs, sizes, step)
    seconds = busy + steps_s + links_s + drain_s
    if sizes.pipeline_parallel_size > 1:
        seconds /= PIPELINE_SHARE
    slowest = max(seconds, found.tail_s, found.host_s)
    return Speed(slowest, seconds, found, steps_s, links_s, drain_s)


def step_s(facts: ModelFacts, sizes: Sizes, rows_in_cache: float, largest_graph: int) -> float:
    """What a step costs beyond its kernels; more where decode batches have no CUDA graph."""
    running = min(sizes.max_num_seqs, rows_in_cache)
    eager = 0.0 if running <= largest_graph else EAGER_S_PER_LAYER * facts.layers
    return STEP_S + eager


def _links_s(
    facts: ModelFacts, work: Work, sizes: Sizes, steps: float, *, linked_by_nvlink: bool
) -> float:
    """Two ring all-reduces per layer (Megatron-LM, arXiv 1909.08053), or one hand-over per stage."""
    bytes_s, latency = (
        (NVLINK_BYTES_S, NVLINK_LATENCY_S) if linked_by_nvlink else (PCIE_BYTES_S, PCIE_LATENCY_S)
    )
    tokens = work.computed_tokens + work.output_tokens
    wide, deep = sizes.tensor_parallel_size, sizes.pipeline_parallel_size
    found = 0.0
    if wide > 1:
        volume = 2 * (wide - 1) / wide * facts.hidden * facts.dtype_bytes * tokens
        found += 2 * facts.layers / deep * (volume / bytes_s + latency * steps)
    if deep > 1:
        found += facts.hidden * facts.dtype_bytes * tokens / bytes_s + latency * steps
    return found


def _drain_s(
    facts: ModelFacts,
    gpu: GpuFacts,
    work: Work,
    outputs: LengthHistogram,
    sizes: Sizes,
    step: float,
) -> float:
    """The end, when the queue is empty and the longest rows go on alone.

    Of the last `max_num_seqs` rows about one is longer than the quantile 1 - 1 / max_num_seqs; it
    outlasts the average row by the difference.
    """
    if not work.rows or not outputs.rows:
        return 0.0
    late = outputs.quantile(1 - 1 / max(2, min(sizes.max_num_seqs, work.rows))) - outputs.mean
    one = weight_reads(facts, sizes, 1.0) / (gpu.bandwidth_bytes_s * REACH.bandwidth)
    return max(0.0, late) * (one + step)
