from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from batchwright.core.errors import InputError, JobError, Stopped
from batchwright.core.profile import LengthProfile
from batchwright.foresight.check import check_rows
from batchwright.foresight.profiling import profile_prepared, profile_rows
from batchwright.profile.show import profile_lines
from tests.unit.profile.workloads import lru_hit_rate
from tests.unit.rundir.small_runs import Row, SmallRun, prompts, small_run


def profile(run: SmallRun, **options: Any) -> LengthProfile:
    settings = {"sample": None, "cache_tokens": None, "processes": 1, "say": lambda _: None}
    return profile_rows(run.manifest, run.job, stop=threading.Event(), **{**settings, **options})


def generated(rows: int) -> list[Row]:
    rng = np.random.default_rng(0)
    words = [
        "the",
        "of",
        "question",
        "answer",
        "你好",
        "café",
        "story",
        "12",
        "«да»",
        "write",
        "thing",
        "ing",
    ]
    heads = [" ".join(rng.choice(words, 60)) for _ in range(5)]
    return [
        {
            "id": f"r{i}",
            "prompt": f"{heads[i % 5]} {' '.join(rng.choice(words, rng.integers(1, 80)))}",
        }
        for i in range(rows)
    ]


MIXED: list[Row] = [
    {"id": "a", "prompt": "xx"}, "{bad", {"id": "a", "prompt": "y"}, "", {"id": "b", "prompt": "xx"},
    {"id": "c", "prompt": ""}, {"id": "d", "prompt": "long" * 30}, {"id": "e", "prompt": "xx" * 20},
]  # fmt: skip


@pytest.mark.parametrize("chat", [True, False])
def test_token_counts_are_transformers(tmp_path: Path, tiny_model: Path, chat: bool) -> None:
    rows = generated(500)
    run = small_run(
        tmp_path, rows, split_bytes=20_000, model__name=str(tiny_model), prompt__column="prompt",
        prompt__chat=chat,
    )  # fmt: skip
    found = profile(run, cache_tokens=2000)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    texts = [row["prompt"] for row in rows if isinstance(row, dict)]
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        if chat else tokenizer(text)["input_ids"]
        for text in texts
    ]  # fmt: skip
    lengths = np.array([len(one) for one in ids])
    assert found.prompts.total == lengths.sum()
    figures = found.as_json()["prompt_tokens"]
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("p99.9", 99.9)):
        assert figures[name] == np.percentile(lengths, percent, method="inverted_cdf")
    longest = sorted(range(500), key=lambda row: (-lengths[row], row))[:3]
    assert [row for row, _, _ in found.longest[:3]] == longest
    assert found.prefix.hit_rate_file_order == pytest.approx(lru_hit_rate(ids, 16, 2000), abs=0.02)
    assert found.prefix.top[0].text
    assert found.over_context == 0
    assert found.exact


@pytest.mark.parametrize("settings", [
    {}, {"input__limit": 4}, {"input__duplicate_ids": "allow"},
    {"plan__over_length": "truncate_left"}, {"plan__over_length": "truncate_right"},
])  # fmt: skip
def test_it_agrees_with_validate_and_with_prepared_parts(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    options = {"engine__options": {"max_model_len": 64}, "sampling__max_tokens": 16}
    run = small_run(tmp_path, MIXED, split_bytes=60, **options, **settings)
    found = profile(run)
    checked = check_rows(run.manifest, run.job, threading.Event(), lambda _: None)
    assert (found.rows, found.valid) == (checked.rows, checked.valid)
    assert found.rejected == {code: number for code, (number, _) in checked.rejections.items()}
    assert found.prompts.total == checked.prompt_tokens
    run.prepare()
    run.order()
    prepared = profile_prepared(run.storage, run.batches())
    for name in ("rows", "valid", "rejected", "prompts", "max_tokens", "over_limit", "prefix",
                 "duplicate_rows", "duplicate_tokens"):  # fmt: skip
        assert getattr(prepared, name) == getattr(found, name), name


def test_rows_over_the_limit_and_duplicates_are_counted(tmp_path: Path) -> None:
    run = small_run(tmp_path, MIXED, engine__options={"max_model_len": 64})
    found = profile(run)
    assert found.over_limit == 1
    assert found.over_context is None
    assert found.longest[0] == (5, "d", 120)
    assert (found.duplicate_rows, found.duplicate_tokens) == (1, 2)
    assert not found.exact


def test_processes_change_nothing(tmp_path: Path) -> None:
    run = small_run(tmp_path, generated(400), split_bytes=10_000)
    assert len(run.manifest.splits) > 4
    said: list[int] = []
    assert profile(run, processes=3, say=said.append) == profile(run)
    assert said == sorted(said)
    assert said[-1] == 400


def test_an_error_in_a_process_is_raised_here(tmp_path: Path) -> None:
    run = small_run(tmp_path, {"a.jsonl": prompts(5), "b.jsonl": prompts(5, 5)})
    (tmp_path / "data" / "b.jsonl").unlink()
    with pytest.raises(InputError, match=r"b\.jsonl"):
        profile(run, processes=2)


def test_a_sample_says_how_far_it_can_be_trusted(tmp_path: Path) -> None:
    run = small_run(tmp_path, generated(3000), split_bytes=50_000)
    whole, some = profile(run), profile(run, sample=0.2)
    assert some == profile(run, sample=0.2)
    assert some.rows == whole.rows == 3000
    assert some.sampled is not None
    assert 450 < some.sampled.rows_read < 750
    assert some.sampled.rows_read == some.valid
    low, high = some.sampled.total
    assert low <= whole.prompts.total <= high
    assert some.sampled.p50[0] <= whole.prompts.quantile(0.5) <= some.sampled.p50[1]
    assert some.sampled.words in profile_lines(some)


@pytest.mark.parametrize("sample", [0.0, 1.0, 5])
def test_a_sample_is_a_share(tmp_path: Path, sample: float) -> None:
    with pytest.raises(JobError, match="--sample"):
        profile(small_run(tmp_path, prompts(3)), sample=sample)


@pytest.mark.parametrize("processes", [1, 2])
def test_stop_ends_it_early(tmp_path: Path, processes: int) -> None:
    run = small_run(tmp_path, prompts(30), split_bytes=100)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        profile_rows(run.manifest, run.job, sample=None, cache_tokens=None,
                     processes=processes, say=lambda _: None, stop=stop)  # fmt: skip


def test_only_blank_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        profile(small_run(tmp_path, ["", " "]))


def test_json_and_lines_say_the_same(tmp_path: Path) -> None:
    found = profile(small_run(tmp_path, generated(200)), cache_tokens=4000)
    body = json.loads(json.dumps(found.as_json()))
    assert {"rows", "prompt_tokens", "over_limit", "duplicates", "prefix"} <= body.keys()
    assert {"p50", "p90", "p99", "max", "total"} <= body["prompt_tokens"].keys()
    assert {"shareable_share", "working_set_tokens", "hit_rate_file_order",
            "hit_rate_best_order"} <= body["prefix"].keys()  # fmt: skip
    text = "\n".join(profile_lines(found))
    assert f"{found.prompts.total:,}" in text
    assert "a cache of 4,000 tokens" in text
    assert "█" in text
    nothing = profile(small_run(tmp_path / "other", [{"prompt": "a"}, {"prompt": ""}]))
    assert "a prefix cache saves nothing" in "\n".join(profile_lines(nothing, histogram=False))
