"""What a report takes out of the rows themselves: lengths, and examples of rows without an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.records import Receipt
from batchwright.core.report import Example, Failure, Lengths
from batchwright.core.workload import LengthHistogram
from batchwright.rundir import layout
from batchwright.rundir.remote_file import RemoteFile
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage

# A run may have 100 million rows: so many parts and rows stand for all. In an object store each
# part takes a few requests.
MOST_PARTS, MOST_REMOTE_PARTS = 256, 32
MOST_ROWS = 1_000_000

EXAMPLES, EXAMPLE_PARTS = 3, 8
EXAMPLE_CHARACTERS = 300
MOST_REJECTED_LINES = 20_000

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")


def row_lengths(storage: Storage, receipts: Iterable[Receipt]) -> Lengths:
    """Tokens of the rows that have an answer; of parts all over the run where they are many."""
    counts = {name: Counter[int]() for name in _TOKENS}
    seen = 0
    for receipt in _some([one for one in receipts if one.ok], storage):
        table = _columns(storage, receipt, ["error_code", *_TOKENS])
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
    with pq.ParquetFile(source) as part:
        return part.read([name for name in names if name in part.schema_arrow.names])


def _counted(column: Any) -> dict[int, int]:
    # Not by `to_numpy`: for columns of several pieces that would import pandas, for two seconds.
    found = column.drop_null().value_counts()
    return dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))


def _histogram(counts: Mapping[int, int]) -> LengthHistogram:
    ordered = sorted(counts.items())
    return LengthHistogram(tuple(one for one, _ in ordered), tuple(n for _, n in ordered))


def failures(storage: Storage, state: RunState) -> tuple[Failure, ...]:
    """Failed and rejected rows by code, most first, with examples."""
    counts = state.counts()
    examples = failed_examples(storage, state, set(counts.failures))
    found = [
        Failure(code, "failed", rows, tuple(examples.get(code, ())))
        for code, rows in counts.failures.items()
    ]
    found += _rejected(storage, counts.rejected)
    return tuple(sorted(found, key=lambda one: -one.rows))


def failed_examples(storage: Storage, state: RunState, codes: set[str]) -> dict[str, list[Example]]:
    """A few failed rows of each code, out of the newest parts that have some."""
    found: dict[str, list[Example]] = {}
    with_failures = [one for one in state.receipts.values() if one.failures]
    again = _rows_run_again(storage, state) if state.generations > 1 else {}
    looked = 0
    for receipt in sorted(with_failures, key=lambda one: (-one.generation, -one.finished_at)):
        wanted = {code for code in codes if len(found.get(code, ())) < EXAMPLES}
        if not wanted or looked == EXAMPLE_PARTS:
            break
        if not wanted & receipt.failures.keys():
            continue
        looked += 1
        for code, example in examples_of(storage, receipt):
            newer = again.get(example.row, 0) > receipt.generation
            if code in wanted and not newer and len(found.setdefault(code, [])) < EXAMPLES:
                found[code].append(example)
    return found


def examples_of(storage: Storage, receipt: Receipt) -> list[tuple[str, Example]]:
    """The failed rows of a part: code, and what is known of the row."""
    table = _columns(storage, receipt, ["row", "id", "error_code", "error"])
    table = table.filter(table.column("error_code").is_valid()).slice(0, 1000)
    return [
        (str(one["error_code"]), Example(one["row"], _short(one["id"]), _short(one["error"])))
        for one in table.to_pylist()
    ]


def _rows_run_again(storage: Storage, state: RunState) -> dict[int, int]:
    """The newest generation of the rows that a retry ran, of its first parts."""
    later = [one for one in state.receipts.values() if one.generation > 0][: 4 * EXAMPLE_PARTS]
    newest: dict[int, int] = {}
    for receipt in sorted(later, key=lambda one: one.generation):
        for row in _columns(storage, receipt, ["row"]).column("row").to_pylist():
            newest[row] = receipt.generation
    return newest


def _rejected(storage: Storage, total: int) -> list[Failure]:
    """Rejected rows by code, as far as their files were read; the others have no code here."""
    rows: Counter[str] = Counter()
    examples: dict[str, list[Example]] = {}
    names = storage.names(layout.REJECTED) if total else []
    for name in names:
        for line in storage.read(f"{layout.REJECTED}/{name}").splitlines():
            one = orjson.loads(line)
            rows[one["code"]] += 1
            known = examples.setdefault(one["code"], [])
            if len(known) < EXAMPLES:
                where = f"{one['file']}:{one['line']}: {one['message']}"
                known.append(Example(one["row"], _short(one["id"]), _short(where)))
        if rows.total() >= MOST_REJECTED_LINES:
            break
    found = [Failure(code, "rejected", n, tuple(examples[code])) for code, n in rows.items()]
    rest = total - rows.total()
    return [*found, Failure("(not looked at)", "rejected", rest)] if rest > 0 else found


def _short(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= EXAMPLE_CHARACTERS else f"{text[:EXAMPLE_CHARACTERS]}…"
