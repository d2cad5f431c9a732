"""Settle what the engine of a run is started with: planned for this machine's cards."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import orjson

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.plan import Plan
from batchwright.core.profile import LengthProfile
from batchwright.core.workload import LengthHistogram
from batchwright.engines.vllm_setup import CPU_BLOCK_SIZE, CPU_KV_CACHE_BYTES, is_cpu_build
from batchwright.foresight.planning import Cards, plan_on
from batchwright.foresight.profiling import look_at_rows
from batchwright.plan.explain import shown
from batchwright.plan.model_facts import model_facts
from batchwright.rundir import layout
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import Manifest, differences, open_manifest, run_if_there
from batchwright.rundir.storage import Storage
from batchwright.running.mending import mend
from batchwright.tokens.context import context_length
from batchwright.tokens.files import read_json

# A longer context is taken only if the rows seen need it: block tables grow with it.
COMMON_CONTEXT = 32_768


@dataclass(frozen=True, slots=True)
class Opened:
    """A run directory ready to be worked on; `plan` is None where there are no cards."""

    storage: Storage
    manifest: Manifest
    plan: Plan | None
    resumed: bool


def open_settled(
    run_dir: Location, wanted: Manifest, job: Job, cards: Cards | None, stop: threading.Event
) -> Opened:
    """Make or open a run directory, with the engine's settings for these cards, and mend it."""
    storage = Storage(run_dir)
    settled, plan = settle(wanted, job, cards, storage, stop)
    manifest, resumed = open_manifest(storage, settled)
    if plan is not None:
        storage.put(layout.PLAN, orjson.dumps(plan.as_json(), option=orjson.OPT_INDENT_2))
    mend(storage, manifest, job)
    return Opened(storage, manifest, plan, resumed)


def replan(opened: Opened, job: Job, cards: Cards | None, stop: threading.Event) -> tuple[str, ...]:
    """Plan again with what the run's pilot has measured; returns what changed, a line each."""
    if opened.plan is None:
        return ()
    _, plan = settle(opened.manifest, job, cards, opened.storage, stop)
    assert plan is not None, "there was one for the same cards"
    opened.storage.put(layout.PLAN, orjson.dumps(plan.as_json(), option=orjson.OPT_INDENT_2))
    return what_changed(opened.plan, plan)


def what_changed(before: Plan, after: Plan) -> tuple[str, ...]:
    """The settings that differ, each with the new reason."""
    found = []
    for name, setting in after.settings.items():
        old = before.settings.get(name)
        if old is not None and old.value != setting.value:
            found.append(f"{name} {shown(old.value)} -> {shown(setting.value)}: {setting.why}")
    return tuple(found)


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
        return with_own_cache(manifest, job), None
    lengths = look_at_rows(manifest, job, stop)
    length, plan = _plan(cards, manifest, job, lengths, outputs_of_pilot(storage.place, manifest))
    planned = {**plan.engine_options(), "replicas": plan.replicas * cards.hosts}
    del planned["max_model_len"]
    if plan.pool_of_each is not None:
        engines = plan.value("engines_per_gpu")
        planned |= {
            "engines_per_gpu": engines,
            "gpu_memory_utilization": round(planned["gpu_memory_utilization"] / engines, 3),
            "kv_cache_memory_bytes": plan.pool_of_each,
        }
    tokens = plan.memory.capacity_tokens
    if plan.pool_of_each is not None:
        tokens = plan.pool_of_each // max(1, plan.memory.kv_per_token)
    return replace(manifest, max_model_len=length, planned=planned, kv_tokens=tokens), plan


def with_own_cache(manifest: Manifest, job: Job) -> Manifest:
    """The manifest with the KV cache that an engine without a card will have."""
    options = job.engine.options
    if job.engine.kind == "fake":
        return replace(manifest, kv_tokens=int(options.get("kv_tokens", 0)))
    if job.engine.kind != "vllm" or job.task != "generate" or not is_cpu_build():
        return manifest
    try:
        facts = model_facts(
            read_json(job.model.name, "config.json", job.model.revision),
            weight_bytes=None,
            dtype=job.model.dtype,
        )
    except JobError:  # a model that the arithmetic does not know may run all the same
        return manifest
    size = int(options.get("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES))
    tokens = size // max(1, facts.kv_bytes_per_token)
    return replace(manifest, kv_tokens=tokens, block_size=CPU_BLOCK_SIZE)


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


def outputs_of_pilot(run_dir: Location, manifest: Manifest) -> LengthHistogram | None:
    """Output tokens of the answers of a run's pilot.

    Args:
        run_dir: of the run.
        manifest: of the surveyed job.

    Returns:
        None if there has been no pilot, or the folder holds another job.
    """
    run = run_if_there(run_dir)
    if run is None or differences(run[1].fingerprint, manifest.fingerprint):
        return None
    pilot = run[0].read_if_there(layout.PILOT)
    found = None if pilot is None else orjson.loads(pilot).get("outputs")
    if not found or not found["counts"]:
        return None
    return LengthHistogram(tuple(found["lengths"]), tuple(found["counts"]))
