"""Lines of the OpenAI batch format: from envelope to row and sampling fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchwright.core.errors import RowError
from batchwright.core.sampling import ROW_NAMES
from batchwright.validate.names import did_you_mean

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

# Endpoints of OpenAI and vLLM that exist, but make something else than generated text.
OTHER_ENDPOINTS = frozenset(
    {"/v1/embeddings", "/v1/responses", "/v1/moderations", "/v1/score", "/v1/rerank",
     "/v1/images/generations", "/v1/audio/transcriptions", "/v1/audio/translations"}
)  # fmt: skip

# They change nothing in the answer: bookkeeping, billing, scheduling.
HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "stream_options", "safety_identifier",
     "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls", "prediction",
     "priority", "request_id", "cache_salt", "stream", "model"}
)  # fmt: skip

# They would change the answer: only the values that change nothing are taken (null always is).
ONLY: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "truncate_prompt_tokens": (),
    "tool_choice": ("auto",),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (),
    "spaces_between_special_tokens": (True,),
}

_PROMPT_FIELDS = {CHAT: ("messages", "tools", "chat_template_kwargs"), COMPLETIONS: ("prompt",)}
_SAMPLING = ROW_NAMES | {"max_completion_tokens"}
_BODY = _SAMPLING | HARMLESS | ONLY.keys() | {"messages", "tools", "prompt", "chat_template_kwargs"}


class Envelope(NamedTuple):
    """What an OpenAI batch line asks.

    `record` is read by a PromptBuilder without column, messages or template; `sampling` goes to
    `RowSampling.resolve_fields`; `warnings` are keys of WARNING_CODES; `model` is what it names.
    """

    record: dict[str, Any]
    sampling: dict[str, Any]
    warnings: tuple[str, ...]
    model: Any = None


def unwrap(line: Mapping[str, Any], *, model: str = "") -> Envelope:
    """Check one line and take it apart; the `custom_id` is left to `ids.text_id`.

    Args:
        line: the parsed line.
        model: the job's model, which answers whatever the line names.

    Raises:
        RowError: `bad_envelope`, `unsupported`, `missing_prompt`.
    """
    body = _body(line)
    url = _url(line)
    if body.get("stream"):
        raise RowError("bad_envelope", "body.stream is true; a batch does not stream")
    sampling = {name: value for name, value in body.items() if _is_sampling(name, value)}
    alias = sampling.pop("max_completion_tokens", None)
    if alias is not None:
        sampling["max_tokens"] = alias
    record = {name: body[name] for name in _PROMPT_FIELDS[url] if name in body}
    _check_prompt(body, record, url)
    named = body.get("model")
    warnings = ("model_ignored",) if named is not None and named != model else ()
    return Envelope(record, sampling, warnings, named)


def _body(line: Mapping[str, Any]) -> dict[str, Any]:
    body = line.get("body")
    misplaced = sorted((_BODY - {"model", "metadata", "user"}) & line.keys())
    if body is None:
        there = f"; {misplaced[0]} belongs inside it" if misplaced else ""
        raise RowError("bad_envelope", f"body is missing{there}")
    if not isinstance(body, dict):
        raise RowError("bad_envelope", f"body is not an object but {type(body).__name__}")
    if misplaced:
        raise RowError("bad_envelope", f"{misplaced[0]} belongs inside body")
    if line.get("method") != "POST":
        raise RowError("bad_envelope", f"method must be POST, not {line.get('method')!r}")
    return body


def _url(line: Mapping[str, Any]) -> str:
    url = line.get("url")
    if isinstance(url, str) and url in _PROMPT_FIELDS:
        return url
    if isinstance(url, str) and url in OTHER_ENDPOINTS:
        raise RowError("unsupported", f"{url} is not supported; this version generates text only")
    if isinstance(url, str) and "://" in url:
        raise RowError("bad_envelope", f"url must be a path such as {CHAT}, not {url!r}")
    raise RowError("bad_envelope", f"url must be {CHAT} or {COMPLETIONS}, not {url!r}")


def _is_sampling(name: str, value: Any) -> bool:
    """Whether it goes on to the sampling fields; refuses what is unknown or not served."""
    if name not in _BODY:
        raise RowError("bad_envelope", f"unknown field {name!r} in body{did_you_mean(name, _BODY)}")
    if value is None:
        return False
    if name in ONLY:
        # `is` and type keep 0 apart from False and 1 from True.
        if any(type(value) is type(fine) and value == fine for fine in ONLY[name]):
            return False
        raise RowError("unsupported", f"{name} is not supported")
    return name in _SAMPLING


def _check_prompt(body: dict[str, Any], record: dict[str, Any], url: str) -> None:
    needed = _PROMPT_FIELDS[url][0]
    other = "prompt" if needed == "messages" else "messages"
    if record.get(needed) is None:
        raise RowError("missing_prompt", f"{url} needs body.{needed}")
    if body.get(other) is not None:
        raise RowError("ambiguous_prompt", f"{url} takes {needed}; body has {other} too")
