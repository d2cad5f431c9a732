"""What vLLM is started with, checked without vLLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.core.errors import JobError
from batchwright.core.plan import default_batched_tokens
from batchwright.core.ports import EngineSettings
from batchwright.engines import vllm_setup
from batchwright.engines.vllm import VllmEngine
from batchwright.engines.vllm_params import refuse_texts
from batchwright.engines.vllm_readings import FirstTokens, Readings


def settings(model: str = "org/model", **options: Any) -> EngineSettings:
    return EngineSettings("vllm", model, 4096, 1000, (7, 8), 100, options)


def test_defaults_give_way_to_options_but_not_the_settings() -> None:
    arguments = vllm_setup.engine_arguments(
        settings(enforce_eager=False, max_num_seqs=1, omp_num_threads=3),
        on_cpu=True,
        batched_tokens=2048,
        known=["watermark"],
    )
    assert arguments == {
        "model": "org/model",
        "max_num_seqs": 4096,
        "max_model_len": 1000,
        "max_num_batched_tokens": 4096,  # never below the number of rows
        "generation_config": "vllm",
        "disable_log_stats": False,
        "enforce_eager": False,
        "kv_cache_memory_bytes": 512 << 20,
        "watermark": 0.05,
    }


def test_gpu_defaults() -> None:
    def arguments(known: list[str], **options: Any) -> dict[str, Any]:
        return vllm_setup.engine_arguments(
            settings(**options), on_cpu=False, batched_tokens=8192, known=known
        )

    assert arguments([])["max_num_batched_tokens"] == 8192
    assert arguments([], max_num_batched_tokens=5000)["max_num_batched_tokens"] == 5000
    assert not {"enforce_eager", "kv_cache_memory_bytes", "watermark"} & set(arguments([]))
    assert arguments(["watermark"])["watermark"] == 0.05
    assert arguments(["watermark"], watermark=0.0)["watermark"] == 0.0


@pytest.mark.parametrize(
    ("device", "gib", "tokens"),
    [
        ("NVIDIA H200", 140, 16_384),
        ("NVIDIA H100 80GB HBM3", 79, 16_384),
        ("NVIDIA A100-SXM4-80GB", 79, 8192),
        ("NVIDIA L4", 22, 8192),
    ],
)
def test_tokens_per_step_by_card(device: str, gib: int, tokens: int) -> None:
    assert default_batched_tokens(device, gib << 30) == tokens


def test_what_needs_a_tokenizer_is_refused_without_one() -> None:
    refuse_texts({"temperature": 0.0, "stop": [], "bad_words": None})
    with pytest.raises(ValueError, match="stop needs a tokenizer"):
        refuse_texts({"stop": ["END"]})
    with pytest.raises(ValueError, match="bad_words needs a tokenizer"):
        refuse_texts({"bad_words": ["no"]})


def test_readings_add_up_what_the_steps_say() -> None:
    readings = Readings()
    drafts = SimpleNamespace(num_draft_tokens=8, num_accepted_tokens=3)
    scheduler = SimpleNamespace(
        num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.5, spec_decoding_stats=drafts,
        prefix_cache_stats=SimpleNamespace(queries=100, hits=40),
    )  # fmt: skip
    prefill = SimpleNamespace(num_computed_tokens=90)
    preempted = SimpleNamespace(type=SimpleNamespace(name="PREEMPTED"))
    queued = SimpleNamespace(type=SimpleNamespace(name="QUEUED"))
    step = [
        SimpleNamespace(
            request_id="17-a1b2c3d4", new_token_ids=[1], prefill_stats=prefill, events=[queued]
        ),
        SimpleNamespace(new_token_ids=[1, 2], prefill_stats=None, events=[queued, preempted]),
        SimpleNamespace(new_token_ids=[], prefill_stats=None, events=None),
    ]
    readings.count(scheduler, step)
    readings.count(None, step)
    scheduler.spec_decoding_stats = None
    readings.count(scheduler, [])
    assert (readings.drafted_tokens, readings.accepted_tokens) == (8, 3)
    assert (readings.prefix_tokens, readings.prefix_hit_tokens) == (200, 80)
    assert (readings.running, readings.waiting, readings.kv_use) == (2, 1, 0.5)
    assert (readings.prompt_tokens, readings.output_tokens, readings.preemptions) == (180, 6, 2)


def test_a_row_has_its_first_token_once_whatever_its_requests_are_called() -> None:
    now = iter([10.0, 11.0, 12.0, 13.0, 20.0, 21.0])
    first_tokens = FirstTokens(lambda: next(now))
    for request_id in ("0_17-a1b2c3d4", "1_17-a1b2c3d4", "18", "1_19"):
        first_tokens.note(request_id)
    first_tokens.forget([19, 99])
    assert first_tokens.end(17) == 10.0, "since its first sample began"
    assert first_tokens.end(18) == 9.0
    assert [first_tokens.end(row) for row in (17, 19)] == [None, None]


def test_a_pooled_row_has_no_first_token() -> None:
    readings = Readings()
    prefill = SimpleNamespace(num_computed_tokens=9)
    pooled = SimpleNamespace(request_id="a:b", new_token_ids=[], prefill_stats=prefill, events=None)
    readings.count(None, [pooled])
    assert readings.prompt_tokens == 9


def test_the_environment_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"VLLM_CPU_KVCACHE_SPACE": "4", "OMP_NUM_THREADS": "7"}
    monkeypatch.setattr(vllm_setup.os, "environ", environment)
    vllm_setup.prepare_environment({}, on_cpu=True)
    assert environment["OMP_NUM_THREADS"] == "7"
    vllm_setup.prepare_environment({"omp_num_threads": 2}, on_cpu=True)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment


def test_the_environment_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(vllm_setup.os, "environ", environment)
    vllm_setup.prepare_environment({}, on_cpu=False)
    assert set(environment) == {"VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"}


def test_model_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not exist"):
        vllm_setup.check_model(str(tmp_path / "absent"), {})
    with pytest.raises(JobError, match=r"no config\.json"):
        vllm_setup.check_model(str(tmp_path), {})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(JobError, match="no weights"):
        vllm_setup.check_model(str(tmp_path), {})
    vllm_setup.check_model(str(tmp_path), {"load_format": "dummy"})
    (tmp_path / "model.safetensors").touch()
    vllm_setup.check_model(str(tmp_path), {})
    vllm_setup.check_model("org/model", {})
    with pytest.raises(JobError, match="no model is named"):
        vllm_setup.check_model("", {})


def test_a_gguf_folder_needs_no_config(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    vllm_setup.check_model(str(tmp_path), {})


def test_a_broken_media_package_names_the_cure() -> None:
    problem = vllm_setup.import_problem(RuntimeError("operator torchvision::nms does not exist"))
    assert problem.hint == "pip uninstall -y torchvision torchaudio torchcodec"
    assert vllm_setup.import_problem(OSError("libcuda")).hint == ""


def test_the_stop_reason_names_what_ended_the_answer() -> None:
    engine = VllmEngine()
    engine._settings = settings()
    assert engine._stop_reason("stop", "END", [1, 2]) == "END"
    assert engine._stop_reason("stop", 5, [1, 5]) == "5"
    assert engine._stop_reason("stop", None, [1, 7]) == "7"
    assert engine._stop_reason("length", None, [1, 7]) is None
    assert engine._stop_reason("stop", None, []) is None


def test_on_cpus_a_slot_stays_free_for_rows_without_an_adapter() -> None:
    asked = EngineSettings("vllm", "m", 4, 64, options={"max_loras": 1, "max_cpu_loras": 2})
    two = replace(asked, adapters={"a": "x", "b": "y"})
    on_cpu = vllm_setup.engine_arguments(two, on_cpu=True, batched_tokens=64)
    assert (on_cpu["max_loras"], on_cpu["max_cpu_loras"]) == (3, 3)
    on_gpu = vllm_setup.engine_arguments(two, on_cpu=False, batched_tokens=64)
    assert (on_gpu["max_loras"], on_gpu["max_cpu_loras"]) == (1, 2)
    assert vllm_setup.engine_arguments(asked, on_cpu=True, batched_tokens=64)["max_loras"] == 1
