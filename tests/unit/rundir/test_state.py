from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.core.errors import StorageError
from batchwright.core.records import OrderBatch, Receipt
from batchwright.ordering.retry import order_failed_rows
from batchwright.rundir import artifacts, layout
from batchwright.rundir.state import LOOKS_PER_LISTING, Counts, RunState
from tests.unit.rundir.small_runs import CountingStorage, SmallRun, prompts, small_run


def receipt_of(number: int, rows: int, failures: dict[str, int], generation: int = 0) -> Receipt:
    failed = sum(failures.values())
    return Receipt(
        generation, number, "f", "", rows, rows - failed, failed, 1, 10 * rows, 5 * rows, 0, 0,
        "w", 1.0, failures,
    )  # fmt: skip


def put_receipt(run: SmallRun, receipt: Receipt) -> None:
    name = f"chunk-{receipt.generation}-{receipt.chunk:06d}"
    run.storage.commit(layout.receipt(name), artifacts.dump(receipt))


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    rows = [*prompts(7), {"id": "r1", "prompt": "again"}, "not json", {"id": "x"}]
    run = small_run(tmp_path, rows, run__chunk_rows=4)
    run.prepare()
    return run


def test_a_run_that_is_just_begun_has_nothing(run: SmallRun) -> None:
    counts = run.state().counts()
    assert (counts.rows, counts.settled, counts.chunks, counts.ordered) == (0, 0, 0, False)
    assert not counts.complete
    assert counts.share_without_answer == 0.0


def test_an_ordered_run_has_rows_and_rejections_but_is_not_complete(run: SmallRun) -> None:
    run.order()
    counts = run.state().counts()
    assert (counts.rows, counts.rejected, counts.ok, counts.failed) == (10, 3, 0, 0)
    assert (counts.chunks, counts.chunks_done) == (2, 0)
    assert counts.ordered
    assert not counts.complete


def test_receipts_complete_it_and_the_counts_add_up(run: SmallRun) -> None:
    run.order()
    put_receipt(run, receipt_of(0, 4, {"timeout": 1}))
    put_receipt(run, receipt_of(1, 3, {}))
    counts = run.state().counts()
    assert counts.complete
    assert (counts.ok, counts.failed, counts.rejected, counts.settled) == (6, 1, 3, 10)
    assert counts.share_without_answer == 0.4
    assert counts.failures == {"timeout": 1}
    assert counts.as_json() == {
        "rows_in": 10, "ok": 6, "failed": 1, "rejected": 3, "truncated": 2, "prompt_tokens": 70,
        "completion_tokens": 35,
    }  # fmt: skip


def retry(run: SmallRun, *receipts: Receipt) -> Counts:
    """The counts of a finished run after a second pass over what failed."""
    state = run.state()
    batch = OrderBatch(1, 0, (), (), (), (), 0, last=True, replaces=({"timeout": 2, "aborted": 1},))
    assert state.generations == 1
    run.storage.commit(layout.order_batch(1, 0), artifacts.dump(batch))
    for receipt in receipts:
        put_receipt(run, receipt)
    return run.state().counts()


def test_a_retried_row_counts_by_its_newest_outcome(run: SmallRun) -> None:
    run.order()
    put_receipt(run, receipt_of(0, 4, {"timeout": 2, "aborted": 1}))
    put_receipt(run, receipt_of(1, 3, {}))
    counts = retry(run, receipt_of(0, 3, {"aborted": 1}, generation=1))
    assert (counts.rows, counts.ok, counts.failed, counts.settled) == (10, 6, 1, 10)


def test_cut_answers_of_replaced_outcomes_do_not_count(run: SmallRun) -> None:
    """Else more answers than rows would be cut after a few retries."""
    run.order()
    put_receipt(run, receipt_of(0, 4, {"invalid_output": 3}))
    put_receipt(run, receipt_of(1, 3, {}))
    before = run.state().counts()
    batch = OrderBatch(
        1, 0, (), (), (), (), 0, last=True, replaces=({"invalid_output": 3},), replaces_cut=(1,)
    )
    run.storage.commit(layout.order_batch(1, 0), artifacts.dump(batch))
    put_receipt(run, receipt_of(0, 3, {"invalid_output": 3}, generation=1))
    after = run.state().counts()
    assert after.truncated == before.truncated
    assert (before.again, after.again) == (0, 3)


def test_files_are_read_once(run: SmallRun) -> None:
    run.order()
    state = run.state()
    put_receipt(run, receipt_of(0, 4, {}))
    assert [one.chunk for one in state.refresh_receipts()] == [0]
    assert state.refresh_receipts() == []
    assert state.refresh_order() == []
    assert len(state.batches) == 1


