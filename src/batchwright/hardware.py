"""What cards this machine has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalGpus:
    """The machine's own NVIDIA cards, by NVML. `linked` is whether NVLink joins them."""

    name: str
    count: int
    memory_bytes: int
    linked: bool


def local_gpus() -> LocalGpus | None:
    """The cards of this machine; None where there is no NVIDIA driver.

    Machines with cards of different kinds are taken at the first kind.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count == 0:
            return None
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        linked = count > 1 and _has_nvlink(handle)
        return LocalGpus(str(name), int(count), memory_bytes, linked)
    finally:
        pynvml.nvmlShutdown()


def _has_nvlink(handle: object) -> bool:
    import pynvml

    try:
        return bool(pynvml.nvmlDeviceGetNvLinkState(handle, 0))
    except pynvml.NVMLError:  # cards without NVLink do not know the question
        return False
