"""The workloads have exactly the lengths and the sharing that they claim, and are always the same."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from benchmarks.throughput.records import Segment, Workload
from benchmarks.throughput.tiny import make_model
from benchmarks.throughput.words import Words
from benchmarks.throughput.workloads import (
    CPU,
    GPU,
    KINDS,
    bimodal,
    documents,
    make_workload,
    names_of,
    system_prompt,
    tree,
    uniform,
)


@pytest.fixture(scope="module")
def words(tiny_model: Path) -> Words:
    return Words(tiny_model)


@pytest.mark.parametrize("name", KINDS)
def test_every_prompt_has_exactly_the_tokens_that_its_row_asks_for(name: str, words: Words) -> None:
    workload = make_workload(name, CPU, scale=2)
    prompts = list(words.prompts(workload.rows, seed=1))
    lengths = words.lengths([text for _, text in prompts])
    assert lengths == [row.prompt_tokens for row in workload.rows]


@pytest.mark.parametrize("name", KINDS)
def test_a_workload_is_the_same_every_time_and_another_with_another_seed(name: str) -> None:
    once = make_workload(name, CPU, scale=20, seed=3)
    assert make_workload(name, CPU, scale=20, seed=3) == once
    assert len({row.id for row in once.rows}) == len(once.rows)
    if name.endswith("hidden"):  # their lengths follow from the prompts
        assert make_workload(name, CPU, scale=20, seed=4).hidden != once.hidden
    elif name.startswith(("W3", "W4", "W5", "W7", "W8")) or name == "W6-shuffled":
        assert make_workload(name, CPU, scale=20, seed=4).rows != once.rows


def test_texts_differ_by_seed_and_key_only(words: Words) -> None:
    assert words.text(5, 20, seed=0) == words.text(5, 20, seed=0)
    assert words.text(5, 20, seed=0) != words.text(5, 20, seed=1)
    assert words.text(5, 20, seed=0) != words.text(6, 20, seed=0)


def test_rows_of_a_group_begin_with_the_same_text(words: Words) -> None:
    rows = documents(2, 30, 3, 10, 4, random.Random(0))
    by_document: dict[str, set[str]] = {}
    for row, text in words.prompts(rows, seed=0):
        begin = " ".join(text.split()[:30])
        by_document.setdefault(row.id.split("q")[0], set()).add(begin)
    assert [len(begins) for begins in by_document.values()] == [1, 1]
    assert len(set.union(*by_document.values())) == 2


def test_tokens_that_the_tokenizer_adds_count_as_part_of_the_prompt(tiny_model: Path) -> None:
    words = Words(tiny_model)
    words.special = 2  # as if every text got [CLS] and [SEP]
    words.lengths = lambda texts: [len(text.split()) + 2 for text in texts]  # type: ignore[method-assign]
    ((_, text),) = words.prompts(uniform(1, 16, 1), seed=0)
    assert len(text.split()) == 14


def test_a_text_of_another_length_is_refused(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "words", ["nosuchwordinthevocabularyofit"])
    with pytest.raises(ValueError, match="should have 16"):
        list(words.prompts(uniform(1, 16, 1), seed=0))


def test_shareable_tokens_are_those_that_an_earlier_row_has_in_the_same_place() -> None:
    def shareable(rows: list[object]) -> int:
        return Workload("w", tuple(rows), None, "generate", "").shareable_tokens()  # type: ignore[arg-type]

    assert shareable([*uniform(10, 128, 1)]) == 0
    assert shareable([*system_prompt(10, 512, 192, 4)]) == 9 * 512
    assert shareable([*documents(4, 100, 6, 10, 1, random.Random(0))]) == 4 * 5 * 100
    # 2 branches x 3 leaves x 4 questions: 24 roots less 1, boughs less 2, documents less 6.
    rows = tree(256, 2, 3, 64, 4, 1, random.Random(0))
    assert shareable([*rows]) == 23 * 256 + 22 * 64 + 18 * 64


def test_documents_fill_the_pool_by_their_factor() -> None:
    for name, factor in (("W3-0.3", 0.3), ("W3-1.2", 1.2), ("W3-5", 5.0)):
        workload = make_workload(name, GPU)
        shared = {row.segments[0] for row in workload.rows}
        assert workload.kv_tokens == 100_000
        assert sum(segment.tokens for segment in shared) == pytest.approx(
            factor * 100_000, rel=0.02
        )


def test_shuffled_documents_are_not_next_to_each_other() -> None:
    rows = make_workload("W3-1.2", GPU).rows
    neighbours = sum(one.segments[0] == two.segments[0] for one, two in itertools.pairwise(rows))
    assert neighbours < len(rows) / 10


def test_the_bimodal_orders_hold_the_same_rows() -> None:
    orders = [
        bimodal(20, order, random.Random(0))
        for order in ("shuffled", "prefill-first", "decode-first")
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[1][0].max_tokens == 4
    assert orders[2][0].max_tokens == 600
    assert len({row.max_tokens for row in orders[0][:20]}) == 2


def test_the_heavy_tail_has_its_longest_rows_last() -> None:
    outputs = [row.max_tokens for row in make_workload("W7", GPU).rows]
    assert outputs == sorted(outputs)
    assert outputs[-1] > 10 * outputs[len(outputs) // 2]


def test_names_without_a_variant_mean_all_of_them() -> None:
    assert list(names_of("W1-short,W6")) == [
        "W1-short",
        "W6-shuffled",
        "W6-prefill-first",
        "W6-decode-first",
    ]
    assert list(names_of("W5,W7-hidden")) == ["W5", "W7-hidden"]
    with pytest.raises(ValueError, match="no workload W9"):
        list(names_of("W9"))


def test_the_small_models_tokenizer_serves_the_same_words(tmp_path: Path) -> None:
    words = Words(make_model(tmp_path / "model", "1m"))
    assert len(words.words) > 500
    ((_, text),) = words.prompts(uniform(1, 40, 1), seed=0)
    assert words.lengths([text]) == [40]


def test_equal_keys_are_equal_segments() -> None:
    assert Segment(1, 5) == Segment(1, 5)
    assert make_workload("W2", CPU, scale=1).rows[0].segments[0].key == -1
