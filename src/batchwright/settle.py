"""Settle what the engine of a run is started with: planned for this machine's cards."""

from __future__ import annotations

import threading
from dataclasses import replace

import orjson

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.plan import Plan
from batchwright.core.profile import LengthProfile
from batchwright.core.workload import LengthHistogram
from batchwright.planning import Cards, plan_on
from batchwright.profiling import look_at_rows
from batchwright.rundir import layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.storage import Storage
from batchwright.tokens.context import context_length

# A longer context is taken only if the rows seen need it: block tables grow with it.
COMMON_CONTEXT = 32_768


def settle(
    manifest: Manifest, job: Job, cards: Cards | None, storage: Storage, stop: threading.Event
) -> tuple[Manifest, Plan | None]:
    """The manifest with the engine's settings for these cards; as it is where there are none.

    The first rows of some splits stand for the data: the engine need not wait for all of it. What
    an earlier pilot of the run measured is counted with.

    Args:
        manifest: of the surveyed job.
        job: the resolved job; its own options are kept.
        cards: that the engines will run on.
        storage: of the run, which may be new.
        stop: set it to give up.

    Raises:
        JobError: the model does not fit these cards, or an option cannot work; with the sum.
    """
    if cards is None:
        return manifest, None
    lengths = look_at_rows(manifest, job, stop)
    length, plan = _plan(cards, manifest, job, lengths, _outputs_of_pilot(storage))
    planned = {**plan.engine_options(), "replicas": plan.replicas}
    del planned["max_model_len"]
    if plan.pool_of_each is not None:
        engines = plan.value("engines_per_gpu")
        planned |= {
            "engines_per_gpu": engines,
            "gpu_memory_utilization": round(planned["gpu_memory_utilization"] / engines, 3),
            "kv_cache_memory_bytes": plan.pool_of_each,
        }
    return replace(manifest, max_model_len=length, planned=planned), plan


def _plan(
    cards: Cards,
    manifest: Manifest,
    job: Job,
    lengths: LengthProfile,
    outputs: LengthHistogram | None,
) -> tuple[int, Plan]:
    """The longest context that is of use and fits, and the plan for it."""
    wanted = longest_of_use(manifest, job, lengths)
    try:
        return wanted, plan_on(cards, job, lengths, max_model_len=wanted, outputs=outputs)
    except JobError:
        if wanted <= manifest.max_model_len:
            raise
    least = manifest.max_model_len
    return least, plan_on(cards, job, lengths, max_model_len=least, outputs=outputs)


def longest_of_use(manifest: Manifest, job: Job, lengths: LengthProfile) -> int:
    """Tokens of a row at most: the model's context, or as much of it as the rows may need."""
    own = context_length(job.model.name, job.model.revision)
    if own is None or "max_model_len" in job.engine.options:
        return manifest.max_model_len
    seen = lengths.prompts.longest + lengths.max_tokens
    return min(own, max(COMMON_CONTEXT, 2 * seen))


def _outputs_of_pilot(storage: Storage) -> LengthHistogram | None:
    raw = storage.read_if_there(layout.PILOT)
    found = None if raw is None else orjson.loads(raw).get("outputs")
    if not found or not found["counts"]:
        return None
    return LengthHistogram(tuple(found["lengths"]), tuple(found["counts"]))
