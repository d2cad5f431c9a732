"""What a model that makes scores says of itself: its head, its labels, its prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.tasks import ScoreMethod
from batchwright.tokens.files import read_json
from batchwright.tokens.pooling import read_embedding_model, resolve_embedding

# What a config without labels means to transformers.
_DEFAULT_NUM_LABELS = 2

# The ends of the architectures' names that tell how a model comes to its scores; first match wins.
_METHODS: tuple[tuple[str, ScoreMethod], ...] = (
    ("ForProcessRewardModel", "steps"),
    ("ForRewardModel", "tokens"),
    ("ForSequenceClassification", "head"),
    ("ClassificationModel", "head"),
)

_ALLOWED: Mapping[str, tuple[ScoreMethod, ...]] = {
    "classify": ("head",),
    "score": ("head", "vectors"),
    "reward": ("head", "tokens", "steps"),
}

# Names that sentence-transformers knows for what is searched in.
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class ScoringModel(NamedTuple):
    """What the config of a model says.

    Attributes:
        architecture: its first one; empty if it names none.
        labels: of its outputs, in their order.
    """

    architecture: str
    labels: tuple[str, ...]

    @property
    def method(self) -> ScoreMethod | None:
        """How it comes to its scores; None if it makes none by itself."""
        for end, method in _METHODS:
            if self.architecture.endswith(end):
                return method
        return None


def resolve_scoring(job: Job) -> Job:
    """The job with what its model decides filled in: method, labels, prompts, raw or not.

    Raises:
        JobError: the model is of another kind than the task needs.
    """
    asked = job.scoring
    model = read_scoring_model(job) if job.model.name else ScoringModel("", ())
    method = _method(job, model)
    found: dict[str, Any] = {"method": method}
    if job.task == "classify":
        found["labels"] = _labels(job, model)
    elif method == "head" and job.model.name and len(model.labels) != 1:
        raise JobError(
            f"task: {job.task} needs a model with one output, and {job.model.name} has "
            f"{len(model.labels)}: {_some(model.labels)}",
            "task: classify tells the probability of each.",
        )
    if asked.raw is None:
        found["raw"] = job.task == "reward" and method != "steps"
    _check_steps(job, method)
    if method == "vectors":
        job = resolve_embedding(job)
        found |= _prompts(job)
    return job.model_copy(update={"scoring": asked.model_copy(update=found)})


def read_scoring_model(job: Job) -> ScoringModel:
    """Read a model's config, with what `engine.options.hf_overrides` lays on top. Raises JobError."""
    config = read_json(job.model.name, "config.json", job.model.revision)
    overrides = job.engine.options.get("hf_overrides")
    if isinstance(overrides, dict):
        config = {**config, **overrides}
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    return ScoringModel(architecture, _labels_of(config))


def _labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    if isinstance(named, dict) and named and all(str(key).isdigit() for key in named):
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = config.get("num_labels")
    count = count if type(count) is int and count > 0 else _DEFAULT_NUM_LABELS
    return tuple(f"LABEL_{index}" for index in range(count))


def _method(job: Job, model: ScoringModel) -> ScoreMethod:
    asked = job.scoring.method
    allowed = _ALLOWED[job.task]
    method = asked if asked != "auto" else _own_method(job, model)
    if method not in allowed:
        raise JobError(
            f"task: {job.task} takes scoring.method {', '.join(allowed)}, not {method}",
            "Unset it, unless the model's architecture does not say it.",
        )
    return method


def _own_method(job: Job, model: ScoringModel) -> ScoreMethod:
    """The method that the architecture stands for; a model of another kind is refused."""
    if not job.model.name:
        return "head"
    found = model.method
    if job.task == "score" and found is None:
        return "vectors"
    if found is None or found not in _ALLOWED[job.task]:
        needed = {
            "classify": "a classification head (…ForSequenceClassification)",
            "score": "a classification head with one output, or vectors",
            "reward": "a head with one output, or a reward model (…ForRewardModel, "
            "…ForProcessRewardModel)",
        }[job.task]
        raise JobError(
            f"task: {job.task} needs {needed}; {job.model.name} is "
            f"{model.architecture or 'of no named architecture'}",
            "Name another model, or say with scoring.method how this one is to be read.",
        )
    return found


def _labels(job: Job, model: ScoringModel) -> list[str]:
    asked = job.scoring.labels
    if asked is None:
        return list(model.labels) or [f"LABEL_{index}" for index in range(_DEFAULT_NUM_LABELS)]
    if len(set(asked)) < len(asked) or not asked:
        raise JobError("scoring.labels: give each label once")
    if model.labels and len(asked) != len(model.labels):
        raise JobError(
            f"scoring.labels names {len(asked)}, but {job.model.name} has {len(model.labels)} "
            f"outputs: {_some(model.labels)}"
        )
    return asked


def _some(labels: tuple[str, ...]) -> str:
    return ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "")


def _check_steps(job: Job, method: ScoreMethod) -> None:
    token = job.scoring.step_token
    if method == "steps" and not token:
        raise JobError(
            "a process reward model needs scoring.step_token: the token that ends each step",
            "Qwen2.5-Math-PRM has <extra_0>; the model's page says which.",
        )
    if method != "steps" and token:
        raise JobError("scoring.step_token is for process reward models only", "Remove it.")
    if method == "steps" and job.scoring.raw:
        raise JobError("scoring.raw: steps have a probability and nothing else", "Remove it.")


def _prompts(job: Job) -> dict[str, str]:
    """What goes ahead of queries and documents: the job's own words, or the model's."""
    own = read_embedding_model(job).prompts
    query, document = job.scoring.query_prompt, job.scoring.document_prompt
    if query is None:
        query = own.get("query", "")
    if document is None:
        document = next((own[name] for name in _DOCUMENT_PROMPTS if name in own), "")
    return {"query_prompt": query, "document_prompt": document}
