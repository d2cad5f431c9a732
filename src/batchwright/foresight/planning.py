"""The plan of a job: the model's config, the cards and the data's lengths in, settings out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.plan import GpuFacts, Plan
from batchwright.core.profile import LengthProfile
from batchwright.core.workload import LengthHistogram, Workload
from batchwright.engines.vllm_setup import is_cpu_build
from batchwright.equip.adapters import other_bases
from batchwright.equip.compatibility import check_compatible, with_companions
from batchwright.executors.ray_cluster import cluster_cards
from batchwright.machine.best_settings import Found, find_sweep, sweep_key
from batchwright.machine.hardware import link_note, local_gpus, usable_cores
from batchwright.plan.density import share_cards
from batchwright.plan.gpus import GPUS, assumed_link_note, find_gpu
from batchwright.plan.measured import with_sweep
from batchwright.plan.model_facts import model_facts
from batchwright.plan.search import make_plan
from batchwright.tokens.files import read_json

# Cores per card of a host that is not here, as in most clouds' machines.
COMMON_CORES = 12

# Who sets one of these divides the memory of a card himself.
OWN_MEMORY = frozenset({"gpu_memory_utilization", "kv_cache_memory_bytes"})


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards to plan for, and the host that they are in.

    Attributes:
        gpu: their kind.
        count: how many there are.
        linked: whether NVLink joins them.
        cores: of the host.
        note: on how they are joined, for the plan.
        hosts: so many hosts are like this one; a replica never spans two.
    """

    gpu: GpuFacts
    count: int
    linked: bool
    cores: int
    note: str | None = None
    hosts: int = 1


def plan_job(job: Job, profile: LengthProfile) -> Plan:
    """Plan a job for the cards that it names, or for this machine's own.

    Args:
        job: its engine options are taken as given and checked.
        profile: of the job's rows.

    Raises:
        JobError: the model's config says too little, there is no such card, the model does not
            fit (with the sum), or an engine option cannot work.
    """
    if job.task != "generate":
        raise JobError(
            f"there is no plan for task: {job.task}: its batches suit themselves to the rows"
        )
    if job.engine.kind == "openai":
        raise JobError(
            "there is no plan for engine.kind: openai: whoever runs the endpoint has planned it",
            "`batchwright pilot` measures how fast it is.",
        )
    cards = choose_cards(job)
    check_compatible(job, cards.gpu, on_cpu=False)
    return plan_on(cards, job, profile, outputs=profile.outputs)


def plan_on(
    cards: Cards,
    job: Job,
    profile: LengthProfile,
    *,
    max_model_len: int | None = None,
    outputs: LengthHistogram | None = None,
) -> Plan:
    """Plan a job for some cards.

    Args:
        cards: to plan for.
        job: its engine options are taken as given and checked.
        profile: of the job's rows, or of some of them.
        max_model_len: to plan for; from the profile unless given.
        outputs: output tokens that a pilot measured; `max_tokens` stands in without one.

    Raises:
        JobError: see `plan_job`.
    """
    given = user_settings(job)
    if max_model_len is not None:
        given["max_model_len"] = max_model_len
    if outputs is None and job.sampling.ignore_eos:  # then nothing else can end an answer
        outputs = profile.caps
    make = _maker(cards, job, profile, outputs, given)

    # How much the prefix cache saves depends on its size, which the first plan tells.
    first = make(0.0, {})
    saved = profile.prefix.at(first.memory.capacity_tokens).hit_rate_file_order
    found = _sweep_for(cards, job, profile, outputs)
    wanted = dict(given)
    if job.run.engines_per_gpu:
        wanted["engines_per_gpu"] = job.run.engines_per_gpu
    plan = with_sweep(
        make(saved, {}), found.sweep, found.problems, wanted, lambda measured: make(saved, measured)
    )
    notes = [*([cards.note] if cards.note else []), *other_bases(job)]
    return replace(plan, notes=(*plan.notes, *notes))


def _in_rows(plan: Plan, samples: int) -> Plan:
    """A plan for sequences with its rate in rows."""
    if samples == 1:
        return plan
    found = replace(plan.prediction, rows_per_s=plan.prediction.rows_per_s / samples)
    note = f"n is {samples}: rates of single settings, and max_num_seqs, count answers, not rows"
    return replace(plan, prediction=found, notes=(*plan.notes, note))


