"""Facts about GPUs, from the vendors' datasheets.

Datasheets of NVIDIA often print FLOP/s with sparsity; the figures here are dense, half of those.
Memory is what the driver reports as total (`nvidia-smi`, MiB), which is less than the name says.
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
        _gpu("T4", 15_360, 320, (65, None, None), (7, 5), "NVIDIA T4 Tensor Core GPU datasheet"),
        _gpu("L4", 23_034, 300, (121, 121, 242), (8, 9),
             "NVIDIA L4 Tensor Core GPU datasheet (sparse figures halved)"),
        _gpu("A10G", 23_028, 600, (70, 70, None), (8, 6),
             "NVIDIA A10G datasheet; AWS EC2 G5 instance page"),
        _gpu("RTX 4090", 24_564, 1_008, (165.2, 165.2, 330.3), (8, 9),
             "NVIDIA Ada GPU architecture whitepaper, appendix A (fp32 accumulation)"),
        _gpu("L40S", 46_068, 864, (362.05, 362.05, 733), (8, 9), "NVIDIA L40S datasheet"),
        _gpu("A100 40GB", 40_960, 1_555, (312, 312, None), (8, 0),
             "NVIDIA A100 Tensor Core GPU datasheet", nvlink=True),
        _gpu("A100 80GB", 81_920, 2_039, (312, 312, None), (8, 0),
             "NVIDIA A100 Tensor Core GPU datasheet (SXM)", nvlink=True),
        _gpu("H100", 81_559, 3_350, (989, 989, 1_979), (9, 0),
             "NVIDIA H100 Tensor Core GPU datasheet (SXM; sparse figures halved)", nvlink=True),
        _gpu("H100 PCIe", 81_559, 2_000, (756, 756, 1_513), (9, 0),
             "NVIDIA H100 Tensor Core GPU datasheet (PCIe; sparse figures halved)"),
        _gpu("H200", 143_771, 4_800, (989, 989, 1_979), (9, 0),
             "NVIDIA H200 Tensor Core GPU datasheet (SXM; sparse figures halved)", nvlink=True),
        _gpu("B200", 183_359, 8_000, (2_250, 2_250, 4_500), (10, 0),
             "NVIDIA Blackwell architecture technical brief (HGX B200)", nvlink=True),
        _gpu("MI300X", 196_592, 5_300, (1_307.4, 1_307.4, 2_614.9), (9, 4),
             "AMD Instinct MI300X data sheet", nvlink=True),
    )
}  # fmt: skip

# Other spellings, after `_key`; people and `nvidia-smi` write more than the card's name.
_OTHER = {
    "a100": "A100 80GB",
    "a10080": "A100 80GB",
    "a10040": "A100 40GB",
    "a10080pcie": "A100 80GB",
    "a10040pcie": "A100 40GB",
    "h10080": "H100",
    "h10080pcie": "H100 PCIe",
    "h200141": "H200",
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


def _key(name: str) -> str:
    """Letters and digits, without vendor, form factor and units."""
    text = name.lower()
    text = re.sub(r"\b(nvidia|amd|instinct|tesla|geforce|tensor core|gpu)\b", "", text)
    text = re.sub(r"(sxm\d?|hbm\d?e?|nvl\b|gi?b\b)", "", text)
    return re.sub(r"[^a-z0-9]", "", text)
