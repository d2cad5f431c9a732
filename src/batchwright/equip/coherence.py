"""Whether the settings of a job belong together: found out before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.config.job import Job
from batchwright.config.sections import Embedding, LoadTarget, PromptSource, Sampling, Scoring
from batchwright.constraints.compiler import job_compiler
from batchwright.core.errors import JobError
from batchwright.core.stores import parse_target
from batchwright.core.structured import constraint_of
from batchwright.engines.openai_options import check_endpoint_job
from batchwright.engines.vllm_setup import check_model
from batchwright.equip.adapters import check_adapters
from batchwright.equip.compatibility import check_here

# What NCCL and vLLM's queues between processes take at least.
SHARED_MEMORY_BYTES = 1 << 30


def check_task(job: Job) -> None:
    """Refuse settings that the task has no use for: they would be dropped in silence."""
    check_loads(job, job.load)
    if job.engine.kind == "openai":
        check_endpoint_job(job)
    if job.engine.kind == "torch" and job.task != "embed":
        raise JobError(
            "the torch engine makes embeddings only", "Set task: embed, or use engine.kind: vllm."
        )
    if job.task not in ("embed", "score") and job.embedding != Embedding():
        raise JobError(
            "the section embedding is for task: embed (and score)", "Set task, or remove it."
        )
    if job.embedding.prompt is not None and job.embedding.prompt_name is not None:
        raise JobError("embedding: give one of prompt and prompt_name")
    if job.task in ("generate", "embed"):
        if job.scoring != Scoring():
            raise JobError(
                "the section scoring is for task: classify, score and reward",
                "Set task, or remove it.",
            )
        if job.task == "generate":
            return
    _check_without_answers(job)


def check_loads(job: Job, targets: Sequence[LoadTarget]) -> None:
    """Find out without a connection what cannot be loaded into vector databases."""
    if targets and job.task != "embed":
        raise JobError(f"load: task: {job.task} makes no vectors", "Set task: embed, or remove it.")
    names = [parse_target(one.to).name for one in targets]
    twice = [one.to for one, name in zip(targets, names, strict=True) if names.count(name) > 1]
    if twice:
        raise JobError(f"load: {twice[0]} stands there twice", "Remove one of the two.")


def _check_without_answers(job: Job) -> None:
    """What no task has a use for that makes no text."""
    task = job.task
    if job.plan.max_hours is not None or job.plan.max_usd is not None:
        raise JobError(
            f"plan.max_hours and max_usd need a pilot, and there is none for task: {task} yet",
            "Remove them; `batchwright status` shows the rate while the job runs.",
        )
    if job.sampling != Sampling():
        raise JobError(
            f"task: {task} samples nothing", "Remove the section sampling, --max-tokens too."
        )
    source = job.prompt
    if source.images or source.audio:
        raise JobError(f"task: {task} reads text: prompt.images and prompt.audio are for answers")
    if source.system or source.examples or source.chat or (source.messages and task == "embed"):
        raise JobError(
            f"task: {task} reads plain text: prompt.messages, system, examples and chat are for "
            "generated answers"
            if task == "embed"
            else f"task: {task} reads texts as they are: prompt.system, examples and chat are for "
            "generated answers",
            "An instruction ahead of each input goes into embedding.prompt."
            if task == "embed"
            else "Put an instruction into prompt.template.",
        )
    if task == "score" and source != PromptSource():
        raise JobError(
            "task: score reads the columns of the section scoring, and no prompt",
            "Remove the section prompt; set scoring.query and scoring.document.",
        )
    if task == "score" and (job.embedding.prompt or job.embedding.prompt_name):
        raise JobError(
            "embedding.prompt is for task: embed",
            "Texts ahead of a query and a document are scoring.query_prompt and document_prompt.",
        )


def check_engine(job: Job) -> None:
    """What can be said of the engine before it is started. Raises JobError."""
    if job.engine.kind == "fake":
        return
    if not job.model.name:
        raise JobError(
            "no model is given", "Name one: --model NAME, or model.name in the job file."
        )
    if job.engine.kind == "openai":
        return  # whose options the survey checks
    check_model(job.model.name, job.engine.options)
    check_adapters(job)
    check_here(job)


def check_constraint(job: Job) -> None:
    """Compile the job's own schema, regex or grammar as the engine would. Raises JobError."""
    structured = job.sampling.structured_outputs
    if structured is None:
        return
    compiler = job_compiler(job)
    constraint = constraint_of(structured)
    problem = compiler.problem(constraint)
    compiler.close()
    if problem is not None:
        raise JobError(
            f"sampling.structured_outputs.{constraint.kind}: {problem}",
            "Mend it, or name a backend that knows it: engine.options.structured_outputs_config: "
            "{backend: xgrammar} (or guidance, auto).",
        )


def check_shared_memory(job: Job, cards: int, size_bytes: int | None) -> None:
    """Refuse an engine over several cards where `/dev/shm` is too small for it.

    It would load the model for minutes and die then, in words about the bus or about NCCL.
    """
    if job.engine.kind != "vllm" or cards < 2 or size_bytes is None:
        return
    if size_bytes < SHARED_MEMORY_BYTES:
        raise JobError(
            f"/dev/shm has {size_bytes >> 20} MiB; an engine over {cards} cards needs 1 GiB of it",  # noqa: S108
            "In a pod mount an emptyDir with medium: Memory there (`batchwright k8s render` does); "
            "with Docker use --shm-size=8g or --ipc=host.",
        )
