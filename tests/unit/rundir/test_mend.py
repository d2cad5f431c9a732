"""What a power cut tore is removed, with all that would count wrongly without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.rundir import layout
from batchwright.rundir.mend import remove_torn_files
from batchwright.rundir.storage import Storage


def receipts(storage: Storage, torn: int) -> None:
    """A chunk that was committed in four pieces, one of whose receipts is torn, and a whole chunk."""
    for sequence in range(4):
        body = b"" if sequence == torn else b"{}"
        storage.put(layout.receipt("chunk-0-000003", sequence), body)
    storage.put(layout.receipt("chunk-0-000004"), b"{}")


@pytest.mark.parametrize(
    ("torn", "left"),
    [
        (0, []),
        (2, ["chunk-0-000003.1.json", "chunk-0-000003.json"]),
        (3, ["chunk-0-000003.1.json", "chunk-0-000003.2.json", "chunk-0-000003.json"]),
    ],
)
def test_receipts_that_come_after_a_torn_one_go_with_it(
    tmp_path: Path, torn: int, left: list[str]
) -> None:
    """Who takes the chunk sees receipts up to the gap, and would run the rows behind it again."""
    storage = Storage(tmp_path)
    receipts(storage, torn)
    removed = remove_torn_files(storage)
    assert len(removed) == 4 - len(left)
    assert storage.names(layout.RECEIPTS) == [*left, "chunk-0-000004.json"]


def test_a_receipt_of_a_prepared_part_that_is_gone_goes_too(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for part in range(2):
        storage.put(layout.prepared_receipt(0, part), b"{}")
    storage.put(layout.prepared_part(0, 1), b"rows")
    assert remove_torn_files(storage) == [layout.prepared_receipt(0, 0)]
