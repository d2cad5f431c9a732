"""What a run was told by its job file and its plan, as the diagnosis needs it."""

from __future__ import annotations

import re
from pathlib import Path

from batchwright.config.job import Job
from batchwright.core.sampling import PRESETS
from batchwright.diagnose.evidence import PlanEvidence, Settings
from batchwright.equip.equipment import engines_per_gpu, num_replicas
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.promised import read_plan
from batchwright.rundir.storage import Storage
from batchwright.validate.sampling import DEFAULT_MAX_TOKENS

# Names of models that were tuned for chat.
_CHAT_NAME = re.compile(r"instruct|chat|assistant|[-_]it\b", re.IGNORECASE)


def told_settings(job: Job, manifest: Manifest, order: str) -> Settings:
    """The settings that rules look at; `order` is the one in which most rows ran."""
    options = {**manifest.planned, **job.engine.options}
    sampling = {**PRESETS[job.sampling.preset], **job.sampling.given()}
    raw = job.task == "generate" and not manifest.chat and manifest.format != "openai-batch"
    return Settings(
        task=job.task,
        engine=job.engine.kind,
        chat=not raw,
        raw_to_chat_model=raw and _is_chat_model(job.model.name),
        replicas=num_replicas(manifest, job),
        engines_per_gpu=engines_per_gpu(manifest, job),
        tensor_parallel=int(options.get("tensor_parallel_size", 1)),
        prepare_processes=job.run.prepare_processes,
        media_workers=job.media.workers,
        order=order,
        asked_order=job.run.order,
        chunk_rows=job.run.chunk_rows,
        repeat_once=job.run.repeat_once,
        max_model_len=manifest.max_model_len,
        max_tokens=sampling.get("max_tokens") or DEFAULT_MAX_TOKENS,
        gpu_memory_utilization=options.get("gpu_memory_utilization"),
        watermark=options.get("watermark"),
        max_num_batched_tokens=options.get("max_num_batched_tokens"),
        enforce_eager=bool(options.get("enforce_eager")),
        user_options=frozenset(job.engine.options),
        temperature=sampling.get("temperature"),
        top_p=sampling.get("top_p"),
        min_p=sampling.get("min_p"),
        repetition_penalty=sampling.get("repetition_penalty"),
        ignore_eos=bool(sampling.get("ignore_eos")),
        max_failed=job.run.max_failed,
    )


def _is_chat_model(name: str) -> bool:
    if not name:
        return False
    folder = Path(name)
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        config = (folder / "tokenizer_config.json").read_bytes()
    except OSError:  # a hub id: its name has to do
        config = b""
    return b'"chat_template"' in config or bool(_CHAT_NAME.search(folder.name))


def told_plan(storage: Storage) -> PlanEvidence | None:
    """The figures of the plan; None where a run had none, or one of another version."""
    plan = read_plan(storage)
    if plan is None:
        return None
    options = plan.engine_options()
    return PlanEvidence(
        gpu=plan.gpu.name,
        memory_bytes=plan.gpu.memory_bytes,
        bandwidth_bytes_s=plan.gpu.bandwidth_bytes_s,
        flops=plan.gpu.peak_flops(plan.model),
        nvlink=plan.gpu.nvlink,
        weight_bytes=plan.model.weight_bytes,
        active_parameters=plan.model.active_parameters,
        kv_bytes_per_token=plan.model.kv_bytes_per_token,
        activations_bytes=plan.memory.activations,
        cards=int(options.get("tensor_parallel_size") or 1)
        * int(options.get("pipeline_parallel_size") or 1),
    )
