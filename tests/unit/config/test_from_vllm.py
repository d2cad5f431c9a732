"""The options of `vllm run-batch`, in its own spelling, as a job."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.config.from_vllm import WHAT_IS_LEFT, generation_defaults, job_data
from batchwright.config.load import make_job
from batchwright.config.vllm_words import parse_words
from batchwright.core.errors import JobError

FIELDS = {
    "max_model_len": "int", "tensor_parallel_size": "int", "gpu_memory_utilization": "float",
    "enable_prefix_caching": "bool | None", "dtype": "ModelDType", "revision": "str | None",
    "quantization": "QuantizationMethods | None", "trust_remote_code": "bool", "seed": "int",
    "hf_overrides": "HfOverrides", "speculative_config": "dict[str, Any] | None",
    "cudagraph_capture_sizes": "list[int] | None", "served_model_name": "str | list[str] | None",
    "compilation_config": "CompilationConfig", "no_such": "int",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--max-model-len 4096", {"max_model_len": 4096}),
        ("--max_model_len=4k", {"max_model_len": 4000}),
        ("--max-model-len 1.5K", {"max_model_len": 1536}),
        ("--max-model-len -1", {"max_model_len": -1}),
        ("-tp 2 --seed 7", {"tensor_parallel_size": 2, "seed": 7}),
        ("--gpu-memory-utilization .85", {"gpu_memory_utilization": 0.85}),
        ("--enable-prefix-caching --seed 1", {"enable_prefix_caching": True, "seed": 1}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--no-such 3", {"no_such": 3}),
        ("--trust-remote-code true", {"trust_remote_code": True}),
        ("--revision 1234567 --dtype float32", {"revision": "1234567", "dtype": "float32"}),
        ("--quantization None", {"quantization": None}),
        ('--hf-overrides {"a":[1]}', {"hf_overrides": {"a": [1]}}),
        ("--hf-overrides.rope.theta 5 --hf-overrides.x y",
         {"hf_overrides": {"rope": {"theta": 5}, "x": "y"}}),
        ("-cc.mode 3", {"compilation_config": {"mode": 3}}),
        ("-O3", {"optimization_level": 3}),
        ("--cudagraph-capture-sizes 1 2 4", {"cudagraph_capture_sizes": [1, 2, 4]}),
        ("--cudagraph-capture-sizes 8", {"cudagraph_capture_sizes": [8]}),
        ("--served-model-name a", {"served_model_name": "a"}),
        ("--served-model-name a b", {"served_model_name": ["a", "b"]}),
        ("--made-up 1e3", {"made_up": 1000.0}),
        ("--made-up yes", {"made_up": "yes"}),
    ],
)  # fmt: skip
def test_words(words: str, options: dict[str, Any]) -> None:
    assert parse_words(words.split(" "), FIELDS) == options


@pytest.mark.parametrize("words", [["4096"], ["-z", "1"], ["--hf-overrides", "{broken"]])
def test_words_that_say_nothing(words: list[str]) -> None:
    with pytest.raises(JobError):
        parse_words(words, FIELDS)


def test_a_job() -> None:
    data, idle = job_data({
        "model": "m", "served_model_name": ["a", "b"], "dtype": "float32", "revision": "r",
        "reasoning_parser": "qwen3", "tool_call_parser": "hermes", "enable_auto_tool_choice": True,
        "max_model_len": 99, "enable_prefix_caching": False, "data_parallel_size": 2,
        "default_chat_template_kwargs": {"enable_thinking": False}, "enable_metrics": True,
        "generation_config": "vllm",
    })  # fmt: skip
    job = make_job({**data, "input": {"path": "x.jsonl"}}, {})
    assert (job.model.name, job.model.served_name, job.model.dtype) == ("m", "a", "float32")
    assert (job.model.reasoning_parser, job.model.tool_call_parser) == ("qwen3", "hermes")
    assert job.engine.options == {"max_model_len": 99, "enable_prefix_caching": False}
    assert job.prompt.chat_template_kwargs == {"enable_thinking": False}
    assert (job.run.replicas, job.run.max_failed) == (2, 1.0)
    assert idle == ["enable_auto_tool_choice", "enable_metrics"]


def test_what_would_change_the_answers_is_refused() -> None:
    with pytest.raises(JobError, match="--lora-modules"):
        job_data({"model": "m", "lora_modules": "a=b"})


def test_the_models_context_is_no_option() -> None:
    for value in (-1, "auto"):
        data, _ = job_data({"model": "m", "max_model_len": value})
        assert data["engine"]["options"] == {}


def test_sampling_without_and_with_a_generation_config() -> None:
    assert generation_defaults({}, {}) == {"temperature": 1.0, "max_tokens": WHAT_IS_LEFT}
    config = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 9, "eos_token_id": 2, "top_p": 1}
    assert generation_defaults(config, {"temperature": 0.1}) == {
        "temperature": 0.1, "top_k": 20, "top_p": 1.0, "max_tokens": 9,
    }  # fmt: skip
