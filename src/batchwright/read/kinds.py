"""Which JSON kinds the columns of rows hold, for results that give each column one type."""

from __future__ import annotations

from batchwright.core.records import RowBatch

_KINDS: dict[type, str] = {
    type(None): "null", bool: "bool", int: "int", float: "float", str: "string",
    list: "list", dict: "object",
}  # fmt: skip


def note_kinds(batch: RowBatch, kinds: dict[str, dict[str, None]]) -> None:
    """Add the kinds of a batch's cells to those that each column had so far, in order."""
    for record in batch.records:
        if record is None:
            continue
        for name, value in record.items():
            kind = _KINDS[type(value)]
            if kind == "int" and not -(2**63) <= value < 2**63:
                kind = "bigint"
            kinds.setdefault(name, {})[kind] = None
