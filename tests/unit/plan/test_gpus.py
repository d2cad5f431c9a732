"""GPUs by the names that people and drivers write."""

from __future__ import annotations

import pytest

from batchwright.core.errors import JobError
from batchwright.plan.gpus import GPUS, assumed_link_note, find_gpu


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("nvidia h200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA A10", "A10"),
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


@pytest.mark.parametrize("name", GPUS)
def test_figures_are_dense_and_fp8_is_twice_as_fast(name: str) -> None:
    flops = GPUS[name].flops
    if "bfloat16" in flops:
        assert flops["bfloat16"] == flops["float16"]
    if "fp8" in flops:
        assert flops["fp8"] / flops["float16"] == pytest.approx(2, rel=0.02)
    # With sparsity every figure would be twice as high: no card of its time reached these.
    assert (
        flops["float16"]
        < {7: 80e12, 8: 400e12, 9: 1_400e12, 10: 2_500e12}[GPUS[name].capability[0]]
    )


def test_cards_that_look_alike_are_told_apart() -> None:
    assert find_gpu("A10G").flops["bfloat16"] < find_gpu("A10").flops["bfloat16"]
    assert find_gpu("H100 NVL").flops["fp8"] < find_gpu("H100").flops["fp8"]
    pcie = find_gpu("NVIDIA A100 80GB PCIe")
    assert pcie.bandwidth_bytes_s < find_gpu("A100").bandwidth_bytes_s
    assert not pcie.nvlink


def test_a_plan_for_named_cards_says_which_link_it_takes_for_granted() -> None:
    assert assumed_link_note(find_gpu("L4"), 1) is None
    assert "L4s are taken to have PCIe only" in (assumed_link_note(find_gpu("L4"), 4) or "")
    assert "NVLink" in (assumed_link_note(find_gpu("H100"), 2) or "")
