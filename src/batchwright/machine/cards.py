"""What a card tells of itself for telemetry, by NVML's answers.

NVML is handed in (see `hardware`, which opens it): each question may be one that a card, a slice
of one or a container does not know, and then its answer is None.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from batchwright.core.readings import CardReading

# NVML's reasons for a lower clock (`nvmlClocksEventReason…`), by what holds it down. Idle cards, a
# clock that somebody has set, and cards that keep step with others are none.
_THROTTLE_BITS = (
    ("power", 0x04 | 0x80),  # the limit of its power, in software and by the power supply's brake
    ("heat", 0x20 | 0x40),  # in software, in hardware
    ("hardware", 0x08),  # half the clock or less, at once
)

# Fields of `nvmlDeviceGetFieldValues`: payload over all links of a card, in KiB.
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_ALL_LINKS = 0xFFFFFFFF


class OnCard(NamedTuple):
    """A process that uses a card; None if the driver does not tell how much."""

    pid: int
    used_bytes: int | None


def throttle_reasons(bits: int | None) -> tuple[str, ...]:
    """Why a card's clock is held down."""
    return tuple(name for name, mask in _THROTTLE_BITS if bits is not None and bits & mask)


def others_bytes(processes: Sequence[OnCard] | None, own: Collection[int]) -> int | None:
    """Memory of a card that others use.

    None where that cannot be told: a container may see the pids of the machine and not its own, and
    then every process would be another's.
    """
    if processes is None or not any(one.pid in own for one in processes):
        return None
    theirs = [one.used_bytes for one in processes if one.pid not in own]
    known = [used for used in theirs if used is not None]
    return sum(known) if len(known) == len(theirs) else None


def ask(nvml: Any, question: str, *about: Any) -> Any:
    """NVML's answer; None for what a card or this version of the driver does not know."""
    function = getattr(nvml, question, None)
    if function is None:
        return None
    try:
        return function(*about)
    except nvml.NVMLError:
        return None


def read_card(nvml: Any, handle: Any, own: Collection[int]) -> CardReading:
    """A card now; takes some 40 ms where the driver measures PCIe. A slice (MIG) knows little.

    Args:
        nvml: the module `pynvml`, opened.
        handle: of the card.
        own: pids of this worker's processes.
    """
    rates = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return CardReading(
        index=int(ask(nvml, "nvmlDeviceGetIndex", handle) or 0),
        use=None if rates is None else rates.gpu / 100,
        memory_use=None if rates is None else rates.memory / 100,
        memory_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        others_bytes=others_bytes(_processes(nvml, handle), own),
        power_w=_per_thousand(ask(nvml, "nvmlDeviceGetPowerUsage", handle)),
        power_limit_w=_per_thousand(ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)),
        sm_mhz=ask(nvml, "nvmlDeviceGetClockInfo", handle, _clock_of_sm(nvml)),
        sm_max_mhz=ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _clock_of_sm(nvml)),
        temperature_c=_temperature(nvml, handle),
        throttled=throttle_reasons(_event_reasons(nvml, handle)),
        pcie_received_bytes_s=_pcie(nvml, handle, "NVML_PCIE_UTIL_RX_BYTES"),
        pcie_sent_bytes_s=_pcie(nvml, handle, "NVML_PCIE_UTIL_TX_BYTES"),
        nvlink_bytes=_nvlink_bytes(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> list[OnCard] | None:
    found = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    return None if found is None else [OnCard(one.pid, one.usedGpuMemory) for one in found]


def _clock_of_sm(nvml: Any) -> int:
    return int(nvml.NVML_CLOCK_SM)


def _temperature(nvml: Any, handle: Any) -> float | None:
    found = ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
    return None if found is None else float(found)


def _event_reasons(nvml: Any, handle: Any) -> int | None:
    """Before driver 535 they were called throttle reasons."""
    found = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if found is None:
        found = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if found is None else int(found)


def _pcie(nvml: Any, handle: Any, direction: str) -> int | None:
    """Bytes a second, measured over 20 ms in which the call waits. NVML tells KB."""
    found = ask(nvml, "nvmlDeviceGetPcieThroughput", handle, getattr(nvml, direction))
    return None if found is None else int(found) * 1000


def _nvlink_bytes(nvml: Any, handle: Any) -> int | None:
    fields = [(_NVLINK_SENT, _ALL_LINKS), (_NVLINK_RECEIVED, _ALL_LINKS)]
    found = ask(nvml, "nvmlDeviceGetFieldValues", handle, fields)
    if found is None or any(one.nvmlReturn != 0 for one in found):
        return None
    return sum(int(one.value.ullVal) for one in found) * 1024


def _per_thousand(value: float | None) -> float | None:
    return None if value is None else value / 1000
