"""A card's answers as a reading: what is known, and what a card, a driver or a container hides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from batchwright.core.readings import CardReading
from batchwright.machine.cards import OnCard, others_bytes, read_card, throttle_reasons

GIB = 1 << 30


class Refused(Exception):
    pass


class Driver:
    """The few names of `pynvml` that are asked, with the answers of one card."""

    NVMLError = Refused
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1

    def __init__(self, **answers: Any) -> None:
        for question, answer in answers.items():
            setattr(self, f"nvmlDevice{question}", self._answering(answer))

    @staticmethod
    def _answering(answer: Any):
        def function(_handle: Any, *about: Any) -> Any:
            if answer is Refused:
                raise Refused
            return answer(*about) if callable(answer) else answer

        return function


def field(kib: int, code: int = 0) -> Any:
    return SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(ullVal=kib))


FULL: dict[str, Any] = {
    "GetIndex": 3,
    "GetUtilizationRates": SimpleNamespace(gpu=97, memory=60),
    "GetMemoryInfo": SimpleNamespace(used=70 * GIB, total=80 * GIB),
    "GetComputeRunningProcesses": [
        SimpleNamespace(pid=10, usedGpuMemory=60 * GIB),
        SimpleNamespace(pid=99, usedGpuMemory=9 * GIB),
    ],
    "GetPowerUsage": 650_500,
    "GetEnforcedPowerLimit": 700_000,
    "GetClockInfo": 1410,
    "GetMaxClockInfo": 1980,
    "GetTemperature": 71,
    "GetCurrentClocksEventReasons": 0x04 | 0x40,
    "GetPcieThroughput": lambda direction: 500 + direction,
    "GetFieldValues": [field(3), field(4)],
}


def test_a_card_tells_all_that_it_knows() -> None:
    assert read_card(Driver(**FULL), "card", {10, 11}) == CardReading(
        index=3, use=0.97, memory_use=0.6, memory_bytes=70 * GIB, memory_total_bytes=80 * GIB,
        others_bytes=9 * GIB, power_w=650.5, power_limit_w=700.0, sm_mhz=1410, sm_max_mhz=1980,
        temperature_c=71.0, throttled=("power", "heat"), pcie_received_bytes_s=501_000,
        pcie_sent_bytes_s=500_000, nvlink_bytes=7 * 1024,
    )  # fmt: skip


def test_a_slice_of_a_card_knows_its_memory_only() -> None:
    refused = dict.fromkeys(FULL, Refused)
    known = {"GetIndex": 0, "GetMemoryInfo": FULL["GetMemoryInfo"]}
    assert read_card(Driver(**(refused | known)), "card", {10}) == CardReading(
        index=0, memory_bytes=70 * GIB, memory_total_bytes=80 * GIB
    )


def test_a_driver_of_before_has_the_older_name() -> None:
    older = {**FULL, "GetCurrentClocksThrottleReasons": 0x08}
    del older["GetCurrentClocksEventReasons"]
    assert read_card(Driver(**older), "card", ()).throttled == ("hardware",)


def test_a_card_without_nvlink_has_no_bytes_of_it() -> None:
    without = {**FULL, "GetFieldValues": [field(0, code=3), field(0, code=3)]}
    assert read_card(Driver(**without), "card", ()).nvlink_bytes is None


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (None, ()),
        (0, ()),
        (0x01, ()),  # idle
        (0x02 | 0x10 | 0x100, ()),  # set clocks, in step with others, a display
        (0x04, ("power",)),
        (0x80, ("power",)),
        (0x20, ("heat",)),
        (0x08 | 0x40, ("heat", "hardware")),
    ],
)
def test_clocks_are_held_down_for_a_reason(bits: int | None, reasons: tuple[str, ...]) -> None:
    assert throttle_reasons(bits) == reasons


def test_the_bits_are_those_of_the_driver() -> None:
    def reasons(name: str) -> tuple[str, ...]:
        return throttle_reasons(getattr(pynvml, f"nvmlClocksThrottleReason{name}"))

    assert reasons("GpuIdle") == reasons("ApplicationsClocksSetting") == ()
    assert reasons("SwPowerCap") == reasons("HwPowerBrakeSlowdown") == ("power",)
    assert reasons("SwThermalSlowdown") == reasons("HwThermalSlowdown") == ("heat",)
    assert reasons("HwSlowdown") == ("hardware",)
    assert (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_CLOCK_SM) == (138, 1)
    assert pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX == 139


@pytest.mark.parametrize(
    ("processes", "theirs"),
    [
        (None, None),
        ([], None),
        ([OnCard(10, 5)], 0),
        ([OnCard(10, 5), OnCard(99, 7)], 7),
        ([OnCard(10, 5), OnCard(99, None)], None),
        ([OnCard(99, 7)], None),  # pids of the machine, seen from a container
    ],
)
def test_memory_of_others(processes: list[OnCard] | None, theirs: int | None) -> None:
    assert others_bytes(processes, {10, 11}) == theirs
