"""What became of the rows of a part, while it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from batchwright.core.records import Receipt
from batchwright.core.stores import LoadReceipt, RowFault


@dataclass(slots=True)
class PartUnderWay:
    """A part under way: what became of its rows so far."""

    receipt: Receipt
    rows: int = 0
    loaded: int = 0
    read: bool = False
    unsent: list[pa.Table] = field(default_factory=list)
    faults: list[RowFault] = field(default_factory=list)
    warnings: dict[str, int] = field(default_factory=dict)

    def take_in(self, faults: list[RowFault]) -> None:
        """The rows were sent, these in vain; faults may be those of other parts."""
        rows = (
            {row for table in self.unsent for row in table.column("row").to_pylist()}
            if faults
            else ()
        )
        mine = [fault for fault in faults if fault.row in rows]
        self.loaded += sum(table.num_rows for table in self.unsent) - len(mine)
        self.faults += mine
        self.unsent.clear()

    def as_receipt(self, now: float, seconds: float) -> LoadReceipt:
        """What is kept of it."""
        return LoadReceipt(
            file=self.receipt.file, sha256=self.receipt.sha256, rows=self.rows, loaded=self.loaded,
            finished_at=now, seconds=round(seconds, 3),
            faults=tuple(sorted(self.faults, key=lambda one: one.row)), warnings=self.warnings,
        )  # fmt: skip
