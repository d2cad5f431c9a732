"""Speculative decoding: what `speculative_config` says, and what the draft takes.

By vLLM 0.32 (`SpeculativeConfig` in `vllm/config/speculative.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchwright.core.beside import Draft
from batchwright.core.errors import JobError
from batchwright.core.plan import ModelFacts

SETTING = "engine.options.speculative_config"

# These propose from what was written before: no weights, no KV cache.
WITHOUT_MODEL = frozenset({"ngram", "ngram_gpu", "suffix"})
# The model's own checkpoint holds the layers that propose.
OWN_LAYERS = frozenset({"mtp", "dspark"})
METHODS = frozenset(
    {*WITHOUT_MODEL, *OWN_LAYERS, "medusa", "mlp_speculator", "draft_model", "custom_class",
     "eagle", "eagle3", "extract_hidden_states", "dflash"}
)  # fmt: skip

# What the recommendation is: https://docs.vllm.ai/en/latest/features/speculative_decoding/
TRADE = (
    "vLLM's documentation recommends it for memory-bound work at medium to low request rates: "
    "where many rows run at once, checking proposals that are then thrown away costs throughput. "
    "The prediction does not count on it; compare two pilots, with it and without."
)


@dataclass(frozen=True, slots=True)
class Speculation:
    """A `speculative_config` as far as it matters here.

    Attributes:
        method: by vLLM's name; empty where vLLM finds it out from the draft model.
        tokens: proposed per step; None where the draft model's config says.
        model: folder or hub id of the draft model; None if it needs none.
    """

    method: str
    tokens: int | None
    model: str | None

    @property
    def has_own_weights(self) -> bool:
        """Whether a model is loaded beside the main one."""
        return self.model is not None and self.method not in WITHOUT_MODEL | {"custom_class"}


def read_speculation(options: Mapping[str, Any], base: str) -> Speculation | None:
    """Check the form of `speculative_config` in the engine's options; None if it is not there.

    Args:
        options: of the engine.
        base: the job's model, which may name itself as the draft's.

    Raises:
        JobError: a value is wrong or missing, and what it must be.
    """
    given = options.get("speculative_config")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise _wrong("it is an object", "For example {method: ngram, num_speculative_tokens: 4}.")
    method, model, tokens = (
        given.get(key) for key in ("method", "model", "num_speculative_tokens")
    )
    _check_types(given)
    if method is None and model is None:
        raise _wrong("neither a method nor a draft model is named", _known())
    if method is not None:
        _check_method(method, given, base)
    if "tensor_parallel_size" in given:
        raise _wrong("tensor_parallel_size is not the draft's", "Use draft_tensor_parallel_size.")
    return Speculation(str(method or ""), tokens, None if model in (None, base) else str(model))


def _check_types(given: Mapping[str, Any]) -> None:
    for name in ("method", "model"):
        if given.get(name) is not None and not isinstance(given[name], str):
            raise _wrong(f"{name} is text (got {given[name]!r})", "")
    for name in ("num_speculative_tokens", "draft_tensor_parallel_size", "prompt_lookup_min",
                 "prompt_lookup_max"):  # fmt: skip
        value = given.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise _wrong(f"{name} is a whole number of at least 1 (got {value!r})", "")
    least, most = given.get("prompt_lookup_min"), given.get("prompt_lookup_max")
    if least is not None and most is not None and least > most:
        raise _wrong(f"prompt_lookup_min {least} is above prompt_lookup_max {most}", "Swap them.")


def _check_method(method: str, given: Mapping[str, Any], base: str) -> None:
    if method not in METHODS and not method.endswith("_mtp"):
        close = difflib.get_close_matches(method, METHODS, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise _wrong(f"there is no method {method}{meant}", _known())
    needs_model = not (method in WITHOUT_MODEL | OWN_LAYERS or method.endswith("_mtp"))
    # Hidden states are read from the model itself.
    if needs_model and method != "extract_hidden_states" and not given.get("model"):
        raise _wrong(
            f"method {method} needs model", "Name the folder or hub id of the draft model."
        )
    if method == "draft_model" and given.get("model") == base:
        raise _wrong("the draft is the model itself", "A draft must be much smaller.")
    if method in ("ngram", "ngram_gpu", "draft_model") and not given.get("num_speculative_tokens"):
        raise _wrong(f"method {method} needs num_speculative_tokens", "3 to 5 is usual.")


def _known() -> str:
    return f"vLLM 0.32 knows: {', '.join(sorted(METHODS))}."


def _wrong(problem: str, hint: str) -> JobError:
    return JobError(f"{SETTING}: {problem}", hint)


def tokens_ahead(speculation: Speculation, draft_config: Mapping[str, Any]) -> int:
    """Tokens proposed per step: as asked for, else as the draft model says.

    Raises:
        JobError: neither says.
    """
    found = speculation.tokens or draft_config.get("n_predict") or draft_config.get(
        "num_nextn_predict_layers"
    )  # fmt: skip
    if not isinstance(found, int):
        if speculation.method == "suffix":
            return 24  # at most: `suffix_decoding_max_tree_depth`
        raise _wrong("num_speculative_tokens is missing", "3 to 5 is usual.")
    return found


def draft_of(
    speculation: Speculation, model: ModelFacts, config: Mapping[str, Any], draft: ModelFacts | None
) -> Draft:
    """What the draft takes beside the model.

    Args:
        speculation: as asked for.
        model: facts of the job's model.
        config: its `config.json`.
        draft: facts of the draft model; None if there is none, or if they are not known.
    """
    if draft is not None:
        return Draft(
            method=speculation.method or "draft_model",
            tokens=speculation.tokens or 1,
            weight_bytes=draft.weight_bytes,
            layers=draft.layers,
            kv_values=draft.kv_values_per_layer,
            kv_value_bytes=draft.kv_value_bytes,
        )
    own = speculation.method in OWN_LAYERS or speculation.method.endswith("_mtp")
    tokens = tokens_ahead(speculation, config)
    if not own:
        return Draft(speculation.method, tokens)
    # Its weights are in the checkpoint's size already, its layers are like the model's own.
    layers = int(config.get("num_nextn_predict_layers") or config.get("n_predict") or 1)
    return Draft(
        speculation.method, tokens, 0, layers, model.kv_values_per_layer, model.kv_value_bytes
    )
