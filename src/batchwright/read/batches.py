"""Rows from any text format, gathered into batches; what JSON rows keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from batchwright.core.errors import RowError
from batchwright.core.records import RowBatch
from batchwright.core.schemas import JSON_INPUT
from batchwright.read.compression import Damaged

# A batch also ends here, so that long rows do not fill the memory.
_BATCH_BYTES = 32 << 20


class Row(NamedTuple):
    """One row, good or bad; neither `kept` nor `problem`: only lines that hold no row."""

    line: int
    lines_read: int
    record: dict[str, Any] | None = None
    kept: bytes | None = None
    problem: RowError | None = None


@dataclass
class _Gathering:
    records: list[dict[str, Any] | None] = field(default_factory=list)
    kept: list[bytes | None] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: dict[int, tuple[str, str]] = field(default_factory=dict)
    lines_read: int = 0
    num_bytes: int = 0

    def add(self, row: Row) -> None:
        self.lines_read = row.lines_read
        if row.problem is not None:
            self.problems[len(self.records)] = (row.problem.code, row.problem.message)
        elif row.record is None:
            return
        self.records.append(row.record)
        self.kept.append(row.kept)
        self.lines.append(row.line)
        self.num_bytes += len(row.kept or b"")

    def batch(self) -> RowBatch:
        kept = json_array(self.kept)
        return RowBatch(self.records, kept, self.lines, self.problems, self.lines_read)


def json_array(texts: Sequence[bytes | None]) -> pa.Array:
    """What the output keeps of JSON rows; pyarrow checks that it is UTF-8."""
    return pa.array(texts, type=JSON_INPUT)


def gather(rows: Iterator[Row], batch_rows: int) -> Iterator[RowBatch]:
    """Rows in batches. The rows before a damaged place still come out ahead of the error."""
    damage: Damaged | None = None
    gathering = _Gathering()
    given = 0
    while True:
        try:
            row = next(rows, None)
        except Damaged as error:
            damage = error
            break
        if row is None:
            break
        gathering.add(row)
        if len(gathering.records) >= batch_rows or gathering.num_bytes >= _BATCH_BYTES:
            given = gathering.lines_read
            yield gathering.batch()
            gathering = _Gathering(lines_read=given)
    if gathering.records or gathering.lines_read > given:
        yield gathering.batch()
    if damage is not None:
        raise damage
