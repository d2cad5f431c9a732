"""What an embedding model says of itself: its pooling, its dimensions, how much it reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.vectors import Pooling
from batchwright.tokens.context import context_length
from batchwright.tokens.files import read_json, read_list, with_text_config

# Without a model there is nothing to ask: the size of many small encoders.
FAKE_DIMENSIONS = 384

# Their positions begin after the padding token's id, so that two of the first are never used.
_OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl"})

_MODES: dict[str, Pooling] = {
    "mean": "mean", "cls": "cls", "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip


class EmbeddingModel(NamedTuple):
    """What the files of a model say.

    Attributes:
        pooling: None if they do not say, or name one that is not served.
        named_pooling: what they say, for a message; empty if nothing.
        dimensions: numbers per vector; 0 if unknown.
        layers_after: sentence-transformers modules after the pooling, such as Dense.
        prompts: texts to be put ahead of an input, by name.
        default_prompt: name of the one that is meant where none is named.
    """

    pooling: Pooling | None
    named_pooling: str
    dimensions: int
    layers_after: tuple[str, ...]
    prompts: Mapping[str, str] = MappingProxyType({})
    default_prompt: str = ""


_WITHOUT_MODEL = EmbeddingModel("mean", "", FAKE_DIMENSIONS, ())


def resolve_embedding(job: Job) -> Job:
    """The job with what its model decides filled in: pooling and dimensions.

    Raises:
        JobError: the model's files do not say it, or contradict the job.
    """
    asked = job.embedding
    if job.engine.kind == "openai":
        return _as_endpoint_pools(job)
    model = read_embedding_model(job) if job.model.name else _WITHOUT_MODEL
    if job.engine.kind == "torch" and model.layers_after:
        raise JobError(
            f"the model {job.model.name} has layers after the pooling "
            f"({', '.join(model.layers_after)}), which the torch engine does not run",
            "Use engine.kind: vllm.",
        )
    pooling = model.pooling if asked.pooling == "auto" else asked.pooling
    if pooling is None:
        said = f" ({model.named_pooling} is not served)" if model.named_pooling else ""
        raise JobError(
            f"the files of {job.model.name} do not say how its vectors are pooled{said}",
            "Set embedding.pooling to mean, cls or last, as the model's page says: with the wrong "
            "one its vectors are worth little.",
        )
    dimensions = asked.dimensions or model.dimensions
    if not dimensions:
        raise JobError(
            f"the config of {job.model.name} does not say how long its vectors are",
            "Set embedding.dimensions.",
        )
    if 0 < model.dimensions < dimensions:
        raise JobError(
            f"embedding.dimensions is {dimensions}, but the model makes {model.dimensions}"
        )
    known = asked.model_copy(
        update={
            "pooling": pooling,
            "dimensions": dimensions,
            "prompt": _prompt_of(job, model),
            "prompt_name": None,
        }
    )
    return job.model_copy(update={"embedding": known})


def _prompt_of(job: Job, model: EmbeddingModel) -> str | None:
    """The text ahead of each input: the job's own, or the model's by name. Raises JobError."""
    asked = job.embedding
    if job.task != "embed":
        return None
    if asked.prompt is not None:
        return asked.prompt
    if asked.prompt_name is None:
        return model.prompts.get(model.default_prompt) or None
    if asked.prompt_name not in model.prompts:
        there = ", ".join(map(repr, model.prompts)) or "none"
        raise JobError(
            f"embedding.prompt_name is {asked.prompt_name!r}, but {job.model.name or 'no model'} "
            f"has no such prompt (there are: {there})",
            "Its config_sentence_transformers.json lists them; embedding.prompt takes a text.",
        )
    return model.prompts[asked.prompt_name]


def _as_endpoint_pools(job: Job) -> Job:
    """The job with vectors as its endpoint makes them: only their length has to be said."""
    asked = job.embedding
    if asked.pooling != "auto":
        raise JobError(
            "embedding.pooling: an endpoint pools as it was started; it cannot be told",
            "Remove it.",
        )
    if asked.dimensions is None:
        raise JobError(
            f"nothing here says how long the vectors of {job.model.name} are",
            "Set embedding.dimensions.",
        )
    # Not used by anyone: the field must say something, and `mean` is what most servers do.
    known = asked.model_copy(update={"pooling": "mean"})
    return job.model_copy(update={"embedding": known})


def read_embedding_model(job: Job) -> EmbeddingModel:
    """Read a model's config and its sentence-transformers files. Raises JobError."""
    name, revision = job.model.name, job.model.revision
    modules = read_list(name, "modules.json", revision)
    config = read_json(name, "config.json", revision)
    dimensions = _first_int(with_text_config([config]), "hidden_size", "dim", "d_model")
    pooling: Pooling | None = None
    named = ""
    after: list[str] = []
    for module in modules:
        kind, path = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Pooling":
            settings = read_json(name, f"{path or '1_Pooling'}/config.json", revision)
            pooling, named = _pooling_of(settings)
        elif kind == "Dense":
            dense = read_json(name, f"{path}/config.json", revision)
            dimensions = _first_int([dense], "out_features") or dimensions
        if kind not in ("Transformer", "Pooling", "Normalize"):
            after.append(kind)
    own = read_json(name, "config_sentence_transformers.json", revision)
    prompts = own.get("prompts")
    texts = prompts.items() if isinstance(prompts, dict) else ()
    return EmbeddingModel(
        pooling,
        named,
        dimensions,
        tuple(after),
        {str(key): text for key, text in texts if isinstance(text, str)},
        str(own.get("default_prompt_name") or ""),
    )


def _pooling_of(settings: dict[str, Any]) -> tuple[Pooling | None, str]:
    """The pooling that a `1_Pooling/config.json` names, in its old or new form."""
    mode = settings.get("pooling_mode")
    on = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value]
    wanted = [mode] if isinstance(mode, str) else on
    if "include_prompt" in settings and settings["include_prompt"] is False:
        return None, "pooling without the prompt"
    if len(wanted) != 1:
        return None, " + ".join(wanted)
    return _MODES.get(wanted[0]), wanted[0]


def _first_int(configs: Any, *names: str) -> int:
    for config in configs:
        for name in names:
            if type(config.get(name)) is int:
                return int(config[name])
    return 0


def input_length(job: Job) -> int | None:
    """Tokens that an embedding model reads at most; None if its files do not say.

    Raises:
        JobError: they cannot be read.
    """
    name, revision = job.model.name, job.model.revision
    if not name:
        return None
    length = context_length(name, revision)
    config = read_json(name, "config.json", revision)
    if length is not None and config.get("model_type") in _OFFSET_POSITIONS:
        length -= int(config.get("pad_token_id", 1)) + 1
    sentence = read_json(name, "sentence_bert_config.json", revision).get("max_seq_length")
    known = [value for value in (length, sentence) if type(value) is int]
    return min(known, default=None)
