"""Sampling fields to vLLM's parameters, and vLLM's log probabilities to records."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import orjson

from batchwright.core.outcomes import Logprob, TokenLogprobs


def with_config_objects(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the one section as an object that EngineArgs does not make of a dict.

    It would set the reasoning parser in it, and fail. Raises ValueError for a wrong section.
    """
    from vllm.config import StructuredOutputsConfig

    config = arguments.get("structured_outputs_config")
    if not isinstance(config, dict):
        return arguments
    return {**arguments, "structured_outputs_config": StructuredOutputsConfig(**config)}


def sampling_params(
    sampling: str, max_tokens: int, *, eos_token_ids: Sequence[int], without_tokenizer: bool
) -> tuple[Any, int]:
    """The SamplingParams of a row, and its priority, which vLLM takes beside them.

    Args:
        sampling: canonical JSON of the sampling fields.
        max_tokens: cap of output tokens.
        eos_token_ids: that end an answer, besides those that the row names.
        without_tokenizer: vLLM has none, so what it finds in text only is refused.

    Raises:
        ValueError: vLLM refuses a field.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    fields: dict[str, Any] = orjson.loads(sampling or "{}")
    priority = int(fields.pop("priority", 0))
    structured = fields.pop("structured_outputs", None)
    if structured is not None:
        fields["structured_outputs"] = StructuredOutputsParams(**structured)
    stop_ids = list(fields.pop("stop_token_ids", None) or [])
    if not fields.get("ignore_eos"):
        # The tokenizer has one EOS; a chat model's generation config often has more.
        stop_ids += [eos for eos in eos_token_ids if eos not in stop_ids]
    if fields.get("logit_bias"):
        fields["logit_bias"] = {int(key): value for key, value in fields["logit_bias"].items()}
    if without_tokenizer:
        refuse_texts(fields)
    params = SamplingParams(
        **fields,
        max_tokens=max_tokens,
        stop_token_ids=stop_ids,
        # One token at a time, detokenising costs four times as much as all else here.
        detokenize=bool(fields.get("stop")) or fields.get("skip_special_tokens") is False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        # A row's copy may be a shallow one: vLLM replaces what it changes in it, and adds the
        # same end tokens for each. Deep copies were a third of the cost of adding a row.
        skip_clone=True,
    )
    return params, priority


def refuse_texts(fields: dict[str, Any]) -> None:
    """Raise ValueError for what vLLM finds in text only: without a tokenizer it would not look."""
    for name in ("stop", "bad_words"):
        if fields.get(name):
            raise ValueError(f"{name} needs a tokenizer, and skip_tokenizer_init is set")


def read_logprobs(token_ids: Sequence[int], found: Any, num_top: int) -> tuple[TokenLogprobs, ...]:
    """VLLM's dict of each token as records.

    It holds the `num_top` likeliest tokens, and the chosen one even where it is none of them.
    """
    places = []
    for token_id, entries in zip(token_ids, found, strict=False):
        read = [
            Logprob(one, entry.logprob if isfinite(entry.logprob) else None, entry.rank)
            for one, entry in entries.items()
        ]
        read.sort(key=lambda one: one.rank or 0)
        chosen = next((one for one in read if one.token_id == token_id), Logprob(token_id, None))
        places.append(TokenLogprobs(chosen, tuple(read[:num_top])))
    return tuple(places)
