"""Rows to requests of OpenAI's API: what a prepared row carries along, and the body made of it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import orjson

from batchwright.core.errors import RowError
from batchwright.core.media import Media, MediaKind
from batchwright.core.records import Prompt, Request
from batchwright.engines.openai_options import OpenAiOptions

CHAT = "/chat/completions"
COMPLETIONS = "/completions"
EMBEDDINGS = "/embeddings"

# Of the sampling fields, what OpenAI's own API knows. The rest is vLLM's.
OPENAI_FIELDS = frozenset(
    {"temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "n",
     "logprobs", "logit_bias", "structured_outputs"}
)  # fmt: skip
_OPENAI_STRUCTURED = frozenset({"json", "json_object"})

# Body fields of the server that transformers knows as arguments of the chat template.
_TEMPLATE_FLAGS = ("continue_final_message", "add_generation_prompt")

# The key under which a row's extras hold what is sent.
EXTRAS_KEY = "http"


class Call(NamedTuple):
    """A request: the path below the base URL, and its body without the model."""

    path: str
    body: dict[str, Any]


def row_extras(prompt: Prompt, sampling: str, options: OpenAiOptions, *, truncated: bool) -> str:
    """What a row's tokens do not tell the server, as JSON text; empty where they tell all.

    A prompt that was cut goes as its token ids: only these say what is left of it.

    Args:
        prompt: of the row.
        sampling: canonical JSON of its sampling fields.
        options: of the engine; they say what the endpoint understands.
        truncated: whether the prompt was cut.

    Raises:
        RowError: `unsupported`, the endpoint has no word for it.
    """
    if options.dialect == "openai":
        _refuse_foreign(prompt, sampling, truncated=truncated)
    if truncated and prompt.media:
        raise RowError("unsupported", "a cut prompt goes as token ids, and they hold no images")
    if truncated or prompt.token_ids is not None:
        return ""
    parts: dict[str, Any] = {}
    if prompt.messages is not None:
        parts["messages"] = [_as_sent(turn) for turn in prompt.messages]
        if prompt.tools:
            parts["tools"] = prompt.tools
        if prompt.template_kwargs:
            parts["template_kwargs"] = prompt.template_kwargs
    else:
        parts["prompt"] = prompt.text
    return orjson.dumps({EXTRAS_KEY: parts}).decode()


def _as_sent(turn: dict[str, Any]) -> dict[str, Any]:
    """A message as the API wants it: arguments of tool calls as text, which templates want parsed."""
    calls = turn.get("tool_calls")
    if not calls:
        return turn
    sent = []
    for call in calls:
        function = call["function"]
        arguments = orjson.dumps(function["arguments"]).decode()
        sent.append({"type": "function", **call, "function": {**function, "arguments": arguments}})
    return {**turn, "tool_calls": sent}


def _refuse_foreign(prompt: Prompt, sampling: str, *, truncated: bool) -> None:
    foreign = foreign_fields(sampling)
    if foreign:
        raise RowError(
            "unsupported", f"{', '.join(foreign)}: no field of OpenAI's API (dialect: openai)"
        )
    if prompt.template_kwargs:
        raise RowError(
            "unsupported", "chat_template_kwargs: no field of OpenAI's API (dialect: openai)"
        )
    if truncated:
        raise RowError(
            "unsupported",
            "a cut prompt can only be sent as token ids, and dialect: openai has none",
        )


@lru_cache(maxsize=4096)
def foreign_fields(sampling: str) -> tuple[str, ...]:
    """The sampling fields that OpenAI's own API does not have."""
    fields: dict[str, Any] = orjson.loads(sampling or "{}")
    found = [name for name in fields if name not in OPENAI_FIELDS]
    found += [
        f"structured_outputs.{kind}"
        for kind in fields.get("structured_outputs") or {}
        if kind not in _OPENAI_STRUCTURED
    ]
    return tuple(found)


def generation_call(request: Request, options: OpenAiOptions) -> Call:
    """The request that asks for a row's answer."""
    sent = _sent(request)
    chat = "messages" in sent
    body: dict[str, Any] = {}
    if chat:
        body["messages"] = with_media(sent["messages"], request.media)
        if "tools" in sent:
            body["tools"] = sent["tools"]
        body |= _template_fields(sent.get("template_kwargs"))
        body[options.max_tokens_field] = request.max_tokens
    else:
        body["prompt"] = sent.get("prompt", list(request.token_ids))
        body["max_tokens"] = request.max_tokens
    body |= sampling_fields(orjson.loads(request.sampling or "{}"), chat=chat)
    return Call(CHAT if chat else COMPLETIONS, laid_over(body, options))


def with_media(messages: list[dict[str, Any]], media: Sequence[Media]) -> list[dict[str, Any]]:
    """Messages with what the worker has fetched in the place of each image and sound.

    It goes as data, not as a URL: the server need not reach what this machine can, and it gets what
    was checked here.
    """
    if not media:
        return messages
    items = iter(media)
    return [
        turn
        if isinstance(turn.get("content"), str)
        else {**turn, "content": [_as_part(part, items) for part in turn["content"]]}
        for turn in messages
    ]


def _as_part(part: dict[str, Any], items: Iterator[Media]) -> dict[str, Any]:
    if part.get("type") not in get_args(MediaKind):
        return part
    item = next(items)
    data = b64encode(item.data).decode()
    if item.kind == "image":
        url = f"data:{item.type};base64,{data}"
        return {"type": "image_url", "image_url": {"url": url}}
    name = item.type.partition("/")[2]
    form = "mp3" if name == "mpeg" else name
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def embedding_call(requests: Sequence[Request], options: OpenAiOptions) -> Call:
    """The request that asks for the vectors of some rows, all of text or all of token ids."""
    inputs = [_sent(one).get("prompt", list(one.token_ids)) for one in requests]
    return Call(EMBEDDINGS, laid_over({"input": inputs, "encoding_format": "float"}, options))


def is_text(request: Request) -> bool:
    """Whether a row goes as text; otherwise as token ids."""
    return bool(_sent(request))


def _sent(request: Request) -> dict[str, Any]:
    extras: dict[str, Any] = orjson.loads(request.extras) if request.extras else {}
    sent: dict[str, Any] = extras.get(EXTRAS_KEY) or {}
    return sent


def laid_over(body: dict[str, Any], options: OpenAiOptions) -> dict[str, Any]:
    """The body with the job's own fields on top; null takes a field out."""
    whole = {**body, **dict(options.body)}
    taken_out = {name for name, value in options.body if value is None}
    return {name: value for name, value in whole.items() if name not in taken_out}


def _template_fields(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    if not kwargs:
        return {}
    body = {name: kwargs[name] for name in _TEMPLATE_FLAGS if name in kwargs}
    if body.get("continue_final_message"):
        body["add_generation_prompt"] = False
    rest = {name: value for name, value in kwargs.items() if name not in _TEMPLATE_FLAGS}
    return {**body, "chat_template_kwargs": rest} if rest else body


def sampling_fields(fields: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    """Sampling fields as they stand in a body."""
    body = dict(fields)
    logprobs = body.pop("logprobs", None)
    if logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": logprobs} if chat else {"logprobs": logprobs}
    structured = body.pop("structured_outputs", None)
    if structured is not None:
        body |= _structured(structured)
    return body


def _structured(structured: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's own form where it has one, since all servers know it; vLLM's otherwise."""
    if len(structured) == 1 and structured.get("json"):
        schema = orjson.loads(structured["json"])
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema},
            }
        }
    if structured == {"json_object": True}:
        return {"response_format": {"type": "json_object"}}
    return {"structured_outputs": structured}
