"""The same as `llm_child`, with a plain loop over transformers in place of vLLM: what most people write."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks.throughput.llm_child import serve

BATCH = 64


class PlainEncoder:
    """Batches of 64 texts in file order, padded to their longest, mean pooling, half precision on a GPU."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        import torch
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        name = arguments["model"]
        auto_model: Any = AutoModel
        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._limit = arguments.get("max_model_len")
        self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        if arguments.get("load_format") == "dummy":
            model: Any = auto_model.from_config(AutoConfig.from_pretrained(name))
        else:
            model = auto_model.from_pretrained(name)
        dtype = torch.float16 if self._device == "cuda" else torch.float32
        self._model: Any = model.to(self._device, dtype).eval()

    def embed(self, texts: Sequence[str], use_tqdm: bool) -> list[Any]:  # noqa: ARG002 (as in vLLM)
        """Vectors in the order of the texts, in the shape that vLLM gives them."""
        found: list[Any] = []
        for start in range(0, len(texts), BATCH):
            found += self._embed_batch(list(texts[start : start + BATCH]))
        return found

    def _embed_batch(self, texts: list[str]) -> list[Any]:
        torch = self._torch
        inputs = self._tokenizer(
            texts, padding=True, truncation=self._limit is not None, max_length=self._limit,
            return_tensors="pt",
        ).to(self._device)  # fmt: skip
        with torch.inference_mode():
            hidden = self._model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"].unsqueeze(-1)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            vectors = torch.nn.functional.normalize(pooled, dim=-1).tolist()
        lengths = inputs["attention_mask"].sum(1).tolist()
        return [
            SimpleNamespace(
                prompt_token_ids=range(length), outputs=SimpleNamespace(embedding=vector)
            )
            for vector, length in zip(vectors, lengths, strict=True)
        ]

    def reset_prefix_cache(self) -> None:
        """It has none."""

    def get_metrics(self) -> list[Any]:
        """Raise as vLLM does without statistics."""
        raise RuntimeError("no statistics")


if __name__ == "__main__":
    serve(PlainEncoder)