def _maker(
    cards: Cards,
    job: Job,
    profile: LengthProfile,
    outputs: LengthHistogram | None,
    given: Mapping[str, Any],
) -> Callable[[float, Mapping[str, Any]], Plan]:
    """Makes a plan from the share of prompt tokens that is cached and what a sweep measured."""
    options = job.engine.options
    config = _config(job)
    facts = model_facts(
        config,
        weight_bytes=weight_bytes(job.model.name, job.model.revision),
        dtype=job.model.dtype,
        quantization=options.get("quantization"),
        kv_cache_dtype=options.get("kv_cache_dtype", "auto"),
    )
    facts = with_companions(job, facts, config)

    samples = job.sampling.n or 1

    def make(cached_share: float, measured: Mapping[str, Any]) -> Plan:
        work = Workload(profile.prompts, outputs, profile.max_tokens, cached_share, profile.caps)
        rest = {name: value for name, value in measured.items() if name != "engines_per_gpu"}
        plan = make_plan(
            facts,
            cards.gpu,
            cards.count,
            work.in_samples(samples),
            user={**rest, **given},
            usd_per_gpu_hour=job.plan.usd_per_gpu_hour,
            linked_by_nvlink=cards.linked,
        )
        plan = _in_rows(plan, samples)
        asked = job.run.engines_per_gpu or measured.get("engines_per_gpu")
        if OWN_MEMORY & given.keys() or ("replicas" in given and not asked):
            return plan
        return share_cards(plan, cards.cores // cards.count, asked)

    return make


def _config(job: Job) -> dict[str, Any]:
    if not job.model.name:
        raise JobError(
            "no model is given", "Name one: --model NAME, or model.name in the job file."
        )
    return read_json(job.model.name, "config.json", job.model.revision)


def _sweep_for(
    cards: Cards, job: Job, profile: LengthProfile, outputs: LengthHistogram | None
) -> Found:
    """What an earlier sweep of the same model, card and shape of work measured."""
    key = sweep_key(job, _config(job), cards.gpu.name, profile.prompts, profile.max_tokens)
    return find_sweep(key, outputs.mean if outputs else None)


def choose_cards(job: Job) -> Cards:
    """The cards that a job names, else this machine's own. Raises JobError if there are none."""
    if job.hardware.gpu is not None:
        gpu = find_gpu(job.hardware.gpu)
        count = job.hardware.count
        note = assumed_link_note(gpu, count)
        return Cards(gpu, count, gpu.nvlink, COMMON_CORES * count, note)
    own = _local_cards()
    if own is None:
        raise JobError(
            "this machine has no GPU to plan for",
            f"Name the kind of card: --gpu NAME (one of {', '.join(GPUS)}).",
        )
    return own


def own_cards(job: Job) -> Cards | None:
    """The cards on which a run of the job starts; None if its engine does not plan for any."""
    if job.engine.kind != "vllm" or job.task != "generate":
        return None
    if job.run.executor == "ray":
        return _ray_cards(job)
    return None if is_cpu_build() else _local_cards()


def _ray_cards(job: Job) -> Cards | None:
    """The cards of a node of the job's Ray cluster; those that it names where no node is up yet."""
    if job.run.ray.gpus_per_engine == 0:
        return None
    found = cluster_cards(job.run.ray, _cpus_here(job))
    if found is None:
        return choose_cards(job) if job.hardware.gpu is not None else None
    own, cores, nodes = found
    gpu = replace(find_gpu(own.name), memory_bytes=own.memory_bytes)
    return Cards(gpu, own.count, own.linked, cores, link_note(own), nodes)


def _cpus_here(job: Job) -> float:
    """CPUs that a run takes of a Ray that has to be started on this machine, with its own cards."""
    own = local_gpus()
    replicas = job.run.replicas or (own.count if own is not None else 1)
    engines = replicas * (job.run.engines_per_gpu or 1)
    ray = job.run.ray
    return engines * ray.cpus_per_engine + job.run.prepare_processes * ray.cpus_per_prepare


def _local_cards() -> Cards | None:
    own = local_gpus()
    if own is None:
        return None
    gpu = replace(find_gpu(own.name), memory_bytes=own.memory_bytes)
    return Cards(gpu, own.count, own.linked, usable_cores(), link_note(own))


def user_settings(job: Job) -> dict[str, Any]:
    """What the user has set and the plan must keep."""
    settings = dict(job.engine.options)
    if job.run.replicas is not None:
        settings["replicas"] = job.run.replicas
    return settings


def weight_bytes(name: str, revision: str | None) -> int | None:
    """Bytes of the weights, from the index or the files; None where neither is here."""
    index = read_json(name, "model.safetensors.index.json", revision)
    total = index.get("metadata", {}).get("total_size")
    if isinstance(total, int):
        return total
    folder = Path(name)
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return sum(sizes) if folder.is_dir() and sizes else None
