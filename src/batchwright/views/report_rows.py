"""What a report takes out of the rows themselves: lengths, and examples of rows without an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.errors import StorageError
from batchwright.core.records import Receipt
from batchwright.core.report import Example, Lengths
from batchwright.core.workload import LengthHistogram
from batchwright.rundir.output_parts import damaged_part
from batchwright.rundir.remote_file import RemoteFile
from batchwright.rundir.storage import Storage

# A run may have 100 million rows: so many parts and rows stand for all. In an object store each
# part takes a few requests.
MOST_PARTS, MOST_REMOTE_PARTS = 256, 32
MOST_ROWS = 1_000_000

EXAMPLE_CHARACTERS = 300

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def row_lengths(storage: Storage, receipts: Iterable[Receipt]) -> Lengths:
    """Tokens of the rows that have an answer; of parts all over the run where they are many.

    A part that cannot be read counts as not looked at: `verify` is there to say what is wrong with it.
    """
    counts = {name: Counter[int]() for name in _TOKENS}
    seen = 0
    for receipt in _some([one for one in receipts if one.ok], storage):
        try:
            table = _columns(storage, receipt, ["error_code", *_TOKENS])
        except (OSError, StorageError, pa.ArrowInvalid):
            continue
        table = table.filter(table.column("error_code").is_null())
        seen += table.num_rows
        for name in _TOKENS:
            if name in table.column_names:
                counts[name].update(_counted(table.column(name)))
    return Lengths(
        prompts=_histogram(counts["prompt_tokens"]),
        outputs=_histogram(counts["completion_tokens"]),
        rows_seen=seen,
        cached_tokens=sum(tokens * rows for tokens, rows in counts["cached_tokens"].items()),
    )


def _some(receipts: Sequence[Receipt], storage: Storage) -> list[Receipt]:
    """Receipts evenly out of all of them, of so many rows as one may look at."""
    rows = sum(one.rows for one in receipts)
    parts = min(len(receipts), MOST_PARTS if storage.is_local else MOST_REMOTE_PARTS)
    if rows > MOST_ROWS:
        parts = max(1, min(parts, len(receipts) * MOST_ROWS // rows))
    places = np.linspace(0, len(receipts) - 1, parts).round().astype(int).tolist()
    return [receipts[place] for place in dict.fromkeys(places)]


def _columns(storage: Storage, receipt: Receipt, names: Sequence[str]) -> pa.Table:
    """Those of the columns that the part has."""
    path = storage.local_path(receipt.file)
    # Of an object only the pieces that are wanted: these columns are a hundredth of a part.
    source = path if path is not None else RemoteFile(f"{storage.location}/{receipt.file}")
    try:
        with pq.ParquetFile(source) as part:
            return part.read([name for name in names if name in part.schema_arrow.names])
    except (OSError, pa.ArrowException) as error:
        raise damaged_part(receipt.file, str(error)) from error


def _counted(column: Any) -> dict[int, int]:
    # Not by `to_numpy`: for columns of several pieces that would import pandas, for two seconds.
    found = column.drop_null().value_counts()
    return dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))


def _histogram(counts: Mapping[int, int]) -> LengthHistogram:
    ordered = sorted(counts.items())
    return LengthHistogram(tuple(one for one, _ in ordered), tuple(n for _, n in ordered))


def examples_of(storage: Storage, receipt: Receipt) -> list[tuple[str, Example]]:
    """The failed rows of a part: code, and what is known of the row."""
    table = _columns(storage, receipt, ["row", "id", "error_code", "error"])
    table = table.filter(table.column("error_code").is_valid()).slice(0, 1000)
    return [
        (str(one["error_code"]), Example(one["row"], _short(one["id"]), _short(one["error"])))
        for one in table.to_pylist()
    ]


def _short(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= EXAMPLE_CHARACTERS else f"{text[:EXAMPLE_CHARACTERS]}…"
