"""The LoRA adapters of a job: read and checked before anything is started."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchwright.config.job import Job
from batchwright.config.sections import Model
from batchwright.core.errors import JobError
from batchwright.plan.lora import AdapterFacts, check_shapes, lora_options, read_adapter
from batchwright.tokens.files import is_folder, read_json

CONFIG = "adapter_config.json"

# As vLLM looks for them (`LoRAModel.from_local_checkpoint`).
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")

# A header of safetensors is refused beyond this by its own library too.
_LONGEST_HEADER = 100_000_000


def check_adapters(job: Job) -> tuple[AdapterFacts, ...]:
    """Read every adapter of a job and see that it fits the model.

    Raises:
        JobError: names the adapter, what is wrong with it and what to do.
    """
    model = job.model
    if model.adapters and job.task != "generate":
        raise JobError(
            "model.adapters are for task: generate", "Remove them, or merge the adapter."
        )
    return tuple(_check(name, path, model) for name, path in model.adapters.items())


def _check(name: str, path: str, model: Model) -> AdapterFacts:
    try:
        local = is_folder(path)
    except JobError as error:
        raise JobError(f"model.adapters, {name}: {error.message}", "Check the path.") from None
    config = read_json(path, CONFIG, None)
    if not config:
        raise JobError(
            f"model.adapters, {name}: {path} has no {CONFIG}",
            "Give the folder that `save_pretrained` of peft wrote.",
        )
    facts = read_adapter(name, config)
    if local:
        weights = _weights(name, Path(path))
        if weights.suffix == ".safetensors":
            base = read_json(model.name, "config.json", model.revision) if model.name else {}
            check_shapes(name, _shapes(name, weights), base, facts.rank)
    return facts


def _weights(name: str, folder: Path) -> Path:
    for file in WEIGHTS:
        if (folder / file).is_file():
            return folder / file
    raise JobError(
        f"model.adapters, {name}: {folder} has no weights ({' or '.join(WEIGHTS)})",
        "Copy the adapter again.",
    )


def _shapes(name: str, path: Path) -> dict[str, list[int]]:
    """Shapes of the tensors in a safetensors file, from its header alone."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, path.stat().st_size - 8):
                raise ValueError("its header is cut off")
            header: Mapping[str, Any] = json.loads(file.read(length))
        tensors = {key: value for key, value in header.items() if key != "__metadata__"}
        ends = [int(value["data_offsets"][1]) for value in tensors.values()]
        if 8 + length + max(ends, default=0) > path.stat().st_size:
            raise ValueError("it is shorter than its header says")
        return {key: list(value["shape"]) for key, value in tensors.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(
            f"model.adapters, {name}: {path} is damaged ({error})", "Copy the adapter again."
        ) from None


def adapter_options(job: Job) -> dict[str, Any]:
    """Engine settings that the job's adapters ask for, under whatever the user sets."""
    if job.engine.kind != "vllm" or not job.model.adapters:
        return {}
    return lora_options(check_adapters(job))


def other_bases(job: Job) -> list[str]:
    """A note for each adapter that was trained on a model of another name.

    No error: the same model has many names, as a hub id, a mirror, a folder.
    """
    own = _last_name(job.model.name) if job.engine.kind == "vllm" else ""
    return [
        f"the adapter {facts.name} was trained on {facts.base}; the model is {job.model.name}"
        for facts in (check_adapters(job) if own else ())
        if facts.base and _last_name(facts.base) != own
    ]


def _last_name(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()


def adapter_marks(model: Model) -> dict[str, str]:
    """What identifies the content of each adapter, for a resume to find it unchanged.

    The weights count by size and time of change, as input files do; adapters of the hub by name.
    """
    return {name: _mark(path) for name, path in sorted(model.adapters.items())}


def _mark(path: str) -> str:
    folder = Path(path)
    if not folder.is_dir():
        return path
    config = folder / CONFIG
    digest = hashlib.sha256(config.read_bytes() if config.is_file() else b"").hexdigest()[:16]
    files = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    stats = [file.stat() for file in files]
    sizes = ", ".join(f"{stat.st_size} bytes, {stat.st_mtime_ns}" for stat in stats)
    return f"{path}: {digest}, {sizes}"
