"""What follows from the driver's answers; and that no driver is no error."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pynvml
import pytest

from batchwright.machine.hardware import (
    Link,
    LocalGpus,
    Pair,
    cores_within,
    gpu_sampler,
    link_note,
    link_of,
    local_gpus,
    usable_cores,
    visible_cards,
)

UUIDS = ["GPU-11aa", "GPU-11bb", "GPU-22cc", "GPU-33dd"]
NO_DRIVER = not Path("/proc/driver/nvidia").exists()


def cards(*links: Link) -> LocalGpus:
    """Cards with these links: 1, 3 or 6 of them for 2, 3 or 4 cards."""
    count = {0: 1, 1: 2, 3: 3, 6: 4}[len(links)]
    pairs = zip(combinations(range(count), 2), links, strict=True)
    return LocalGpus("NVIDIA L4", count, 1, tuple(Pair(a, b, link) for (a, b), link in pairs))


@pytest.mark.parametrize(
    ("level", "link"),
    [
        (pynvml.NVML_TOPOLOGY_INTERNAL, Link.SWITCH),
        (pynvml.NVML_TOPOLOGY_SINGLE, Link.SWITCH),
        (pynvml.NVML_TOPOLOGY_MULTIPLE, Link.SWITCH),
        (pynvml.NVML_TOPOLOGY_HOSTBRIDGE, Link.HOST),
        (pynvml.NVML_TOPOLOGY_NODE, Link.HOST),
        (pynvml.NVML_TOPOLOGY_SYSTEM, Link.SOCKETS),
        (None, Link.UNKNOWN),
    ],
)
def test_a_pair_has_the_link_that_the_driver_tells(level: int | None, link: Link) -> None:
    assert link_of(level, nvlink=False) is link
    assert link_of(level, nvlink=True) is Link.NVLINK


def test_only_cards_that_all_meet_by_nvlink_are_linked() -> None:
    assert cards(*[Link.NVLINK] * 6).linked
    assert not cards(*[Link.NVLINK] * 5, Link.HOST).linked
    assert not cards(Link.UNKNOWN).linked
    assert not cards().linked


def test_the_note_names_what_was_found() -> None:
    assert link_note(cards()) is None
    assert "NVLink joins all 4 cards" in (link_note(cards(*[Link.NVLINK] * 6)) or "")
    assert "joined by PCIe across sockets" in (
        link_note(cards(Link.SWITCH, Link.SOCKETS, Link.HOST)) or ""
    )
    # Bridges join two cards each: 0-1 and 2-3.
    links = [Link.NVLINK, *[Link.HOST] * 4, Link.NVLINK]
    note = link_note(cards(*links)) or ""
    assert "only the cards 0-1, 2-3, the others meet by PCIe through the host" in note


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (None, UUIDS),
        ("", []),
        ("0", ["GPU-11aa"]),
        ("2, 0", ["GPU-22cc", "GPU-11aa"]),
        ("GPU-33dd,GPU-11bb", ["GPU-33dd", "GPU-11bb"]),
        ("GPU-2", ["GPU-22cc"]),  # shortened
        ("GPU-1", []),  # of two cards
        ("1,-1,0", ["GPU-11bb"]),  # what stands behind an unknown one is not seen
        ("1,9,0", ["GPU-11bb"]),
        ("NoDevFiles", []),
        ("0,0", []),
        ("0,GPU-11aa", []),
        ("MIG-5f,MIG-6a", ["MIG-5f", "MIG-6a"]),
    ],
)
def test_visible_cards_are_those_that_cuda_shows(asked: str | None, shown: list[str]) -> None:
    assert visible_cards(asked, UUIDS) == shown


@pytest.mark.parametrize(
    ("share", "cores"),
    [
        ("", 16),
        ("max 100000\n", 16),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("9999999 100000\n", 16),
        ("not a share", 16),
    ],
)
def test_a_container_has_its_share_of_the_cores(share: str, cores: int) -> None:
    assert cores_within(16, share) == cores
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not NO_DRIVER, reason="there is an NVIDIA driver here")
def test_a_machine_without_a_driver_has_no_cards() -> None:
    assert local_gpus() is None
    read = gpu_sampler({"tensor_parallel_size": 2})
    assert read(()) == ()
    assert read(()) == ()


@pytest.mark.skipif(NO_DRIVER, reason="there is no NVIDIA driver here")
def test_a_machine_with_a_driver_has_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = local_gpus()
    assert found is not None
    assert len(found.links) == found.count * (found.count - 1) // 2
    (reading,) = gpu_sampler({})(())
    assert reading.memory_bytes is not None
    assert 0 <= reading.memory_bytes <= found.memory_bytes
