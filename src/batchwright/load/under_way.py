"""What became of the rows of a part, while it is loaded."""

from __future__ import annotations

from concurrent.futures import Future
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

    def hand_over(self) -> list[pa.Table]:
        """The rows that are to be sent; they are not held here any more."""
        tables, self.unsent = self.unsent, []
        return tables

    def take_in(self, sent: list[pa.Table], faults: list[RowFault]) -> None:
        """These rows were sent; faults may be those of other parts."""
        held = sent if faults else []
        rows = {row for table in held for row in table.column("row").to_pylist()}
        mine = [fault for fault in faults if fault.row in rows]
        self.loaded += sum(table.num_rows for table in sent) - len(mine)
        self.faults += mine

    def as_receipt(self, now: float, seconds: float) -> LoadReceipt:
        """What is kept of it."""
        return LoadReceipt(
            file=self.receipt.file, sha256=self.receipt.sha256, rows=self.rows, loaded=self.loaded,
            finished_at=now, seconds=round(seconds, 3),
            faults=tuple(sorted(self.faults, key=lambda one: one.row)), warnings=self.warnings,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rows that are being sent, while the next ones are read.

    Attributes:
        sent: of which parts they are.
        done: the parts that have no more rows after these.
        faults: comes when they are sent.
    """

    sent: list[tuple[PartUnderWay, list[pa.Table]]]
    done: list[PartUnderWay]
    faults: Future[list[RowFault]]
