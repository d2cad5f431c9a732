from __future__ import annotations

import pytest

from batchwright.plan.gate import Outlook, cache_for_prompts, decide, work


def test_nothing_to_win_means_file_order() -> None:
    verdict = decide(Outlook(1_000_000, 10_000, 0.8, 0.8))
    assert not verdict.group
    assert verdict.gain == 0
    assert verdict.seconds_left is None


@pytest.mark.parametrize(
    ("hit_best", "grouped"), [(0.0, False), (0.029, False), (0.031, True), (0.9, True)]
)
def test_three_percent_of_the_work_are_asked_for(hit_best: float, grouped: bool) -> None:
    assert decide(Outlook(1_000_000, 0, 0.0, hit_best)).group is grouped


def test_what_is_over_in_five_minutes_needs_ten_percent() -> None:
    outlook = Outlook(1_000_000, 0, 0.0, 0.05)
    assert decide(outlook).group
    quick = decide(outlook._replace(tokens_per_s=1_000_000 / 299))
    assert not quick.group
    assert quick.seconds_left == pytest.approx(299)
    assert decide(outlook._replace(tokens_per_s=1_000_000 / 301)).group
    assert decide(outlook._replace(tokens_per_s=1e9, hit_best=0.11)).group


def test_long_answers_make_a_hit_worth_less() -> None:
    short, long = (decide(Outlook(1000, output, 0.1, 0.5)).gain for output in (10, 5000))
    assert short > 10 * long


def test_a_worse_order_is_never_chosen() -> None:
    verdict = decide(Outlook(1000, 100, 0.9, 0.5))
    assert not verdict.group
    assert verdict.gain < 0
    assert "0.0% of the time" in verdict.reason


def test_a_job_without_tokens_is_left_alone() -> None:
    assert not decide(Outlook(0, 0, 0.0, 0.0)).group


def test_answers_take_their_share_of_the_cache() -> None:
    assert cache_for_prompts(100_000, 900, 100) == 90_000
    assert cache_for_prompts(100_000, 100, 900) == 10_000
    assert cache_for_prompts(100_000, 0, 0) == 100_000


def test_the_gain_measured_on_a_gpu_is_predicted() -> None:
    """One H200, 7B model, cache of 100,000 tokens, 200 groups of 8 rows, 1,024 tokens shared, 32
    out: hit rates 0.34 and 0.81, and 29.4 s against 10.0 s.
    """
    rows, prompt, output = 1600, 1104, 32
    verdict = decide(Outlook(rows * prompt, rows * output, 0.34, 0.81))
    assert 1 / (1 - verdict.gain) == pytest.approx(2.94, rel=0.05)


def test_the_reason_has_the_figures() -> None:
    reason = decide(Outlook(1000, 0, 0.25, 0.75)).reason
    assert "25%" in reason
    assert "75%" in reason
    assert work(10, 5) == 20
