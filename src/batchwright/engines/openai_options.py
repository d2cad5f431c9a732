"""What `engine.options` may hold for endpoints that speak OpenAI's API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.engines.options import refuse_unknown

DEFAULT_KEY_ENV = "OPENAI_API_KEY"
BASE_URL_ENV = "OPENAI_BASE_URL"
DIALECTS = ("vllm", "openai")


@dataclass(frozen=True, slots=True)
class OpenAiOptions:
    """Endpoints, limits and patience.

    Attributes:
        base_urls: where `/chat/completions` and its kin live, without a slash at the end.
        api_key_env: environment variable that holds the key.
        headers: further headers; a value `$NAME` is read from the environment.
        dialect: `vllm` sends all sampling fields as vLLM's server takes them; `openai` only those
            that OpenAI's API knows, and rows that need others are rejected.
        max_tokens_field: name under which chat requests carry `max_tokens`.
        body: fields laid over every request; null takes one out.
        max_concurrency: requests in flight per endpoint at most.
        inputs_per_request: of an embedding request.
        rpm: requests per minute of all endpoints together; 0 for no limit.
        tpm: tokens per minute, prompt and answer; 0 for no limit.
        timeout_s: for one try of a request, connecting included.
        connect_timeout_s: for the connection alone.
        max_retries: of a row after a fault that may be its own.
        give_up_after_s: without an answer from any endpoint, the run ends and can be resumed.
    """

    base_urls: tuple[str, ...]
    api_key_env: str = DEFAULT_KEY_ENV
    headers: tuple[tuple[str, str], ...] = ()
    dialect: str = "vllm"
    max_tokens_field: str = "max_tokens"
    body: tuple[tuple[str, Any], ...] = ()
    max_concurrency: int = 256
    inputs_per_request: int = 32
    rpm: float = 0.0
    tpm: float = 0.0
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    max_retries: int = 8
    give_up_after_s: float = 600.0

    def rows_at_once(self, *, embeds: bool) -> int:
        """Rows that the endpoints can be at work on together."""
        return (
            len(self.base_urls) * self.max_concurrency * (self.inputs_per_request if embeds else 1)
        )


_GIVEN = {field.name for field in fields(OpenAiOptions)} - {"base_urls"} | {"base_url"}
_COUNTS = {"max_concurrency": 1, "inputs_per_request": 1, "max_retries": 0}
_AMOUNTS = ("rpm", "tpm")
_SECONDS = ("timeout_s", "connect_timeout_s", "give_up_after_s")


def parse_options(options: Mapping[str, Any]) -> OpenAiOptions:
    """Options as given, to options as used. Raises JobError."""
    refuse_unknown(options, _GIVEN, "openai")
    given = {name: value for name, value in options.items() if value is not None}
    values: dict[str, Any] = {"base_urls": _base_urls(given.pop("base_url", None))}
    dialect = given.pop("dialect", "vllm")
    if dialect not in DIALECTS:
        raise _wrong("dialect", f"one of {', '.join(DIALECTS)}", dialect)
    # OpenAI's newer models refuse the old name; other servers do not all know the new one.
    values["max_tokens_field"] = "max_completion_tokens" if dialect == "openai" else "max_tokens"
    for name, value in given.items():
        values[name] = _checked(name, value)
    return OpenAiOptions(**values, dialect=dialect)


def _checked(name: str, value: Any) -> Any:
    if name in ("headers", "body"):
        if not isinstance(value, Mapping):
            raise _wrong(name, "names with values", value)
        return _headers(value) if name == "headers" else tuple(value.items())
    if name in _COUNTS:
        if type(value) is not int or value < _COUNTS[name]:
            raise _wrong(name, f"a whole number from {_COUNTS[name]}", value)
    elif name in _AMOUNTS or name in _SECONDS:
        least = 0.0 if name in _AMOUNTS else 1e-9
        if type(value) not in (int, float) or not isfinite(value) or value < least:
            raise _wrong(name, "a number above 0", value)
        return float(value)
    elif not isinstance(value, str) or not value:
        raise _wrong(name, "a text", value)
    return value


def _base_urls(given: Any) -> tuple[str, ...]:
    if given is None:
        given = os.environ.get(BASE_URL_ENV)
    if not given:
        raise JobError(
            "engine.kind: openai does not know where the model is",
            f"Set engine.options.base_url (http://localhost:8000/v1), or {BASE_URL_ENV}.",
        )
    urls = [given] if isinstance(given, str) else given
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise _wrong("base_url", "an address or a list of them", given)
    return tuple(dict.fromkeys(_base_url(url) for url in urls))


def _base_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong("base_url", "http://HOST:PORT/v1 or https://HOST/v1", url)
    if parts.username or parts.password or parts.query:
        raise JobError(
            "engine.options.base_url holds a user, a password or a query, which would be written "
            "into the run directory",
            "Put the key into an environment variable, and its name into engine.options.api_key_env.",
        )
    return url.rstrip("/")


def _headers(given: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _wrong("headers", "names with texts", dict(given))
        if name.lower() == "authorization" and not value.startswith("$"):
            raise JobError(
                "engine.options.headers: a key in the job file would be written into the run "
                "directory",
                "Put it into an environment variable, and its name into "
                f"engine.options.api_key_env, or write {name}: $NAME.",
            )
    return tuple(given.items())


def _wrong(name: str, wanted: str, got: Any) -> JobError:
    return JobError(f"engine.options.{name}: {wanted} (got {got!r})")


def secrets_of(options: OpenAiOptions) -> tuple[dict[str, str], tuple[str, ...]]:
    """The headers to send, and which of their values must never be shown. Raises JobError."""
    headers: dict[str, str] = {}
    secrets: list[str] = []
    key = os.environ.get(options.api_key_env, "")
    if key:
        headers["Authorization"] = f"Bearer {key}"
        secrets.append(key)
    elif options.api_key_env != DEFAULT_KEY_ENV:  # a server of one's own needs none
        raise _not_set("api_key_env", options.api_key_env)
    for name, value in options.headers:
        if value.startswith("$"):
            found = os.environ.get(value[1:])
            if not found:
                raise _not_set(f"headers.{name}", value[1:])
            secrets.append(found)
            headers[name] = found
        else:
            headers[name] = value
    return headers, tuple(secrets)


def _not_set(option: str, variable: str) -> JobError:
    return JobError(
        f"engine.options.{option} names the environment variable {variable}, which is not set",
        f"export {variable}=… before the run; it is read on every machine that runs a worker.",
    )


# Options that are not the engine's own: what the job keeps, and how many rows are handed over.
_NOT_OURS = frozenset({"max_model_len", "max_num_seqs"})


def endpoint_options(job: Job) -> OpenAiOptions | None:
    """The options of a job that runs on endpoints; None for any other. Raises JobError."""
    if job.engine.kind != "openai":
        return None
    options = job.engine.options
    return parse_options({name: options[name] for name in options if name not in _NOT_OURS})


def check_endpoint_job(job: Job) -> None:
    """Refuse what an endpoint cannot be told, or what makes no sense of one. Raises JobError."""
    endpoint_options(job)
    model = job.model
    if not model.name:
        raise JobError("no model is given", "Set model.name to the name that the endpoint knows.")
    if job.task not in ("generate", "embed"):
        raise JobError(
            f"task: {job.task} has no common form among endpoints",
            "Run it with engine.kind: vllm; endpoints serve generate and embed.",
        )
    if model.adapters:
        raise JobError(
            "model.adapters: an endpoint loads its own adapters, and each has a name there",
            "Set model.name to that name, one job for each.",
        )
    if job.embedding.prompt_name is not None:
        raise JobError(
            "embedding.prompt_name needs the model's files, and an endpoint does not show them",
            "Set embedding.prompt to the text itself.",
        )
    if model.chat_template or model.reasoning_parser or model.tool_call_parser:
        raise JobError(
            "model.chat_template, reasoning_parser and tool_call_parser are the endpoint's own",
            "Start the server with them (vllm serve --chat-template, --reasoning-parser, "
            "--tool-call-parser), and remove them here.",
        )
    if job.plan.usd_per_gpu_hour is not None or job.hardware.gpu is not None:
        raise JobError(
            "plan.usd_per_gpu_hour and hardware.gpu are about cards of this machine, and the "
            "model of engine.kind: openai runs elsewhere",
            "Remove them. plan.max_hours works: the pilot measures rows per second.",
        )
    if "max_model_len" in job.engine.options and not (model.tokenizer or Path(model.name).is_dir()):
        raise JobError(
            "engine.options.max_model_len needs the model's tokenizer: without it lengths are "
            "estimates, and no row is refused for one",
            "Set model.tokenizer, or leave it to the endpoint.",
        )


def worker_options(
    options: Mapping[str, Any], *, hang_timeout_s: float, replicas: int
) -> dict[str, Any]:
    """The options for one of several workers: what is allowed per minute is shared out."""
    shared = {"give_up_after_s": hang_timeout_s, **options}
    for name in _AMOUNTS:
        value = shared.get(name)
        if isinstance(value, int | float):
            shared[name] = value / replicas
    return shared
