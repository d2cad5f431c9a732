"""What cards and cores this machine has, how the cards are joined, and how busy they are.

The only importer of NVML's bindings: each call is one question, and a question that a card does
not know has the answer None. What follows from the answers is decided in pure functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from batchwright.core.readings import CardReading
from batchwright.machine.cards import read_card

# NVML's levels of the nearest point that two cards have in common (`nvmlGpuTopologyLevel_t`).
_SEVERAL_SWITCHES = 20
_SAME_SOCKET = 40


# What a container may use of the machine's cores: "quota period" in microseconds (cgroup v2).
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


class Link(StrEnum):
    """What joins two cards, best first."""

    NVLINK = "NVLink"
    SWITCH = "PCIe (same switch)"
    HOST = "PCIe through the host"
    SOCKETS = "PCIe across sockets"
    UNKNOWN = "a link that the driver does not tell"


class Pair(NamedTuple):
    """Two cards by their places among the visible ones, and what joins them."""

    first: int
    second: int
    link: Link


@dataclass(frozen=True, slots=True)
class LocalGpus:
    """The NVIDIA cards of this machine that the process may use, by NVML.

    Attributes:
        name: of the first card, as the driver writes it.
        count: how many there are.
        memory_bytes: of the first card, in all.
        links: of each pair of cards; empty for a single card.
    """

    name: str
    count: int
    memory_bytes: int
    links: tuple[Pair, ...] = ()

    @property
    def linked(self) -> bool:
        """Whether NVLink joins every card with every other."""
        return bool(self.links) and all(pair.link is Link.NVLINK for pair in self.links)


def link_of(ancestor: int | None, *, nvlink: bool) -> Link:
    """What joins two cards.

    Args:
        ancestor: NVML's topology level of the pair; None if the driver does not tell.
        nvlink: whether the cards reach each other's memory by NVLink, directly or by its switch.
    """
    if nvlink:
        return Link.NVLINK
    if ancestor is None:
        return Link.UNKNOWN
    if ancestor <= _SEVERAL_SWITCHES:
        return Link.SWITCH
    return Link.HOST if ancestor <= _SAME_SOCKET else Link.SOCKETS


def link_note(gpus: LocalGpus) -> str | None:
    """For the plan's notes: which links were found and what the plan makes of them."""
    if not gpus.links:
        return None
    if gpus.linked:
        return f"NVLink joins all {gpus.count} cards (by NVML): tensor parallel may span them."
    others = [pair.link for pair in gpus.links if pair.link is not Link.NVLINK]
    worst = max(others, key=list(Link).index)
    bridged = [f"{pair.first}-{pair.second}" for pair in gpus.links if pair.link is Link.NVLINK]
    if bridged:
        return (
            f"NVLink joins only the cards {', '.join(bridged)}, the others meet by {worst} (by "
            "NVML): the plan counts on PCIe, and a pipeline is tried beside tensor parallel."
        )
    return (
        f"No NVLink: the {gpus.count} cards are joined by {worst} (by NVML), so a pipeline, which "
        "hands over little, is tried beside tensor parallel."
    )


def visible_cards(asked: str | None, uuids: Sequence[str]) -> list[str]:
    """UUIDs of the cards that CUDA shows to a process, in its order.

    The rules are CUDA's: what stands behind an entry that names no card is not seen, and a card
    that is named twice hides them all. A UUID may be shortened. The indexes are those of cards of
    one kind, which CUDA and the driver count alike.

    Args:
        asked: `CUDA_VISIBLE_DEVICES`; None when it is not set.
        uuids: of all cards, as the driver counts them.
    """
    if asked is None:
        return list(uuids)
    chosen: list[str] = []
    for entry in asked.split(","):
        found = _card(entry.strip(), uuids)
        if found is None:
            break
        if found in chosen:
            return []
        chosen.append(found)
    return chosen


def _card(entry: str, uuids: Sequence[str]) -> str | None:
    """The UUID that an entry means; a slice of a card (MIG) keeps its own."""
    if entry.startswith("MIG-"):
        return entry
    if entry.startswith("GPU-"):
        found = [uuid for uuid in uuids if uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    if entry.isdecimal() and int(entry) < len(uuids):
        return uuids[int(entry)]
    return None


def usable_cores() -> int:
    """Cores that this process may use; a container's share counts, in whole cores."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        share = _CPU_MAX.read_text(encoding="ascii")
    except OSError:
        share = ""
    return cores_within(allowed, share)


def cores_within(allowed: int, share: str) -> int:
    """Cores of `allowed` that a container's share leaves, at least 1; "" and "max …" leave all."""
    quota, _, period = share.strip().partition(" ")
    if not quota.isdecimal() or not period.isdecimal():
        return allowed
    return max(1, min(allowed, int(quota) // max(1, int(period))))


def local_gpus() -> LocalGpus | None:
    """The cards that this process may use; None where there are none, or no NVIDIA driver.

    Machines with cards of different kinds are taken at the first kind.
    """
    import pynvml

    if not _open():
        return None
    try:
        handles = _handles()
        if not handles:
            return None
        name = _ask(pynvml.nvmlDeviceGetName, handles[0])
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handles[0])
        if name is None or memory is None:
            return None
        pairs = [
            Pair(one, two, _link(handles[one], handles[two]))
            for one, two in combinations(range(len(handles)), 2)
        ]
        return LocalGpus(str(name), len(handles), int(memory.total), tuple(pairs))
    finally:
        pynvml.nvmlShutdown()


def gpu_sampler(
    options: Mapping[str, Any],
) -> Callable[[Collection[int]], tuple[CardReading, ...]]:
    """A function that reads the cards of an engine with these options, of this very process.

    An engine takes the first cards that it sees, tensor x pipeline parallel of them. The driver
    is asked for them at the first reading, and stays open until the process ends. The function is
    given the pids of the worker's own processes.
    """
    cards = int(options.get("tensor_parallel_size", 1)) * int(
        options.get("pipeline_parallel_size", 1)
    )
    handles: list[Any] | None = None

    def read(own: Collection[int]) -> tuple[CardReading, ...]:
        import pynvml

        nonlocal handles
        if handles is None:
            handles = _handles()[:cards] if _open() else []
        return tuple(read_card(pynvml, handle, own) for handle in handles)

    return read


def _link(one: Any, two: Any) -> Link:
    import pynvml

    status = _ask(pynvml.nvmlDeviceGetP2PStatus, one, two, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    ancestor = _ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one, two)
    return link_of(ancestor, nvlink=status == pynvml.NVML_P2P_STATUS_OK)


def _handles() -> list[Any]:
    """Handles of the visible cards; one that the driver does not know ends the list, as in CUDA."""
    import pynvml

    count = _ask(pynvml.nvmlDeviceGetCount) or 0
    all_handles = [_ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    uuids = [str(_ask(pynvml.nvmlDeviceGetUUID, handle)) for handle in all_handles if handle]
    handles = []
    for uuid in visible_cards(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids):
        handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            break
        handles.append(handle)
    return handles


def _open() -> bool:
    """Whether there is a driver to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _ask(question: Callable[..., Any], *about: Any) -> Any:
    """The driver's answer; None for what a card, a slice of one or a container does not know."""
    import pynvml

    try:
        return question(*about)
    except pynvml.NVMLError:
        return None


def shared_memory_bytes() -> int | None:
    """Size of `/dev/shm`, through which the processes of one engine talk; None if there is none."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None
    return found.f_blocks * found.f_frsize
