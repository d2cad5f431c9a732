"""The plan of a job: the model's config, the cards and the data's lengths in, settings out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.plan import GpuFacts, Plan
from batchwright.core.profile import LengthProfile
from batchwright.core.workload import Workload
from batchwright.hardware import local_gpus
from batchwright.plan.gpus import GPUS, find_gpu
from batchwright.plan.model_facts import model_facts
from batchwright.plan.search import make_plan
from batchwright.tokens.files import read_json


def plan_job(job: Job, profile: LengthProfile) -> Plan:
    """Plan a job for the cards that it names, or for this machine's own.

    Args:
        job: its engine options are taken as given and checked.
        profile: of the job's rows.

    Raises:
        JobError: the model's config says too little, there is no such card, the model does not
            fit (with the sum), or an engine option cannot work.
    """
    if not job.model.name:
        raise JobError(
            "no model is given", "Name one: --model NAME, or model.name in the job file."
        )
    gpu, count, linked = choose_gpus(job)
    options = job.engine.options
    facts = model_facts(
        read_json(job.model.name, "config.json", job.model.revision),
        weight_bytes=weight_bytes(job.model.name, job.model.revision),
        dtype=job.model.dtype,
        quantization=options.get("quantization"),
        kv_cache_dtype=options.get("kv_cache_dtype", "auto"),
    )

    def make(cached_share: float) -> Plan:
        return make_plan(
            facts,
            gpu,
            count,
            workload_of(profile, cached_share),
            user=user_settings(job),
            usd_per_gpu_hour=job.plan.usd_per_gpu_hour,
            linked_by_nvlink=linked,
        )

    # How much the prefix cache saves depends on its size, which the first plan tells.
    first = make(0.0)
    saved = profile.prefix.at(first.memory.capacity_tokens).hit_rate_file_order
    return make(saved) if saved else first


def workload_of(profile: LengthProfile, cached_share: float) -> Workload:
    """The work that the plan is for, with what the prefix cache saves in file order."""
    return Workload(
        prompts=profile.prompts,
        outputs=None,
        max_tokens=profile.max_tokens,
        cached_share=cached_share,
    )


def choose_gpus(job: Job) -> tuple[GpuFacts, int, bool]:
    """The cards to plan for, how many, and whether NVLink joins them."""
    if job.hardware.gpu is not None:
        gpu = find_gpu(job.hardware.gpu)
        return gpu, job.hardware.count, gpu.nvlink
    own = local_gpus()
    if own is None:
        raise JobError(
            "this machine has no GPU to plan for",
            f"Name the kind of card: --gpu NAME (one of {', '.join(GPUS)}).",
        )
    return replace(find_gpu(own.name), memory_bytes=own.memory_bytes), own.count, own.linked


def user_settings(job: Job) -> dict[str, Any]:
    """What the user has set and the plan must keep."""
    settings = dict(job.engine.options)
    if "replicas" in job.run.model_fields_set and job.run.replicas > 1:
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
