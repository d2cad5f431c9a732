from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from batchwright.core.records import Receipt
from batchwright.write.verify import Verification, verify_parts
from tests.unit.write.stored import Folder, prepared, store

SOURCE = prepared(['{"q": "x"}'] * 40)
NONE = np.empty(0, np.int64)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def _verify(
    folder: Folder, receipts: list[Receipt], total: int, rejected: np.ndarray = NONE
) -> Verification:
    return verify_parts(receipts=receipts, total_rows=total, rejected_rows=rejected, storage=folder)


def test_all_is_well(folder: Folder) -> None:
    receipts = [
        store(folder, 0, SOURCE, [0, 9, 30], failed=[9, 30]),
        store(folder, 1, SOURCE, [i for i in range(40) if i not in (0, 9, 30, 7)]),
        store(folder, 0, SOURCE, [9, 30], generation=1, failed=[9]),
        store(folder, 0, SOURCE, [9], generation=2, failed=[9]),
    ]
    found = _verify(folder, receipts, 40, np.array([7]))
    assert found == Verification(40, 38, 1, 1, 0, 0, 4, [])
    assert found.passed


def test_missing_rows_are_named(folder: Folder) -> None:
    found = _verify(folder, [store(folder, 0, SOURCE, [0, 1, 5])], 18)
    assert (found.ok, found.missing, found.passed) == (3, 15, False)
    assert found.problems == [
        "15 rows have no outcome: rows 2, 3, 4, 6, 7, 8, 9, 10, 11, 12 and 5 more."
    ]


def test_rows_that_may_still_come_are_no_problem_and_no_proof(folder: Folder) -> None:
    receipts = [store(folder, 0, SOURCE, [0, 1])]
    found = verify_parts(
        receipts=receipts, total_rows=2, rejected_rows=NONE, storage=folder, unfinished="not yet"
    )
    assert (found.missing, found.adds_up, found.passed) == (0, True, False)
    found = verify_parts(
        receipts=receipts, total_rows=5, rejected_rows=NONE, storage=folder, unfinished="not yet"
    )
    assert (found.missing, found.problems, found.adds_up, found.passed) == (3, [], True, False)


def test_rows_in_two_parts_or_rejected_as_well(folder: Folder) -> None:
    receipts = [store(folder, 0, SOURCE, [0, 1, 2]), store(folder, 1, SOURCE, [2, 3])]
    found = _verify(folder, receipts, 4, np.array([0]))
    assert (found.missing, found.duplicates, found.passed) == (0, 2, False)
    assert "part-0-0.parquet: are rejected or in another part as well: rows 0." in found.problems
    assert "part-0-1.parquet: are rejected or in another part as well: rows 2." in found.problems


def test_a_generation_takes_failed_rows_once(folder: Folder) -> None:
    receipts = [
        store(folder, 0, SOURCE, [0, 1, 2], failed=[1]),
        store(folder, 0, SOURCE, [1, 2], generation=1),
        store(folder, 1, SOURCE, [1], generation=1),
    ]
    found = _verify(folder, receipts, 3)
    assert (found.ok, found.duplicates) == (3, 2)
    assert len(found.problems) == 2
    assert "although they had not failed: rows 2" in found.problems[0]
    assert "another part of this generation as well: rows 1" in found.problems[1]


def test_a_damaged_or_lost_part_and_a_wrong_receipt(folder: Folder) -> None:
    torn, lost, wrong = (store(folder, i, SOURCE, [i]) for i in range(3))
    (folder.root / torn.file).write_bytes((folder.root / torn.file).read_bytes()[:-7])
    (folder.root / lost.file).unlink()
    found = _verify(folder, [torn, lost, dataclasses.replace(wrong, ok=0, failed=1)], 3)
    assert found.missing == 2
    text = "\n".join(found.problems)
    assert "part-0-0.parquet: is not the file that its receipt names" in text
    assert "part-0-1.parquet: cannot be read" in text
    assert "part-0-2.parquet: ok is 1, but the receipt says 0" in text


def test_rows_beyond_the_input_and_two_receipts_of_a_chunk(folder: Folder) -> None:
    receipt = store(folder, 0, SOURCE, [0, 5])
    found = _verify(folder, [receipt], 1)
    assert found.problems == ["part-0-0.parquet: are not rows of the input: rows 5."]
    found = _verify(folder, [receipt, receipt], 6)
    assert "Chunk 0-0 has 2 last receipts." in found.problems
    assert found.duplicates == 2


def test_only_the_first_problems_are_told(folder: Folder) -> None:
    receipt = store(folder, 0, SOURCE, [0])
    lost = [dataclasses.replace(receipt, chunk=i, file=f"lost-{i}") for i in range(1, 13)]
    found = _verify(folder, [receipt, *lost], 1)
    assert len(found.problems) == 11
    assert found.problems[-1] == "There are 2 more problems."


def test_no_rows_at_all(folder: Folder) -> None:
    assert _verify(folder, [], 0).passed
    assert not _verify(folder, [], 3).passed
