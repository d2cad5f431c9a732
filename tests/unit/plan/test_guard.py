from __future__ import annotations

import pytest

from batchwright.core.records import Receipt
from batchwright.plan.guard import Rates, judge, measure_rates

FILE = (100.0, 110.0, 90.0)


def receipt(
    chunk: int, *, at: float, seconds: float = 9.0, tokens: int = 1000, worker: str = "w",
    generation: int = 0, sequence: int = 0, last: bool = True,
) -> Receipt:  # fmt: skip
    return Receipt(
        generation, chunk, "f", "", 10, 10, 0, 0, tokens, 0, 0, 9, worker, seconds,
        sequence=sequence, last=last, finished_at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("grouped", "verdict"),
    [
        ((), "wait"),
        ((500.0, 500.0), "wait"),
        ((500.0, 1.0, 500.0), "keep"),
        ((98.0, 98.0, 98.0), "keep"),
        ((97.0, 97.0, 97.0), "wait"),
        ((97.0, 97.0, 97.0, 50.0, 50.0), "wait"),
        ((97.0, 97.0, 97.0, 99.0, 99.0, 99.0), "keep"),
        ((97.0, 97.0, 97.0, 97.0, 97.0, 200.0), "back"),
        ((50.0,) * 6, "back"),
    ],
)
def test_slower_twice_in_a_row_goes_back(grouped: tuple[float, ...], verdict: str) -> None:
    assert judge(Rates(FILE, grouped)) == verdict


def test_without_a_comparison_groups_are_kept() -> None:
    assert judge(Rates((), (1.0, 1.0))) == "wait"
    assert judge(Rates((100.0,), (1.0, 1.0, 1.0))) == "keep"


def test_a_verdict_does_not_change_with_later_chunks() -> None:
    slow = (97.0, 97.0, 97.0)
    assert judge(Rates(FILE, (*slow, *slow, 500.0, 500.0, 500.0))) == "back"


def test_a_chunk_counts_from_the_end_of_the_one_before() -> None:
    receipts = [receipt(0, at=100), receipt(1, at=110), receipt(2, at=112), receipt(3, at=116)]
    rates = measure_rates(reversed(receipts), {2, 3})
    assert rates.in_file_order == (pytest.approx(1000 / 9),)
    assert rates.grouped == (500.0, 250.0)


def test_each_worker_has_a_first_chunk_that_does_not_count() -> None:
    receipts = [
        receipt(0, at=100, worker="a"), receipt(1, at=101, worker="b"),
        receipt(2, at=104, worker="a"), receipt(3, at=106, worker="b"),
    ]  # fmt: skip
    assert measure_rates(receipts, set()).in_file_order == (250.0, 200.0)


def test_chunks_in_pieces_and_of_retries_do_not_count() -> None:
    receipts = [
        receipt(0, at=100), receipt(1, at=101, sequence=0, last=False),
        receipt(1, at=102, sequence=1), receipt(0, at=103, generation=1), receipt(2, at=105),
    ]  # fmt: skip
    assert measure_rates(receipts, set()).in_file_order == (200.0,)


def test_without_times_a_chunk_counts_by_its_own_seconds() -> None:
    receipts = [receipt(0, at=0), receipt(1, at=0, seconds=4), receipt(2, at=0, seconds=0)]
    assert measure_rates(receipts, set()).in_file_order == (250.0, 1_000_000.0)
