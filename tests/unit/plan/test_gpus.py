"""GPUs by the names that people and drivers write."""

from __future__ import annotations

import pytest

from batchwright.core.errors import JobError
from batchwright.plan.gpus import GPUS, find_gpu


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("nvidia h200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("A100", "A100 80GB"),
        ("a100-40", "A100 40GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("l40s", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("B200", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_forgiving_names(written: str, name: str) -> None:
    assert find_gpu(written).name == name


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(JobError) as refused:
        find_gpu("H300")
    assert "H100" in refused.value.hint
    assert "H200" in refused.value.hint
    with pytest.raises(JobError, match="is not known"):
        find_gpu("")


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_a_source_and_sane_figures(name: str) -> None:
    gpu = GPUS[name]
    assert gpu.source
    assert 14e9 < gpu.memory_bytes < 210e9
    assert 2e11 < gpu.bandwidth_bytes_s < 1e13
    # The ridge of every card lies between 100 and 500 FLOP per byte.
    assert 100 < gpu.flops["float16"] / gpu.bandwidth_bytes_s < 500
    assert ("fp8" in gpu.flops) == (gpu.capability >= (8, 9))
