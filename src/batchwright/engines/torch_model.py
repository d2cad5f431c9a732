"""An encoder in torch: its weights, and from a batch of token ids to pooled vectors."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, fields
from typing import Any

from batchwright.core.errors import EngineError, JobError, MissingExtra
from batchwright.core.ports import EngineSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.options import refuse_unknown
from batchwright.engines.torch_batches import Layout, Shape
from batchwright.engines.torch_packed import (
    ATTENTION,
    PackedLayout,
    can_pack,
    first_position,
    varlen_kernel,
)
from batchwright.engines.torch_padded import PaddedLayout
from batchwright.engines.vllm_setup import check_model, default_omp_threads

_OTHER_WAYS = (
    "Set engine.kind: vllm; or, if torch or transformers are old, update them (torch 2.10 and "
    "transformers 5 or newer)."
)

GPU_BATCH_TOKENS = 131_072
CPU_BATCH_TOKENS = 4_096


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """What `engine.options` may hold for the torch engine.

    Attributes:
        device: `auto` (a GPU if there is one), `cuda`, `cuda:1` or `cpu`.
        dtype: `auto` (float32 on a CPU, else bfloat16 for models of that type and float16 for all
            others), or a type by torch's name.
        max_batch_tokens: tokens of a batch, padding included; 0 for 131,072 on a GPU and 4,096 on a CPU.
        load_format: `auto`, or `dummy` for random weights.
        attention: `auto` (rows packed without padding where that is possible, else `sdpa`), or
            transformers' name of another.
        omp_num_threads: threads on a CPU; 0 for all cores but one.
        revision: of the hub repository.
        tokenizer: not used; the model section passes it to every engine.
        trust_remote_code: let the model's own Python code run.
    """

    device: str = "auto"
    dtype: str = "auto"
    max_batch_tokens: int = 0
    load_format: str = "auto"
    attention: str = "auto"
    omp_num_threads: int = 0
    revision: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False


OPTION_NAMES = frozenset(field.name for field in fields(TorchOptions))
LOAD_FORMATS = ("auto", "dummy")


def parse_options(options: dict[str, Any]) -> TorchOptions:
    """Options as given, to options as used. Raises JobError."""
    refuse_unknown(options, OPTION_NAMES, "torch")
    if options.get("load_format", "auto") not in LOAD_FORMATS:
        raise JobError("engine.options.load_format: auto or dummy, for the torch engine")
    return TorchOptions(**options)


class Encoder:
    """A loaded model that turns batches into vectors, on its device.

    Made by `load_encoder`.
    """

    def __init__(
        self, model: Any, device: Any, embedding: EmbeddingSettings, layout: Layout
    ) -> None:
        self._model = model
        self._embedding = embedding
        self.layout = layout
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.vocab_size = int(model.get_input_embeddings().num_embeddings)

    def encode(self, packed: Any, shape: Shape) -> Any:
        """Begin to compute the vectors of a batch; on a GPU they are not there yet.

        Args:
            packed: int32 tensor on the host, as the layout packed it.
            shape: of the batch.

        Returns:
            Tensor [rows, dimensions] on the device, of the type wanted.
        """
        import torch

        with torch.inference_mode():
            there = packed.to(self.device, non_blocking=True)
            pooling = self._embedding.pooling
            return self._finish(self.layout.vectors(self._model, there, shape, pooling))

    def _finish(self, vectors: Any) -> Any:
        import torch

        wanted = self._embedding
        cut = vectors[:, : wanted.dimensions]
        if wanted.normalize:
            cut = torch.nn.functional.normalize(cut, dim=1)
        return cut.to(torch.float32 if wanted.dtype == "float32" else torch.float16)


def load_encoder(settings: EngineSettings, options: TorchOptions) -> Encoder:
    """Load a model from its safetensors, or make one with random weights.

    Raises:
        JobError: the model or an option is wrong.
        EngineError: the device cannot hold it.
    """
    assert settings.embedding is not None, "this engine makes embeddings only"
    check_model(settings.model, {"load_format": options.load_format})
    torch = import_torch(options)
    device = _device(torch, options.device)
    try:
        model, layout = _load(torch, settings.model, options, device)
        model = model.eval().to(device)
    except torch.OutOfMemoryError as error:
        raise EngineError(f"{settings.model} does not fit {device}: {error}") from error
    width = getattr(model.config, "hidden_size", settings.embedding.dimensions)
    if width < settings.embedding.dimensions:
        raise JobError(
            f"embedding.dimensions is {settings.embedding.dimensions}, but {settings.model} makes "
            f"{width}"
        )
    return Encoder(model, device, settings.embedding, layout)


def import_torch(options: TorchOptions) -> Any:
    """Import torch and transformers, with the threads that they shall have. Raises MissingExtra."""
    threads = options.omp_num_threads or int(os.environ.get("OMP_NUM_THREADS", "0"))
    os.environ["OMP_NUM_THREADS"] = str(threads or default_omp_threads())
    try:
        import torch
        import transformers
    except ImportError as error:
        hint = "pip install -U 'batchwright[vllm]', or [cpu] for a machine without a GPU"
        raise MissingExtra(
            f"the torch engine needs torch and transformers ({error})", hint
        ) from None
    # Warnings about weights are ours to give, and progress bars would fill the log.
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    return torch


def _device(torch: Any, name: str) -> Any:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise JobError(f"engine.options.device: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise JobError(f"engine.options.device is {name}, but torch finds no GPU")
    return device


def _load(torch: Any, name: str, options: TorchOptions, device: Any) -> tuple[Any, Layout]:
    """The model, and how its rows are laid out for it."""
    from transformers import AutoConfig
    from transformers import AutoModel as Models

    auto_model: Any = Models
    source = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(name, **source)
        config.use_cache = False  # a decoder would keep keys and values that nobody reads
        dtype = _dtype(torch, config, options.dtype, device)
        layout, attention = _layout(config, options.attention, device, dtype)
        how = {
            "dtype": dtype,
            "attn_implementation": attention,
            **_without_pooler(auto_model, config),
        }
        if options.load_format == "dummy":
            trusted = {"trust_remote_code": options.trust_remote_code}
            with device:
                return auto_model.from_config(config, **trusted, **how), layout
        model, found = auto_model.from_pretrained(
            name, config=config, use_safetensors=True, output_loading_info=True, **source, **how
        )
    except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise JobError(f"the torch engine cannot load {name}: {reason}", _OTHER_WAYS) from error
    missing = sorted(key for key in found["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise JobError(
            f"the weights of {name} lack {len(missing)} tensors, first {missing[0]}",
            "They are of another architecture than its config.json names, or incomplete.",
        )
    return model, layout


def _layout(config: Any, attention: str, device: Any, dtype: Any) -> tuple[Layout, str]:
    """Rows packed where the model, the device and torch can do that, else padded."""
    kernel = varlen_kernel()
    precision = str(dtype).removeprefix("torch.")
    if attention == "auto" and kernel and can_pack(config.model_type, device.type, precision):
        packed = PackedLayout(kernel, first_position(config))
        packed.register()
        return packed, ATTENTION
    pad_id = int(getattr(config, "pad_token_id", None) or 0)
    return PaddedLayout(pad_id), "sdpa" if attention == "auto" else attention


def _without_pooler(auto_model: Any, config: Any) -> dict[str, bool]:
    """BERT's own pooler is for another task: its weights need not be there, nor its work done."""
    kind = auto_model._model_mapping.get(type(config), None)
    takes = kind is not None and "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    return {"add_pooling_layer": False} if takes else {}


def _dtype(torch: Any, config: Any, name: str, device: Any) -> Any:
    if name != "auto":
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise JobError(f"model.dtype: torch knows no type {name!r}")
        return dtype
    if device.type == "cpu":
        return torch.float32
    own = getattr(config, "dtype", None)
    return torch.bfloat16 if own == torch.bfloat16 else torch.float16
