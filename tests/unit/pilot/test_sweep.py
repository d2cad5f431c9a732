"""What a sweep tries, when it stops, what it keeps, and that its rows are the same work each time."""

from __future__ import annotations

import json
from array import array
from itertools import islice

import pytest

from batchwright.core.records import Request
from batchwright.core.sweep import Reading, SweepPoint, SweepReport
from batchwright.pilot.replay import replay, with_length
from batchwright.pilot.sweep import (
    changes_to_try,
    is_gain,
    is_overfull,
    point_of,
    smallest_of_the_fastest,
    values_around,
)


def point(rate: float, rows: int = 64, kv_use: float = 0.5, preemptions: int = 0) -> SweepPoint:
    return SweepPoint({"max_num_seqs": rows}, rate / 10, 0.0, rate, kv_use, preemptions, 5.0)


@pytest.mark.parametrize(
    ("planned", "most", "values"),
    [
        (256, 512, (32, 64, 128, 256, 512)),
        (256, 300, (32, 64, 128, 256, 300)),
        (1000, 1000, (128, 256, 496, 1000)),
        (16, 32, (2, 4, 8, 16, 32)),
        (1, 2, (1, 2)),
        (256, 100, (32, 64, 100)),
    ],
)
def test_values_go_up_from_an_eighth_to_twice_the_plan(
    planned: int, most: int, values: tuple[int, ...]
) -> None:
    assert values_around(planned, most) == values


def test_a_full_cache_and_preemptions_end_the_search() -> None:
    assert is_overfull(point(100, kv_use=0.94))
    assert is_overfull(point(100, preemptions=1))
    assert not is_overfull(point(100, kv_use=0.93))


def test_a_gain_below_two_per_cent_is_noise() -> None:
    assert not is_gain(point(101.9), point(100))
    assert is_gain(point(102), point(100))


@pytest.mark.parametrize(
    ("rates", "kept"),
    [
        ([50, 80, 100, 101, 101.5], 2),
        ([50, 80, 100, 110, 90], 3),
        ([100, 100, 100], 0),
        ([100, 101.5, 103], 1),
    ],
)
def test_the_smallest_setting_within_the_noise_of_the_fastest_is_kept(
    rates: list[float], kept: int
) -> None:
    assert smallest_of_the_fastest([point(rate) for rate in rates]) == kept


def test_rows_that_are_thrown_out_count_by_what_they_cost() -> None:
    calm = point(100)
    assert smallest_of_the_fastest([calm, point(150, preemptions=3)]) == 1
    assert smallest_of_the_fastest([calm, point(99, preemptions=3)]) == 0


def test_a_point_has_rows_of_the_mean_length() -> None:
    made = point_of({"max_num_seqs": 8}, Reading(2.0, 300.0, 100.0, 0.3, 0), 40.0, 1.5)
    assert made.rows_per_s == 10.0
    assert made.tokens_per_s == 400.0


def test_a_report_says_what_each_point_is_worth() -> None:
    report = SweepReport(
        (point(80, 32), point(100, 64), point(110, 128)), 1, 2, (), 60.0, "H200", "vllm 0"
    )
    value = json.loads(json.dumps(report.as_json()))
    assert [one["worth"] for one in value["points"]] == [-0.2, 0.0, 0.1]
    assert value["kept"] == {"max_num_seqs": 128}


def names(changes: object) -> list[tuple[str, object]]:
    return [(change.name, change.value) for change in changes]  # type: ignore[attr-defined]


def test_what_needs_a_start_comes_in_order_of_its_gain() -> None:
    options = {"max_num_batched_tokens": 8192}
    found = changes_to_try("vllm", options, 1024, on_gpu=True, host_bound=True)
    assert names(found) == [
        ("engines_per_gpu", 2),
        ("engines_per_gpu", 3),
        ("max_cudagraph_capture_size", 1024),
        ("max_num_batched_tokens", 16384),
        ("max_num_batched_tokens", 4096),
        ("block_size", 32),
    ]
    assert found[0].options == {"gpu_memory_utilization": 0.46}
    assert found[0].engines == 2


def test_settings_that_make_no_sense_are_not_tried() -> None:
    planned = {
        "cudagraph_capture_sizes": [1, 1024],
        "max_num_batched_tokens": 32768,
        "block_size": 64,
    }
    found = changes_to_try("vllm", planned, 1024, on_gpu=True, host_bound=False)
    assert names(found) == [("max_num_batched_tokens", 16384)]
    assert not changes_to_try("fake", {}, 64, on_gpu=False, host_bound=False)
    wide = changes_to_try("vllm", {"tensor_parallel_size": 2}, 64, on_gpu=False, host_bound=True)
    assert "engines_per_gpu" not in dict(names(wide))


def test_an_answer_gets_the_length_that_the_pilot_measured() -> None:
    sampling = '{"min_tokens":3,"stop":["x"],"temperature":0.7}'
    changed = with_length(Request(1, [5], 100, sampling), 17)
    assert changed.max_tokens == 17
    assert json.loads(changed.sampling) == {"ignore_eos": True, "temperature": 0.7}


def test_an_answer_with_a_grammar_ends_itself() -> None:
    sampling = '{"structured_outputs":{"regex":"a+"}}'
    assert json.loads(with_length(Request(1, [5], 100, sampling), 17).sampling) == json.loads(
        sampling
    )


def test_rounds_share_within_themselves_and_not_with_each_other() -> None:
    prompts = [[1, 10, 7, 7], [1, 10, 7, 8], [1, 11, 9], [5]]
    rows = [Request(n, array("i", ids), 4, "") for n, ids in enumerate(prompts)]
    stream = list(islice(replay(rows), 12))
    assert [one.row for one in stream] == list(range(12))
    rounds = [[list(one.token_ids) for one in stream[at : at + 4]] for at in (0, 4, 8)]
    assert rounds[0] == prompts
    for changed in rounds:
        assert changed[0][:3] == changed[1][:3]
        assert changed[0][1] != changed[2][1]
        assert [len(ids) for ids in changed] == [4, 4, 3, 1]
    beginnings = [tuple(ids[:2]) for changed in rounds[:2] for ids in changed]
    assert len(set(beginnings)) == 2 * 3


def test_a_job_of_few_words_shares_nothing_with_rounds_long_ago() -> None:
    rows = [Request(n, array("i", [1, 2, 3, 1, 2, n % 3 + 1]), 4, "") for n in range(3)]
    beginnings = [tuple(one.token_ids[:4]) for one in islice(replay(rows), 0, 3 * 27, 3)]
    assert len(set(beginnings)) == 27
