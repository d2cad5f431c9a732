from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from batchwright.core.records import Receipt
from batchwright.core.schemas import JSON_INPUT, part_schema
from batchwright.write import part_streams as module
from batchwright.write import sorted_runs
from batchwright.write.part_streams import chain_parts, part_streams
from tests.unit.write.stored import Folder, export, prepared, store


def _receipt(chunk: int, first: int, last: int, *, rows: int = 1, generation: int = 0) -> Receipt:
    return Receipt(
        generation, chunk, f"{chunk}", "", rows=rows, ok=rows, failed=0, truncated=0,
        prompt_tokens=0, completion_tokens=0, first_row=first, last_row=last, worker="w", seconds=1.0,
    )  # fmt: skip


def test_a_run_in_file_order_is_one_chain() -> None:
    parts = [_receipt(i, i * 10, i * 10 + 9) for i in range(100)]
    random.Random(0).shuffle(parts)
    (chain,) = chain_parts(parts)
    assert [part.first_row for part in chain] == list(range(0, 1000, 10))


def test_a_pilot_and_a_retry_are_a_chain_more_each() -> None:
    parts = [_receipt(i, i * 10, i * 10 + 9) for i in range(50)]
    pilot = [_receipt(100 + i, i, 490 + i) for i in range(3)]
    retry = [_receipt(i, i * 100 + 5, i * 100 + 95, generation=1) for i in range(5)]
    chains = chain_parts([*parts, *pilot, *retry, _receipt(999, -1, -1, rows=0)])
    assert len(chains) == 5
    assert sum(len(chain) for chain in chains) == 58


def test_only_rows_from_everywhere_are_sorted_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 10_000)
    monkeypatch.setattr(sorted_runs, "_PACKED_BYTES", 1_000)
    folder = Folder(tmp_path / "o")
    rows = 4000
    source = prepared([f'{{"q": "q{i}"}}' for i in range(rows)])
    ordered = [store(folder, i, source, range(i * 500, i * 500 + 500)) for i in range(4)]
    rest = list(range(2000, rows))
    random.Random(1).shuffle(rest)
    mixed = [store(folder, 10 + i, source, rest[i * 100 : i * 100 + 100]) for i in range(20)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    streams = part_streams([*mixed, *ordered], folder, part_schema(JSON_INPUT), scratch)
    assert len(streams) == 2
    found = [[row for table in one for row in table.column("row").to_pylist()] for one in streams]
    assert [len(one) for one in found] == [2100, 1900]  # one part fits behind the ordered ones
    assert all(one == sorted(one) for one in found)
    assert sorted(found[0] + found[1]) == list(range(rows))
    assert len(list(scratch.glob("run-*"))) > 1
    (expected,) = export(
        folder, tmp_path / "a", [store(folder, 99, source, range(rows))], total_rows=rows
    )
    (got,) = export(folder, tmp_path / "b", [*mixed, *ordered], total_rows=rows)
    assert got.read_bytes() == expected.read_bytes()
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        ".manifest.json", "_SUCCESS", got.name,
    }  # fmt: skip


def test_a_part_is_read_a_batch_at_a_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    part = store(folder, 0, prepared(["{}"] * 3000), range(3000))
    (stream,) = part_streams([part], folder, part_schema(JSON_INPUT), tmp_path)
    tables = list(stream)
    assert [table.num_rows for table in tables] == [1024, 1024, 952]
    assert tables[0].column(module.GENERATION).to_pylist() == [0] * 1024
    assert isinstance(tables[0], pa.Table)
