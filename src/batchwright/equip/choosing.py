"""Which engine a job runs on where it does not say: by its task, its options and its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from batchwright.config.job import Job
from batchwright.engines.torch_model import LOAD_FORMATS, OPTION_NAMES
from batchwright.engines.torch_packed import KINDS
from batchwright.machine.hardware import local_gpus
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import run_if_there
from batchwright.tokens.files import has_safetensors, read_json
from batchwright.tokens.pooling import read_embedding_model

# Read by us for every engine, not by the engine itself.
_FOR_ANY_ENGINE = ("max_num_seqs", "max_model_len")

# vLLM refuses these.
_ONLY_TORCH = ("attention", "device", "max_batch_tokens")


class Choice(NamedTuple):
    """An engine, and why it is that one, in words."""

    kind: Literal["vllm", "torch"]
    why: str


class ModelFiles(NamedTuple):
    """What a model's files say that matters to the choice.

    Attributes:
        config: its config.json; empty if there is none.
        layers_after: its modules after the pooling.
        has_weights: whether they are in a form that the torch engine reads.
    """

    config: Mapping[str, Any]
    layers_after: tuple[str, ...] = ()
    has_weights: bool = True


def with_engine(
    job: Job, run_dir: Location | None = None, *, on_ray: bool = False
) -> tuple[Job, str]:
    """The job with an engine by name, where it leaves the choice open.

    A run that is there already goes on with its own.

    Args:
        job: with the task that it will have.
        run_dir: where its run lives, or will live; None if it leaves none.
        on_ray: whether its engines run on a Ray cluster, whatever `run.executor` says.

    Returns:
        The job, and a line on why it is this engine; empty where there was nothing to choose.

    Raises:
        JobError: the files of the model cannot be read.
    """
    if job.engine.kind != "auto":
        return job, ""
    if job.task != "embed":
        return _on(job, "vllm"), ""
    begun = None if run_dir is None else _engine_of_run(run_dir)
    if begun is not None:
        return _on(job, begun), ""
    on_ray = on_ray or job.run.executor == "ray"
    choice = choose_by_job(job) or choose_by_model(
        _model_files(job), on_gpu=_gpu_on_ray(job) if on_ray else local_gpus() is not None
    )
    return _on(job, choice.kind), f"engine: {choice.kind}, {choice.why}"


def choose_by_job(job: Job) -> Choice | None:
    """The engine that a job of `task: embed` needs whatever its model is; None if that decides."""
    options = job.engine.options
    unknown = sorted(options.keys() - OPTION_NAMES - set(_FOR_ANY_ENGINE))
    if unknown:
        return Choice("vllm", f"for engine.options.{unknown[0]}, which torch does not have")
    if options.get("load_format", "auto") not in LOAD_FORMATS:
        return Choice("vllm", "for engine.options.load_format, which torch does not have")
    if job.model.adapters:
        return Choice("vllm", "for model.adapters, which torch does not have")
    own = next((name for name in _ONLY_TORCH if name in options), None)
    if own is not None:
        return Choice("torch", f"for engine.options.{own}, which vLLM does not have")
    return None


def choose_by_model(model: ModelFiles, *, on_gpu: bool) -> Choice:
    """The engine for a model's vectors: torch for the common encoders, which it runs much faster.

    Args:
        model: what its files say.
        on_gpu: whether the engines may have one; on a CPU torch is no faster than vLLM.
    """
    config, layers_after = model.config, model.layers_after
    kind = str(config.get("model_type", ""))
    if kind not in KINDS:
        return Choice("vllm", f"since the model is no common encoder ({kind or 'no config.json'})")
    if "auto_map" in config:
        return Choice("vllm", "since the model brings code of its own")
    if config.get("position_embedding_type", "absolute") != "absolute":
        return Choice("vllm", "since the model's positions are not those of a common encoder")
    if config.get("quantization_config"):
        return Choice("vllm", "since the model's weights are quantised")
    if layers_after:
        return Choice(
            "vllm", f"for the model's layers after the pooling ({', '.join(layers_after)})"
        )
    if not model.has_weights:
        return Choice("vllm", "since the model's weights are no safetensors")
    if not on_gpu:
        return Choice("vllm", "since there is no GPU here, and torch is no faster on a CPU")
    return Choice("torch", f"which runs small encoders ({kind}) faster than vLLM")


def _engine_of_run(run_dir: Location) -> Literal["vllm", "torch"] | None:
    """What a run of embeddings was begun with, if it is an engine that may be chosen."""
    found = run_if_there(run_dir)
    if found is None or found[1].job.get("task") != "embed":
        return None
    kind: Literal["vllm", "torch"] | None = found[1].job["engine"]["kind"]
    return kind if kind in ("vllm", "torch") else None


def _model_files(job: Job) -> ModelFiles:
    """Read them; a single file, or no model at all, says nothing. Raises JobError."""
    name, revision = job.model.name, job.model.revision
    if not name or Path(name).is_file():
        return ModelFiles({})
    dummy = job.engine.options.get("load_format") == "dummy"
    return ModelFiles(
        read_json(name, "config.json", revision),
        read_embedding_model(job).layers_after,
        dummy or has_safetensors(name, revision),
    )


def _gpu_on_ray(job: Job) -> bool:
    """Whether engines on Ray will see a GPU: its nodes are elsewhere, so unless none is wanted."""
    return job.run.ray.gpus_per_engine != 0


def _on(job: Job, kind: Literal["vllm", "torch"]) -> Job:
    return job.model_copy(update={"engine": job.engine.model_copy(update={"kind": kind})})
