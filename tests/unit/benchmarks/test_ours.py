"""batchwright as a system of the comparison: each engine gets the options that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.throughput.__main__ import BATCHWRIGHT, SYSTEMS, make_system
from benchmarks.throughput.ours import Batchwright, ran_on_vllm
from benchmarks.throughput.records import Case, Row, Segment, Workload

from batchwright.equip import choosing
from batchwright.machine.hardware import LocalGpus
from tests.unit.rundir.small_runs import prompts, small_run

CONDITIONS: dict[str, Any] = {
    "max_model_len": 64, "load_format": "dummy", "enforce_eager": True, "kv_cache_memory_bytes": 9,
}  # fmt: skip
ROWS = (Row("a", (Segment(0, 10),), 4),)


def options_of(name: str, model: Path, folder: Path, task: str = "embed") -> set[str]:
    """Names of the engine options in the command of a system."""
    system = make_system(name, share=False, stats=False, peer_python="")
    assert isinstance(system, Batchwright)
    case = Case(
        Workload("W8", ROWS, None, task, ""), model, folder / "rows.jsonl", CONDITIONS,
        {"max_num_batched_tokens": 512}, folder, True,
    )  # fmt: skip
    command = system.command(case, folder)
    marks = [word for word in command if word.startswith("engine.options.")]
    return {mark.removeprefix("engine.options.").partition("=")[0] for mark in marks}


FOR_TORCH = {"max_model_len", "load_format"}
FOR_VLLM = {*CONDITIONS, "max_num_batched_tokens"}


@pytest.mark.parametrize(
    ("name", "on_gpu", "on_cpu"),
    [
        ("batchwright", FOR_TORCH, FOR_VLLM),
        ("batchwright-file", FOR_TORCH, FOR_VLLM),
        ("batchwright-torch", FOR_TORCH, FOR_TORCH),
        ("batchwright-vllm", FOR_VLLM, FOR_VLLM),
    ],
)
def test_an_engine_gets_no_option_that_it_does_not_have(
    name: str,
    on_gpu: set[str],
    on_cpu: set[str],
    tiny_bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for card, wanted in ((LocalGpus("NVIDIA H200", 1, 141 << 30), on_gpu), (None, on_cpu)):
        monkeypatch.setattr(choosing, "local_gpus", lambda card=card: card)
        assert options_of(name, tiny_bert, tmp_path) == wanted
    assert options_of("batchwright", tiny_bert, tmp_path, "generate") == FOR_VLLM


def test_every_system_of_ours_is_listed() -> None:
    assert set(BATCHWRIGHT) <= set(SYSTEMS)


def test_only_a_run_of_vllm_says_how_vllm_is_set_up(tiny_bert: Path, tmp_path: Path) -> None:
    for kind in ("vllm", "torch"):
        run = small_run(
            tmp_path, prompts(2), task="embed", engine__kind=kind, model__name=str(tiny_bert),
            run_dir=kind,
        )  # fmt: skip
        path = run.storage.root
        assert isinstance(path, Path)
        assert ran_on_vllm(path) is (kind == "vllm")
