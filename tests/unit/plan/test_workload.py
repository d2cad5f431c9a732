"""Rows with several answers each are planned for as the sequences that they are."""

from __future__ import annotations

import pytest

from batchwright.core.workload import LengthHistogram, Workload

PROMPTS = LengthHistogram((100, 300), (6, 2))


def test_one_answer_changes_nothing() -> None:
    work = Workload(PROMPTS, None, 50, 0.25)
    assert work.in_samples(1) is work


def test_prompts_are_computed_once_and_answers_each() -> None:
    outputs = LengthHistogram((30, 90), (5, 3))
    work = Workload(PROMPTS, outputs, 50, 0.25, LengthHistogram((50,), (8,)))
    several = work.in_samples(3)
    assert several.prompts.rows == 24
    computed = several.prompts.total * (1 - several.cached_share)
    assert computed == pytest.approx(work.prompts.total * 0.75)
    assert several.outputs == LengthHistogram((10, 30), (15, 9))
    assert several.outputs is not None
    assert several.outputs.total == outputs.total
    assert several.caps.rows == 24
    assert several.max_tokens == 50
