"""Lines of the OpenAI batch format: from envelope to row and sampling fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchwright.core.errors import RowError
from batchwright.validate import embedding_body, responses_body, text_bodies
from batchwright.validate.asked import Asked

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"

# The task of a job that serves each endpoint.
TASKS = {CHAT: "generate", COMPLETIONS: "generate", RESPONSES: "generate", EMBEDDINGS: "embed"}

# Endpoints of OpenAI and vLLM that exist, but make something else than text or vectors.
OTHER_ENDPOINTS = frozenset(
    {"/v1/moderations", "/v1/score", "/v1/rerank", "/score", "/rerank", "/v2/rerank",
     "/v1/images/generations", "/v1/audio/transcriptions", "/v1/audio/translations"}
)  # fmt: skip

_READERS: dict[str, Callable[[dict[str, Any]], Asked]] = {
    CHAT: text_bodies.read_chat,
    COMPLETIONS: text_bodies.read_completion,
    RESPONSES: responses_body.read_response,
    EMBEDDINGS: embedding_body.read_embedding,
}

# Bookkeeping that the envelope may carry as well as the body.
_ANYWHERE = frozenset({"model", "metadata", "user"})
_IN_BODY = (text_bodies.FIELDS | responses_body.FIELDS | embedding_body.FIELDS) - _ANYWHERE


def unwrap(
    line: Mapping[str, Any], *, model: str = "", task: str = "generate", dimensions: int = 0
) -> Asked:
    """Check one line and take it apart; the `custom_id` is left to `ids.text_id`.

    Args:
        line: the parsed line.
        model: the job's model, which answers whatever the line names.
        task: of the job; a line that needs another one is refused.
        dimensions: of the job's vectors, where it makes any.

    Raises:
        RowError: `bad_envelope`, `unsupported`, `missing_prompt` and others that name the field.
    """
    body = _body(line)
    url = _url(line, task)
    if body.get("stream"):
        raise RowError("bad_envelope", "body.stream is true; a batch does not stream")
    asked = _READERS[url](body)
    if url == EMBEDDINGS:
        embedding_body.check_dimensions(body, dimensions)
    named = body.get("model")
    asked = asked._replace(model=named)
    if named is not None and named != model:
        asked = asked._replace(warnings=("model_ignored",))
    return asked


def task_of(line: Mapping[str, Any]) -> str | None:
    """The task that a line asks for; None if its url is none that is served."""
    url = line.get("url")
    return TASKS.get(url) if isinstance(url, str) else None


def _body(line: Mapping[str, Any]) -> dict[str, Any]:
    body = line.get("body")
    misplaced = sorted(_IN_BODY & line.keys())
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


def _url(line: Mapping[str, Any], task: str) -> str:
    url = line.get("url")
    needed = TASKS.get(url) if isinstance(url, str) else None
    if isinstance(url, str) and needed == task:
        return url
    if needed is not None:
        raise RowError(
            "unsupported",
            f"{url} needs task: {needed}, but this job has task: {task}; put the lines of each "
            "task into a file and a job of their own",
        )
    if isinstance(url, str) and url in OTHER_ENDPOINTS:
        raise RowError("unsupported", f"{url} is not supported; there are {', '.join(TASKS)}")
    if isinstance(url, str) and "://" in url:
        raise RowError("bad_envelope", f"url must be a path such as {CHAT}, not {url!r}")
    raise RowError("bad_envelope", f"url must be one of {', '.join(TASKS)}, not {url!r}")
