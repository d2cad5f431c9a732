"""Faults of engines are gathered by what has to be done about them."""

from __future__ import annotations

import pytest

from batchwright.diagnose.faults import EXPLAINED, LONGEST_LINE, capture_line, shown
from batchwright.engines.fatal_lines import KNOWN


def test_every_fault_that_a_rule_explains_is_a_known_line() -> None:
    assert EXPLAINED - {one.code for one in KNOWN} == {"graph_capture"}


@pytest.mark.parametrize(
    "line",
    [
        "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing",
        "CUDA error: cudaErrorStreamCaptureInvalidated",
        "RuntimeError: CUDA graph capturing failed for batch size 512",
    ],
)
def test_a_capture_that_fails_is_seen(line: str) -> None:
    assert capture_line(f"all is well\n  {line}\nEngine core failed") == line


@pytest.mark.parametrize("log", ["", "Capturing CUDA graphs (decode): 100%", "it broke"])
def test_a_capture_that_goes_on_is_none(log: str) -> None:
    assert capture_line(log) is None


def test_a_long_line_is_cut() -> None:
    assert shown(" it broke ") == "it broke"
    assert len(shown("x" * 1_000)) == LONGEST_LINE
