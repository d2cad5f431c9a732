"""An engine over several cards is not started where its processes could not talk."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.config.load import make_job
from batchwright.core.errors import JobError
from batchwright.equip.coherence import check_shared_memory
from batchwright.machine.hardware import shared_memory_bytes

DOCKERS_DEFAULT = 64 << 20


def job(kind: str = "vllm") -> Any:
    return make_job({"input": {"path": "x"}, "engine": {"kind": kind}}, {})


def test_dockers_default_is_too_small_for_two_cards() -> None:
    with pytest.raises(JobError, match="/dev/shm has 64 MiB; an engine over 2 cards needs 1 GiB"):
        check_shared_memory(job(), 2, DOCKERS_DEFAULT)


@pytest.mark.parametrize(
    ("kind", "cards", "size"),
    [("vllm", 1, DOCKERS_DEFAULT), ("vllm", 2, 1 << 30), ("vllm", 2, None), ("fake", 2, 0)],
)
def test_all_else_is_let_through(kind: str, cards: int, size: int | None) -> None:
    check_shared_memory(job(kind), cards, size)


def test_this_machine_can_be_asked() -> None:
    assert (shared_memory_bytes() or 1) > 0
