"""Sampling parameters by vLLM's names: presets, bounds, and the merge of job and row."""

from __future__ import annotations

import difflib
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)

from batchwright.core.errors import RowError
from batchwright.core.structured import GUIDED, check_structured, from_response_format

PRESETS: dict[str, dict[str, Any]] = {
    "deterministic": {"temperature": 0.0},
    "balanced": {"temperature": 0.7, "top_p": 0.9},
    "creative": {"temperature": 1.0, "top_p": 0.95},
    "code": {"temperature": 0.2, "top_p": 0.95},
}

PresetName = Literal["deterministic", "balanced", "creative", "code"]

# Known to vLLM or to the OpenAI API, but not served: refusing beats dropping them silently.
UNSUPPORTED = frozenset(
    {"best_of", "use_beam_search", "prompt_logprobs", "logits_processors", "length_penalty",
     "early_stopping", "truncate_prompt_tokens", "guided_decoding_backend"}
)  # fmt: skip

# Other spellings of fields below.
ALIASES = frozenset({"top_logprobs", "response_format", *GUIDED})


def _one_or_many(value: Any) -> Any:
    """One stop string or a list is allowed in vLLM; a string must never be read as its letters."""
    return [value] if isinstance(value, str) else value


_DOUBLE_EXACT_MAX = 2**53

NonEmptyStr = Annotated[str, Field(min_length=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class SamplingFields(BaseModel):
    """vLLM's sampling fields that a job or a row may set; None means not given."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    max_tokens: Annotated[int | None, Field(ge=1)] = None
    """Output tokens at most. The job's default is 512; the context may leave less room."""
    min_tokens: Annotated[int | None, Field(ge=0)] = None
    """Output tokens before an end token may be chosen."""
    temperature: Annotated[Finite | None, Field(ge=0, le=2)] = None
    """0 is greedy: the most probable token each time."""
    top_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    """Only the most probable tokens that together reach this probability."""
    top_k: Annotated[int | None, Field(ge=-1)] = None
    """Only this many most probable tokens; 0 or -1 for all."""
    min_p: Annotated[Finite | None, Field(ge=0, le=1)] = None
    """Only tokens at least this probable, relative to the most probable."""
    presence_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    """Above 0 favours tokens that have not been used yet."""
    frequency_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    """Above 0 weakens tokens by how often they were used."""
    repetition_penalty: Annotated[Finite | None, Field(gt=0, le=10)] = None
    """Above 1 weakens tokens of the prompt and the answer."""
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    """Makes random sampling of a row repeatable."""
    stop: Annotated[list[NonEmptyStr] | None, BeforeValidator(_one_or_many)] = None
    """Texts that end the answer; they are left out of it."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    """Token ids that end the answer."""
    include_stop_str_in_output: StrictBool | None = None
    """Keep the stop text at the end of the answer."""
    ignore_eos: StrictBool | None = None
    """Go on after the model's end token."""
    bad_words: list[NonEmptyStr] | None = None
    """Texts that must not be generated."""
    logit_bias: dict[str, Finite] | None = None
    """Token id (as text) to a value added to its logit."""
    allowed_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    """Only these token ids may be generated."""
    skip_special_tokens: StrictBool | None = None
    """Leave special tokens out of the text (the default)."""
    n: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Answers per row. The first is in the row's own columns, all of them in `choices`."""
    logprobs: Annotated[int | None, Field(ge=0, le=1000)] = None
    """Keep the log probability of each token of the answer, and of so many of the likeliest in its
    place; 0 for the token alone. `true` is 0, or what `top_logprobs` says."""
    structured_outputs: Annotated[dict[str, Any], AfterValidator(check_structured)] | None = None
    """What the answer must keep to, as vLLM names it: one of `json` (a JSON Schema), `regex`,
    `choice`, `grammar`, `json_object`, `structural_tag`. `response_format` and `guided_json` and
    its kin are taken too."""
    priority: Annotated[int | None, Field(ge=-(2**31), lt=2**31)] = None
    """Rows with a smaller number go first inside the engine; needs the engine option
    `scheduling_policy: priority`."""

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, values: Any) -> Any:
        return resolve_aliases(values) if isinstance(values, dict) else values

    def given(self) -> dict[str, Any]:
        """The fields that were set to a value."""
        return self.model_dump(exclude_none=True)


FIELD_NAMES = frozenset(SamplingFields.model_fields)

# All that a row may bring.
ROW_NAMES = FIELD_NAMES | ALIASES | UNSUPPORTED


def resolve_aliases(values: dict[str, Any]) -> dict[str, Any]:
    """Fields with other spellings brought to vLLM's own.

    Raises:
        ValueError: two spellings contradict each other, or an alias has a wrong value.
    """
    given = {name: value for name, value in values.items() if name not in ALIASES}
    aliases = {name: value for name, value in values.items() if name in ALIASES}
    aliases = {name: value for name, value in aliases.items() if value is not None}
    if "logprobs" in given or "top_logprobs" in aliases:
        top = aliases.pop("top_logprobs", None)
        given["logprobs"] = _logprobs(given.get("logprobs"), top)
    structured = []
    for name, value in aliases.items():
        kind = GUIDED.get(name)
        structured.append(from_response_format(value) if kind is None else {kind: value})
    structured = [one for one in structured if one is not None]
    if structured:
        if len(structured) > 1 or given.get("structured_outputs") is not None:
            raise ValueError("structured_outputs, response_format and guided_*: give one of them")
        given["structured_outputs"] = structured[0]
    return given


def _logprobs(value: Any, top: Any) -> Any:
    """OpenAI's pair (`logprobs` true, `top_logprobs` 5) or vLLM's number as a number."""
    if value is False:
        if top:
            raise ValueError("top_logprobs needs logprobs: true")
        return None
    if value is True or value is None:
        return top if top is not None else (0 if value else None)
    return value


def row_sampling(values: dict[str, Any]) -> dict[str, Any]:
    """Check the sampling fields of one row; null means not given.

    Raises:
        RowError: `bad_sampling` naming the field and what it must be, `unsupported` for fields
            that vLLM or the OpenAI API know and this version does not serve.
    """
    for name, value in values.items():
        if name in UNSUPPORTED and value is not None:
            raise RowError("unsupported", f"{name} is not supported")
        if name not in ROW_NAMES:
            raise RowError("bad_sampling", f"unknown sampling field {name}{nearest(name)}")
    known = {name: _plain(value) for name, value in values.items() if name not in UNSUPPORTED}
    try:
        return SamplingFields.model_validate(known).given()
    except ValidationError as error:
        raise RowError("bad_sampling", first_problem(error)) from None


def _plain(value: Any) -> Any:
    """A value of a table as JSON has it: 5.0 and decimals as numbers, keys of maps as texts.

    A column of integers with one missing value is one of floats in pandas.
    """
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value % 1 == 0 else float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= _DOUBLE_EXACT_MAX:
        return int(value)
    if isinstance(value, dict):
        return {str(key) if type(key) is int else key: item for key, item in value.items()}
    return value


def nearest(name: str) -> str:
    """`; did you mean …?` when a known field has nearly the same name."""
    close = difflib.get_close_matches(name, FIELD_NAMES, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation, as `field: what it must be (got …)`."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(step) for step in problem["loc"])
    if problem["type"] == "value_error":
        said = problem["msg"].removeprefix("Value error, ")
        return f"{where}: {said}" if where else said
    return f"{where}: {problem['msg'].lower()} (got {problem['input']!r})"
