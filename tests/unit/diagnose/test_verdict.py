"""What a worker's time went to, in one word, and what a healthy run is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchwright.diagnose.evidence import Evidence
from batchwright.diagnose.verdict import Bound, diagnose, judge, verdict_line
from tests.unit.diagnose.samples import CARD, HEALTHY, WORKER, with_answers, with_settings

VERDICTS: list[tuple[dict[str, Any], Bound]] = [
    ({}, Bound.ENGINE),
    ({"seconds": 19}, Bound.SHORT),
    ({"starved": 0.3}, Bound.PREPARE),
    ({"media": 0.3}, Bound.MEDIA),
    ({"commit_wait": 0.3}, Bound.WRITE),
    ({"start_up_s": 300}, Bound.START_UP),
    ({"idle_s": 200}, Bound.TAIL),
    ({"tail_s": 200}, Bound.TAIL),
    ({"kv_use": 0.9}, Bound.KV),
    ({"cards": (replace(CARD, use=0.5),)}, Bound.HOST),
    ({"starved": 0.12, "media": 0.3}, Bound.MEDIA),
]


@pytest.mark.parametrize(("changes", "bound"), VERDICTS)
def test_verdicts(changes: dict[str, Any], bound: Bound) -> None:
    worker = replace(WORKER, **changes)
    assert judge(worker, replace(HEALTHY, workers=(worker,))).bound == bound


def test_every_word_is_used() -> None:
    assert {bound for _, bound in VERDICTS} == set(Bound)


def test_a_loss_is_told_with_its_share() -> None:
    verdict = judge(replace(WORKER, starved=0.5, start_up_s=0, idle_s=0), HEALTHY)
    assert verdict_line(verdict) == "infer-1: prep-bound (50 % of its time)"
    assert verdict_line(judge(WORKER, HEALTHY)) == "infer-1: engine-bound"


def test_a_healthy_run_is_told_its_figures() -> None:
    found = diagnose(HEALTHY)
    assert found.findings == ()
    assert not found.costs
    figures = dict(found.figures)
    assert figures["GPU use"] == "95 %"
    assert figures["engine starved"] == "1.0 %"
    assert figures["rows/s"] == "111.1"


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    found = diagnose(Evidence(unknown=("no readings",)))
    assert (found.findings, found.verdicts, found.figures) == ((), (), ())
    assert found.as_json()["unknown"] == ["no readings"]


def test_only_what_costs_something_counts_for_scripts() -> None:
    assert not diagnose(with_settings(temperature=1.9)).costs
    assert diagnose(with_answers(cut=0.2)).costs
