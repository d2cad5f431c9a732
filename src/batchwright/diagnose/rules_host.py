"""Rules about a card that waits for its host, and what rules about batches have in common."""

from __future__ import annotations

from batchwright.core.findings import Change, Finding, Weight
from batchwright.diagnose.evidence import Evidence, PlanEvidence, WorkerEvidence
from batchwright.diagnose.figures import gigabytes, percent
from batchwright.diagnose.rules_feed import waits_for_rows

# All slots are taken in this share of the readings.
MOSTLY_FULL = 0.8

# A cache is full from here on: blocks are handed out whole, and some are always on their way.
NEARLY_FULL = 0.85

# A card that rests for a fifth of the time while all slots run waits for the host.
CARD_BUSY = 0.8
# One thread that needs more than this of a core is at its limit.
CORE_BUSY = 0.85
MOST_ENGINES = 4


def working(evidence: Evidence) -> list[WorkerEvidence]:
    """Workers of text that were not held up from outside."""
    if evidence.settings.task != "generate" or evidence.settings.engine == "openai":
        return []
    return [one for one in evidence.reliable if not waits_for_rows(one)]


def host_bound_workers(evidence: Evidence) -> list[WorkerEvidence]:
    """Workers whose card waits for the host although every slot runs."""
    return [one for one in working(evidence) if _waits_for_host(one)]


def _waits_for_host(worker: WorkerEvidence) -> bool:
    use = worker.card_use
    if use is None or use >= CARD_BUSY or worker.kv_peak >= NEARLY_FULL:
        return False
    core = worker.busiest_core
    return worker.full >= MOSTLY_FULL and (core is None or core >= CORE_BUSY or use < 0.6)


def host_bound(evidence: Evidence) -> Finding | None:
    """A small model whose steps are over before the host has the next one ready."""
    found = host_bound_workers(evidence)
    if not found:
        return None
    worker = max(found, key=lambda one: one.seconds)
    use = worker.card_use or 0.0
    now, to = evidence.settings.engines_per_gpu, _engines(evidence, use)
    changes: tuple[Change, ...] = ()
    if evidence.settings.enforce_eager:
        changes = (Change("engine.options.enforce_eager", "true", "false"),)
    elif to > now:
        changes = (Change("run.engines_per_gpu", f"{now}", f"{to}"),)
    return Finding(
        code="host_bound",
        title="The card waits for the host",
        weight=Weight.LOSS,
        evidence=(
            ("GPU use", percent(use)),
            ("slots taken", percent(worker.full)),
            *(
                (("busiest process of the engine", f"{worker.busiest_core:.2f} cores"),)
                if worker.busiest_core is not None
                else ()
            ),
        ),
        cause="All slots run, and the card is idle between steps: one thread of the engine cannot "
        "schedule and read answers as fast as a model of this size makes them.",
        remedy="Run several engines on each card, each with a host process of its own."
        if not evidence.settings.enforce_eager
        else "Let the engine use CUDA graphs: without them the host launches every kernel.",
        changes=changes,
        gain=1 - max(use, 1 / max(2, to)),
    )


def _engines(evidence: Evidence, use: float) -> int:
    """Engines that would fill the card, as far as its memory holds their weights."""
    if evidence.settings.tensor_parallel > 1:
        return evidence.settings.engines_per_gpu
    wanted = min(MOST_ENGINES, evidence.settings.engines_per_gpu * max(2, round(1 / max(0.2, use))))
    plan = evidence.plan
    if plan is not None and plan.weight_bytes:
        # Each needs its weights, as much again for a cache, and 2 GB for context and graphs.
        each = 2 * plan.weight_bytes + 2_000_000_000
        wanted = min(wanted, max(1, int(0.9 * plan.memory_bytes / each)))
    return wanted


def more_memory(evidence: Evidence) -> tuple[Change, ...]:
    """A larger share of the card for the engine, where it takes less than is usual."""
    now = evidence.settings.gpu_memory_utilization
    if now is None or now >= 0.9:
        return ()
    return (Change("engine.options.gpu_memory_utilization", f"{now:g}", "0.92"),)


def memory_figures(plan: PlanEvidence) -> tuple[tuple[str, str], ...]:
    """Where the memory of a card goes, by the plan."""
    return (
        ("card", f"{plan.gpu}, {gigabytes(plan.memory_bytes)}"),
        ("weights per card", gigabytes(plan.weight_bytes / plan.cards)),
        ("activations of a step", gigabytes(plan.activations_bytes)),
    )
