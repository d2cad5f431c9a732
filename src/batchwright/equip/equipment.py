"""What a worker works with: its tokenizer, its engine's settings, its parsers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from batchwright.config.job import Job
from batchwright.constraints.backends import CONFIG_OPTION, default_config
from batchwright.core.errors import JobError
from batchwright.core.ports import EngineSettings, Tokenizer
from batchwright.core.tasks import TaskSettings
from batchwright.engines.openai_options import parse_options, worker_options
from batchwright.engines.reading import AnswerReader, ReaderSettings
from batchwright.equip.adapters import adapter_options
from batchwright.rundir.manifest import Manifest
from batchwright.tokens.load import endpoint_tokenizer, load_tokenizer

DEFAULT_MAX_NUM_SEQS = {"vllm": 256, "torch": 16384, "fake": 256}

# Engines that are told nothing of the model but its name.
_WITHOUT_MODEL_FILES = ("fake", "openai")

# What the engine is told through the model section, by the engine's own names.
_MODEL_OPTIONS = ("dtype", "revision", "tokenizer", "trust_remote_code")


def answer_reader(job: Job, log_path: Path) -> AnswerReader | None:
    """What takes thoughts and tool calls out of the answers; None if nobody asked for it."""
    model = job.model
    if model.reasoning_parser is None and model.tool_call_parser is None:
        return None
    own = model.tokenizer in (None, model.name)
    return AnswerReader(
        ReaderSettings(
            model=model.name,
            tokenizer=model.tokenizer or model.name,
            revision=model.revision if own else None,
            trust_remote_code=model.trust_remote_code,
            reasoning_parser=model.reasoning_parser,
            tool_call_parser=model.tool_call_parser,
        ),
        log_path,
    )


def engine_settings(manifest: Manifest, job: Job, tokenizer: Tokenizer) -> EngineSettings:
    """What the engine is started with: the job's own options, then the plan's, then defaults."""
    options = {**adapter_options(job), **manifest.planned, **job.engine.options}
    for ours in ("replicas", "engines_per_gpu"):
        options.pop(ours, None)
    asked = options.pop("max_num_seqs", None)
    options.pop("max_model_len", None)
    if job.engine.kind == "openai":
        options = worker_options(
            options,
            hang_timeout_s=job.engine.hang_timeout_s,
            replicas=num_replicas(manifest, job),
        )
        max_num_seqs = int(asked or parse_options(options).rows_at_once(embeds=job.task == "embed"))
    else:
        max_num_seqs = int(asked or DEFAULT_MAX_NUM_SEQS[job.engine.kind])
    if job.engine.kind not in _WITHOUT_MODEL_FILES:
        for key in _MODEL_OPTIONS:
            value = getattr(job.model, key)
            if value is not None:
                options.setdefault(key, value)
    if job.engine.kind == "vllm" and job.task == "generate":
        options.setdefault(CONFIG_OPTION, default_config(job.sampling.structured_outputs))
    if job.engine.kind == "vllm" and job.model.reasoning_parser is not None:
        # So that a constraint on the answer begins where the thoughts end.
        options.setdefault("reasoning_parser", job.model.reasoning_parser)
    return EngineSettings(
        kind=job.engine.kind,
        model=job.model.name,
        max_num_seqs=max_num_seqs,
        max_model_len=manifest.max_model_len,
        eos_token_ids=tokenizer.eos_token_ids,
        vocab_size=tokenizer.vocab_size,
        options=options,
        task=with_step_token(job.task_settings(), job.scoring.step_token, tokenizer),
        adapters=job.model.adapters,
    )


def with_step_token(task: TaskSettings, spelled: str | None, tokenizer: Tokenizer) -> TaskSettings:
    """The task with the id of the token that ends a step. Raises JobError."""
    if task.method != "steps" or spelled is None:
        return task
    (ids,) = tokenizer.encode([spelled], add_special_tokens=False)
    if len(ids) != 1:
        raise JobError(
            f"scoring.step_token {spelled!r} is {len(ids)} tokens, not one",
            "Name the token that the model was trained to find at the end of each step.",
        )
    return replace(task, step_token_id=ids[0])


def row_timeout_s(job: Job) -> float:
    """How long a row may be in the engine.

    For ever where that is no more than a queue to endpoints: what a provider allows per minute may
    keep a row there for hours. Its own time-out is for each request.
    """
    return math.inf if job.engine.kind == "openai" else job.run.row_timeout_s


def num_replicas(manifest: Manifest, job: Job) -> int:
    """Engines that run at the same time, those that share a card not counted apart."""
    return int(job.run.replicas or manifest.planned.get("replicas", 1))


def engines_per_gpu(manifest: Manifest, job: Job) -> int:
    """Engines that share each card, at most."""
    return int(job.run.engines_per_gpu or manifest.planned.get("engines_per_gpu", 1))


def gpus_per_replica(manifest: Manifest, job: Job) -> int:
    """Cards that one engine takes, 1 also where there are none."""
    options = {**manifest.planned, **job.engine.options}
    return int(options.get("tensor_parallel_size", 1)) * int(
        options.get("pipeline_parallel_size", 1)
    )


def job_tokenizer(job: Job) -> Tokenizer:
    """The tokenizer of the job's model."""
    if job.engine.kind == "openai":
        return endpoint_tokenizer(job)
    model = job.model
    return load_tokenizer(
        name=model.name,
        tokenizer=model.tokenizer,
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
        chat_template_path=model.chat_template,
    )
