"""Figures as people read them, and means over workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from batchwright.diagnose.evidence import WorkerEvidence


def percent(share: float) -> str:
    """`42 %`; below ten with a decimal."""
    return f"{share:.0%}".replace("%", " %") if share >= 0.1 else f"{share:.1%}".replace("%", " %")


def gigabytes(count: float) -> str:
    """`7.6 GB`, of 1e9 bytes."""
    return f"{count / 1e9:,.1f} GB"


def per_second(count: float) -> str:
    """`7.62 MB/s`, `43 kB/s`."""
    return f"{count / 1e6:,.2f} MB/s" if count >= 1e5 else f"{count / 1e3:,.1f} kB/s"


def over_time(workers: Iterable[WorkerEvidence], share: Callable[[WorkerEvidence], float]) -> float:
    """Mean of a share over the time of some workers."""
    seconds = lost = 0.0
    for one in workers:
        seconds += one.seconds
        lost += one.seconds * share(one)
    return lost / seconds if seconds else 0.0


def median(values: Iterable[float]) -> float:
    """The middle value, of two the lower; 0 of none."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0