@pytest.mark.parametrize("torn", [b"", bytes(300)])
def test_a_torn_receipt_is_named(run: SmallRun, torn: bytes) -> None:
    run.order()
    run.storage.put(layout.receipt("chunk-0-000000"), torn)
    with pytest.raises(StorageError, match=r"receipts/chunk-0-000000\.json is damaged"):
        run.state()


def test_a_gap_in_the_order_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint for a damaged order file says to delete it: its rows must not vanish then."""
    monkeypatch.setattr("batchwright.order.PARTS_PER_BATCH", 1)
    files = {f"{name}.jsonl": prompts(3, start) for start, name in enumerate("abc")}
    run = small_run(tmp_path, files)
    run.prepare()
    run.order()
    run.storage.delete(layout.order_batch(0, 1))
    with pytest.raises(StorageError, match="0-000001"):
        run.state()


def test_a_retry_of_nothing_makes_no_generation(run: SmallRun) -> None:
    run.order()
    put_receipt(run, receipt_of(0, 4, {}))
    put_receipt(run, receipt_of(1, 3, {}))
    assert order_failed_rows(run.storage, run.state(), None, []) == 0
    assert run.state().generations == 1


def stretches(run: SmallRun, *sequences: int) -> None:
    for sequence in sequences:
        batch = OrderBatch(0, sequence, (), (), (), (), rows=sequence, last=False)
        run.storage.commit(layout.order_batch(0, sequence), artifacts.dump(batch))


def test_a_listing_that_lacks_a_stretch_is_believed_up_to_there(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of files a folder is not listed at one moment: later files may be seen first."""
    stretches(run, 0, 1, 2, 3)
    fresh = RunState(run.storage)
    seen = run.storage.names

    def without_one(folder: str, after: str = "") -> list[str]:
        return [name for name in seen(folder, after) if name != "0-000001.json"]

    with monkeypatch.context() as patch:
        patch.setattr(run.storage, "names", without_one)
        assert [one.sequence for one in fresh.refresh_order()] == [0]
    assert [one.sequence for one in fresh.refresh_order()] == [1, 2, 3]


def test_on_a_disk_the_order_is_listed_once_and_then_tried_by_name(run: SmallRun) -> None:
    storage = CountingStorage(run.storage.root)
    stretches(run, 0, 1)
    state = RunState(storage)
    assert [one.sequence for one in state.refresh_order()] == [0, 1]
    for sequence in range(2, 40):
        assert state.refresh_order() == []
        stretches(run, sequence, sequence + 40)
        run.storage.delete(layout.order_batch(0, sequence + 40))
        assert [one.sequence for one in state.refresh_order()] == [sequence]
    assert storage.listed == [layout.ORDER]


def test_a_second_pass_is_seen_by_whoever_tries_names(run: SmallRun) -> None:
    state = RunState(run.storage)
    run.order()
    state.refresh_order()
    run.storage.commit(
        layout.order_batch(1, 0),
        artifacts.dump(OrderBatch(1, 0, (), (), (), (), 0, last=True)),
    )
    assert [(one.generation, one.sequence) for one in state.refresh_order()] == [(1, 0)]
    assert state.generations == 2


def test_a_gap_is_reported_also_to_whoever_tries_names(run: SmallRun) -> None:
    state = RunState(run.storage)
    stretches(run, 0)
    state.refresh_order()
    stretches(run, 1, 2)
    run.storage.delete(layout.order_batch(0, 1))
    with pytest.raises(StorageError, match="0-000001"):
        for _ in range(LOOKS_PER_LISTING):
            state.refresh_order()


def test_a_torn_stretch_leaves_nothing_half_read(run: SmallRun) -> None:
    state = RunState(run.storage)
    stretches(run, 0)
    state.refresh_order()
    stretches(run, 1)
    run.storage.put(layout.order_batch(0, 2), b"{")
    with pytest.raises(StorageError, match="0-000002"):
        state.refresh_order()
    run.storage.delete(layout.order_batch(0, 2))
    stretches(run, 2)
    assert [one.sequence for one in state.refresh_order()] == [1, 2]


def test_the_order_says_which_splits_are_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchwright.order.PARTS_PER_BATCH", 1)
    run = small_run(tmp_path, {f"{name}.jsonl": prompts(3) for name in "abc"}, run_dir="three")
    assert run.state().first_open_split == 0
    run.prepare([0, 1])
    run.order()
    assert run.state().first_open_split == 1
