from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from batchwright.config.load import make_job
from batchwright.core.errors import EngineError
from batchwright.core.schemas import contract
from batchwright.ray import engine_counts, rows_per_block, stream_job, stream_manifest
from batchwright.working.row_stream import RowStream

TIMEOUT_S = 60


def stream_of(**job: Any) -> RowStream:
    found = stream_job({"engine": {"kind": "fake"}, "sampling": {"max_tokens": 16}, **job})
    return RowStream(found, stream_manifest(found))


@pytest.fixture
def stream() -> Iterator[RowStream]:
    made = stream_of(engine={"kind": "fake", "options": {"kill_rows": [21], "refuse_rows": [22]}})
    yield made
    made.close()


def rows(first: int, count: int) -> pa.Table:
    numbers = list(range(first, first + count))
    return pa.table({"key": numbers, "prompt": [f"row {n}" for n in numbers]})


def test_batches_come_back_whole_and_in_order(stream: RowStream) -> None:
    works = [stream.submit(rows(first, 10)) for first in (0, 10)]
    for first, work in zip((0, 10), works, strict=True):
        answered = work.result(TIMEOUT_S)
        assert answered.column("key").to_pylist() == list(range(first, first + 10))
        assert answered.column("prompt").to_pylist()[0] == f"row {first}"
        assert set(answered.column("status").to_pylist()) == {"ok"}
        assert all(answered.column("text").to_pylist())
        assert answered.column("completion_tokens").to_pylist()[0] > 0


def test_a_bad_row_and_one_that_kills_the_engine_spoil_no_other(stream: RowStream) -> None:
    stream.submit(rows(0, 20)).result(TIMEOUT_S)  # numbers 0 to 19
    table = rows(20, 4).append_column("extra", pa.array([1, 2, 3, 4]))
    table = table.set_column(1, "prompt", pa.array(["fine", "kills", "refused", ""]))
    answered = stream.submit(table).result(TIMEOUT_S)
    assert answered.column("status").to_pylist() == ["ok", "failed", "failed", "rejected"]
    codes = [None, "engine_killed", "engine_refused", "empty_prompt"]
    assert answered.column("error_code").to_pylist() == codes
    assert answered.column("extra").to_pylist() == [1, 2, 3, 4]


def test_the_columns_are_the_same_whatever_the_rows_are_like(stream: RowStream) -> None:
    good = stream.submit(rows(0, 2)).result(TIMEOUT_S)
    bad = stream.submit(pa.table({"key": [1], "prompt": [""]})).result(TIMEOUT_S)
    none = stream.submit(rows(0, 1).slice(0, 0)).result(TIMEOUT_S)
    assert good.schema == bad.schema == none.schema
    assert bad.column("status").to_pylist() == ["rejected"]
    ours = [
        field.name for field in contract(stream_job({"engine": {"kind": "fake"}}).task_settings())
    ]
    assert good.column_names == [
        "key",
        "prompt",
        *[name for name in ours if name not in ("row", "id")],
    ]


def test_a_column_of_the_same_name_gets_a_prefix(stream: RowStream) -> None:
    table = pa.table({"prompt": ["hello"], "text": ["of the input"], "id": ["mine"]})
    answered = stream.submit(table).result(TIMEOUT_S)
    assert answered.column("input_text").to_pylist() == ["of the input"]
    assert answered.column("id").to_pylist() == ["mine"]
    assert answered.column("text").to_pylist() != ["of the input"]


def test_no_column_is_lost_to_a_prefix(stream: RowStream) -> None:
    table = pa.table({"prompt": ["hello"], "text": ["a"], "input_text": ["b"], "Status": ["c"]})
    answered = stream.submit(table).result(TIMEOUT_S)
    found = {name: answered.column(name).to_pylist() for name in answered.column_names}
    assert found["input_text"] == ["b"]
    assert found["input_input_text"] == ["a"]
    assert found["input_Status"] == ["c"]


def test_rows_are_as_those_of_files(stream: RowStream) -> None:
    """Padding of structs stays out of prompts, and times that Python cannot hold cost no row."""
    table = pa.table(
        {
            "messages": [[{"role": "user", "content": "Hi"}]] * 2,
            "chat_template_kwargs": [{"a": {"deep": None, "x": 1}}, {"a": {"deep": 1, "x": 1}}],
            "until": pa.array([2**63 - 1, 0], pa.int64()).cast(pa.timestamp("us")),
        }
    )
    seen: list[Any] = []
    prepare = stream._preparer.prepare
    stream._preparer.prepare = lambda batch: [seen.append(batch), prepare(batch)][1]  # type: ignore[assignment, misc, func-returns-value]
    answered = stream.submit(table).result(TIMEOUT_S)
    assert answered.column("status").to_pylist() == ["ok", "ok"]
    assert answered.column("until").equals(table.column("until"))
    assert seen[0].records[0]["chat_template_kwargs"] == {"a": {"x": 1}}


def test_vectors_come_as_lists_of_numbers() -> None:
    made = stream_of(task="embed", sampling={}, embedding={"dimensions": 8})
    try:
        answered = made.submit(rows(0, 3)).result(TIMEOUT_S)
    finally:
        made.close()
    assert [len(vector) for vector in answered.column("embedding").to_pylist()] == [8, 8, 8]


def test_an_engine_that_cannot_start_ends_every_batch() -> None:
    made = stream_of(engine={"kind": "fake", "options": {"startup_s": 30}, "start_timeout_s": 1})
    waiting = made.submit(rows(0, 3))
    with pytest.raises(EngineError, match="was not up after 1 s"):
        waiting.result(TIMEOUT_S)
    with pytest.raises(EngineError):
        made.submit(rows(0, 3)).result(TIMEOUT_S)
    made.close()


def test_concurrency_is_one_number_or_two() -> None:
    job = stream_job({"engine": {"kind": "fake"}, "run": {"replicas": 6}})
    assert engine_counts(job, None) == (6, 6)
    assert engine_counts(job, 2) == (2, 2)
    assert engine_counts(job, (1, 4)) == (1, 4)


@pytest.mark.parametrize(("seqs", "rows_wanted"), [(8, 32), (256, 128), (4096, 512)])
def test_a_block_is_half_of_what_an_engine_runs_at_a_time(seqs: int, rows_wanted: int) -> None:
    job = stream_job({"engine": {"kind": "fake", "options": {"max_num_seqs": seqs}}})
    assert rows_per_block(job) == rows_wanted


def test_the_engine_for_encoders_gets_the_largest_blocks() -> None:
    job = make_job({"input": {"path": "x"}, "task": "embed", "engine": {"kind": "torch"}}, {})
    assert rows_per_block(job) == 512
