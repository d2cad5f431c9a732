"""Facts about GPUs, from the vendors' datasheets.

NVIDIA prints the FLOP/s of tensor cores with 2:4 sparsity since Ampere ("with sparsity", often in
a footnote): twice what dense matrices get. The figures here are dense, with sums in float32, as
engines use them. Memory is what the driver reports as total (`nvidia-smi`, MiB), less than the
name says: ECC and the driver take their part.
"""

from __future__ import annotations

import difflib
import re

from batchwright.core.errors import JobError
from batchwright.core.plan import GpuFacts

MIB = 1 << 20
TERA = 1e12
GIGA = 1e9


def _gpu(
    name: str,
    memory_mib: int,
    bandwidth_gb_s: float,
    tera_flops: tuple[float | None, float | None, float | None],
    capability: tuple[int, int],
    source: str,
    *,
    nvlink: bool = False,
) -> GpuFacts:
    """`tera_flops` are dense: float16, bfloat16, fp8; None where the GPU lacks the format."""
    names = ("float16", "bfloat16", "fp8")
    flops = {
        key: value * TERA for key, value in zip(names, tera_flops, strict=True) if value is not None
    }
    return GpuFacts(
        name, memory_mib * MIB, bandwidth_gb_s * GIGA, flops, capability, nvlink, source
    )


GPUS: dict[str, GpuFacts] = {
    gpu.name: gpu
    for gpu in (
        _gpu("T4", 15_360, 320, (65, None, None), (7, 5),
             "NVIDIA T4 Tensor Core GPU datasheet: 65 TFLOPS FP16, no BF16, no sparsity"),
        _gpu("L4", 23_034, 300, (121, 121, 242.5), (8, 9),
             "NVIDIA L4 Tensor Core GPU datasheet: 242 and 485 (fp8) with sparsity, halved"),
        _gpu("A10", 23_028, 600, (125, 125, None), (8, 6),
             "NVIDIA A10 Tensor Core GPU datasheet: 125, 250 with sparsity"),
        _gpu("A10G", 23_028, 600, (70, 70, None), (8, 6),
             "NVIDIA A10G datasheet by AWS (EC2 G5): 70, 140 with sparsity; the A10 has 125"),
        _gpu("RTX 4090", 24_564, 1_008, (165.2, 165.2, 330.3), (8, 9),
             "NVIDIA Ada GPU architecture whitepaper, appendix A: FP32 accumulation; fp8 is twice "
             "as fast with FP16 accumulation"),
        _gpu("L40S", 46_068, 864, (362.05, 362.05, 733), (8, 9),
             "NVIDIA L40S datasheet: 362.05 and 733 (fp8), 733 and 1,466 with sparsity"),
        _gpu("A100 40GB", 40_960, 1_555, (312, 312, None), (8, 0),
             "NVIDIA A100 Tensor Core GPU datasheet, SXM: 312, 624 with sparsity", nvlink=True),
        _gpu("A100 80GB", 81_920, 2_039, (312, 312, None), (8, 0),
             "NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM: 312, 624 with sparsity",
             nvlink=True),
        _gpu("A100 40GB PCIe", 40_960, 1_555, (312, 312, None), (8, 0),
             "NVIDIA A100 Tensor Core GPU datasheet, 40GB PCIe: 312, 624 with sparsity"),
        _gpu("A100 80GB PCIe", 81_920, 1_935, (312, 312, None), (8, 0),
             "NVIDIA A100 Tensor Core GPU datasheet, 80GB PCIe: 312, 624 with sparsity"),
        _gpu("H100", 81_559, 3_350, (989, 989, 1_979), (9, 0),
             "NVIDIA H100 Tensor Core GPU datasheet, SXM: 1,979 and 3,958 (fp8) with sparsity, "
             "halved", nvlink=True),
        _gpu("H100 PCIe", 81_559, 2_000, (756, 756, 1_513), (9, 0),
             "NVIDIA H100 Tensor Core GPU datasheet, PCIe: 1,513 and 3,026 (fp8) with sparsity, "
             "halved"),
        _gpu("H100 NVL", 95_830, 3_900, (835, 835, 1_670), (9, 0),
             "NVIDIA H100 Tensor Core GPU datasheet, NVL: 1,671 and 3,341 (fp8) with sparsity, "
             "halved"),
        _gpu("H200", 143_771, 4_800, (989, 989, 1_979), (9, 0),
             "NVIDIA H200 Tensor Core GPU datasheet, SXM: 1,979 and 3,958 (fp8) with sparsity, "
             "halved", nvlink=True),
        _gpu("H200 NVL", 143_771, 4_800, (835, 835, 1_670), (9, 0),
             "NVIDIA H200 Tensor Core GPU datasheet, NVL: 1,671 and 3,341 (fp8) with sparsity, "
             "halved"),
        _gpu("B200", 183_359, 7_700, (2_250, 2_250, 4_500), (10, 0),
             "NVIDIA Blackwell datasheet, HGX B200: 4,500 and 9,000 (fp8) with sparsity, halved; "
             "180 GB at 7.7 TB/s (the first brief said 192 GB at 8)", nvlink=True),
        _gpu("MI300X", 196_592, 5_300, (1_307.4, 1_307.4, 2_614.9), (9, 4),
             "AMD Instinct MI300X data sheet: twice that with sparsity", nvlink=True),
    )
}  # fmt: skip

# Other spellings, after `_key`; people and `nvidia-smi` write more than the card's name.
_OTHER = {
    "a100": "A100 80GB",
    "a10080": "A100 80GB",
    "a10040": "A100 40GB",
    "a100pcie": "A100 80GB PCIe",
    "a100pcie80": "A100 80GB PCIe",
    "a100pcie40": "A100 40GB PCIe",
    "h10080": "H100",
    "h10080pcie": "H100 PCIe",
    "h10094nvl": "H100 NVL",
    "h200141": "H200",
    "h200141nvl": "H200 NVL",
    "b200180": "B200",
    "b200192": "B200",
    "4090": "RTX 4090",
    "rtx4090": "RTX 4090",
    "geforcertx4090": "RTX 4090",
    "mi300": "MI300X",
}


def find_gpu(name: str) -> GpuFacts:
    """The facts of a GPU by a name as people, clouds or the driver write it.

    Raises:
        JobError: the GPU is not known; the hint has the nearest names.
    """
    wanted = _key(name)
    for gpu in GPUS.values():
        if wanted == _key(gpu.name):
            return gpu
    if wanted in _OTHER:
        return GPUS[_OTHER[wanted]]
    near = difflib.get_close_matches(wanted, [_key(known) for known in GPUS], n=3, cutoff=0.5)
    names = [known for key in near for known in GPUS if _key(known) == key] or list(GPUS)
    raise JobError(f"GPU {name!r} is not known", f"Nearest: {', '.join(names)}.")


def assumed_link_note(gpu: GpuFacts, count: int) -> str | None:
    """For the notes of a plan for named cards: which link between them it takes for granted."""
    if count < 2:
        return None
    link = "a direct link (NVLink or Infinity Fabric)" if gpu.nvlink else "PCIe only"
    return (
        f"Nobody asked the {count} cards how they are joined: {gpu.name}s are taken to have {link}."
    )


def _key(name: str) -> str:
    """Letters and digits, without vendor, units and SXM; PCIe and NVL cards are slower ones."""
    text = name.lower()
    text = re.sub(r"\b(nvidia|amd|instinct|tesla|geforce|tensor core|gpu)\b", "", text)
    text = re.sub(r"(sxm\d?|hbm\d?e?|gi?b\b)", "", text)
    return re.sub(r"[^a-z0-9]", "", text)
