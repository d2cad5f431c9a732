"""Arguments of `vllm run-batch` as a job: what stays an engine option, and what has a key of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.core.errors import JobError

# vLLM takes what the context leaves where a body names no cap; a prompt is always cut to that.
WHAT_IS_LEFT = 2**30

# vLLM's server samples with these unless the request or the model says otherwise.
_SERVER_DEFAULTS = {"temperature": 1.0}

# What vLLM lays under each request, of a model's generation_config.json.
_GENERATION = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p",
    "min_p",
)  # fmt: skip

_MODEL_KEYS = (
    "revision", "tokenizer", "dtype", "trust_remote_code", "chat_template", "reasoning_parser",
    "tool_call_parser",
)  # fmt: skip

# They change no answer of ours: servers, logs, and what is always on here.
_WITHOUT_EFFECT = frozenset(
    {"enable_metrics", "host", "port", "url", "disable_log_stats", "enable_log_requests",
     "disable_log_requests", "max_log_len", "enable_log_outputs", "enable_log_deltas",
     "log_config_file", "log_error_stack", "enable_server_load_tracking", "sse_keep_alive_interval",
     "enable_force_include_usage", "enable_tokenizer_info_endpoint", "fingerprint_mode",
     "fingerprint_value", "enable_auto_tool_choice", "chat_template_content_format",
     "trust_request_chat_template", "trust_request_mm_kwargs", "enable_prompt_tokens_details",
     "enable_per_request_metrics", "tool_strict_level", "exclude_tools_when_tool_choice_none",
     "api_server_count", "enable_scale_out", "tokens_only", "output_tmp_dir"}
)  # fmt: skip

_REFUSED = {
    "lora_modules": "LoRA adapters are not served by run-batch",
    "tool_parser_plugin": "tool parsers of one's own are not loaded",
    "tool_server": "tools are not run, only asked for",
    "return_tokens_as_token_ids": "tokens are written as text",
    "response_role": "the role is always assistant",
}


def generation_defaults(config: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling fields that vLLM's server takes from a model's generation config.

    Args:
        config: the model's generation_config.json; empty if it is not to be used.
        override: `--override-generation-config`.
    """
    merged = {**config, **override}
    fields = {name: merged[name] for name in _GENERATION if merged.get(name) is not None}
    # Integers are as good as floats in these files.
    fields = {k: float(v) if k != "top_k" else int(v) for k, v in fields.items()}
    cap = merged.get("max_new_tokens")
    return {**_SERVER_DEFAULTS, "max_tokens": cap or WHAT_IS_LEFT, **fields}


def job_data(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Arguments by vLLM's names as the sections of a job file, and those that do nothing here.

    Raises:
        JobError: an argument that changes the answers in a way that is not served.
    """
    options = dict(arguments)
    for name in options.keys() & _REFUSED.keys():
        raise JobError(f"--{name.replace('_', '-')}: {_REFUSED[name]}", "Leave it out.")
    model = {"name": options.pop("model", "")}
    model |= {key: options.pop(key) for key in _MODEL_KEYS if key in options}
    served = options.pop("served_model_name", None)
    if served:
        model["served_name"] = served[0] if isinstance(served, list) else served
    run: dict[str, Any] = {"max_failed": 1.0, "stop_at_failed": 1.0}
    replicas = options.pop("data_parallel_size", None)
    if replicas is not None:
        run["replicas"] = replicas
    prompt = {"chat_template_kwargs": options.pop("default_chat_template_kwargs", None) or {}}
    if options.get("max_model_len") in ("auto", -1):
        del options["max_model_len"]
    for name in ("generation_config", "override_generation_config"):
        options.pop(name, None)  # they are in the job's sampling by now
    idle = sorted(options.keys() & _WITHOUT_EFFECT)
    for name in idle:
        del options[name]
    return {"model": model, "prompt": prompt, "run": run, "engine": {"options": options}}, idle
