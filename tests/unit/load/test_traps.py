"""What one database or another cannot hold: each bad row is told, no good one is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchwright.core.errors import Refused, StoreError, Unreachable
from batchwright.core.ports import Fitted
from batchwright.core.stores import RowFault, StoreColumn, StoreLimits, StoreShape, parse_target
from batchwright.load.milvus import MilvusStore
from batchwright.load.postgres import PostgresStore
from batchwright.load.qdrant import point_id
from batchwright.load.rows import Layout, make_rows
from batchwright.load.seen import SeenIds
from batchwright.load.sending import ALL_REFUSED, Sender, Sending

LIMIT = 32 << 20


def shape(dimensions: int, *columns: StoreColumn, half: bool = False) -> StoreShape:
    return StoreShape(dimensions, half=half, metric="cosine", columns=columns)


def results(ids: Sequence[Any], vectors: Sequence[Any], **columns: pa.Array) -> pa.Table:
    n = len(ids)
    return pa.table(
        {
            "row": pa.array(range(n), pa.int64()),
            "id": pa.array(ids, pa.large_string()),
            "error_code": pa.nulls(n, pa.string()),
            "error": pa.nulls(n, pa.large_string()),
            "embedding": pa.array(vectors, pa.list_(pa.float32(), 2)),
            **columns,
        }
    )


def layout(*names: str, json: Sequence[str] = (), id_source: str = "id") -> Layout:
    return Layout(id_source, "own", {name: name for name in names}, frozenset(json))


def rows(ids: Sequence[Any], **columns: pa.Array) -> pa.Table:
    found = results(ids, [[1.0, 0.0]] * len(ids), **columns)
    kinds = [StoreColumn(name, "json" if name == "meta" else "text") for name in columns]
    made, faults = make_rows(found, layout(*columns, json=["meta"]), shape(2, *kinds))
    assert not faults
    return made


class MemoryStore:
    """Keeps rows in a dict, and makes the trouble that a test asks for."""

    limits = StoreLimits(batch_bytes=1000, row_bytes=1000, batch_rows=100, parallel=1)

    def __init__(self, refuse: set[str] | None = None, lose: int = 0) -> None:
        self.kept: dict[str, int] = {}
        self.refuse = refuse or set()
        self.lose = lose
        self.requests: list[int] = []

    def open(self, shape: StoreShape, *, create: bool) -> bool:
        return True

    def identities(self, ids: Sequence[str]) -> list[str]:
        return list(ids)

    def fit(self, rows: pa.Table) -> Fitted:
        return Fitted(rows, [], {})

    def sizes(self, rows: pa.Table) -> Any:
        return np.array([100 if len(one) < 50 else 5000 for one in rows.column("id").to_pylist()])

    def write(self, rows: pa.Table) -> None:
        ids = rows.column("id").to_pylist()
        self.requests.append(len(ids))
        if self.lose:
            self.lose -= 1
            self.kept[ids[0]] = 1  # some of it was stored before the connection was lost
            raise Unreachable("gone")
        if self.refuse.intersection(ids):
            raise Refused("not this one")
        self.kept |= dict.fromkeys(ids, 1)

    def finish(self) -> list[str]:
        return []

    def count(self) -> int:
        return len(self.kept)

    def close(self) -> None:
        pass


def send(store: MemoryStore, ids: Sequence[str], **settings: Any) -> list[RowFault]:
    given = {"batch_bytes": 1000, "parallel": 1, "pause": lambda _: None}
    sender = Sender(store, Sending(**(given | settings)))
    try:
        return sender.send(rows(ids))
    finally:
        sender.close()


def test_a_refused_row_is_found_and_its_neighbours_are_stored() -> None:
    store = MemoryStore(refuse={"r13", "r14"})
    faults = send(store, [f"r{i}" for i in range(40)])
    assert {fault.id for fault in faults} == {"r13", "r14"}
    assert {fault.code for fault in faults} == {"store_refused"}
    assert store.count() == 38


def test_a_request_is_repeated_when_the_connection_was_lost() -> None:
    store = MemoryStore(lose=3)
    paused: list[float] = []
    assert send(store, ["a", "b", "c"], pause=paused.append) == []
    assert set(store.kept) == {"a", "b", "c"}
    assert paused == [0.5, 1.0, 2.0]


def test_a_database_that_stays_away_is_given_up() -> None:
    with pytest.raises(StoreError, match="cannot be reached: gone"):
        send(MemoryStore(lose=99), ["a"], attempts=4)


def test_a_database_that_takes_nothing_is_given_up() -> None:
    ids = [f"r{i}" for i in range(ALL_REFUSED + 10)]
    with pytest.raises(StoreError, match="refuses every row"):
        send(MemoryStore(refuse=set(ids)), ids)


def test_requests_have_the_size_that_was_asked_for() -> None:
    store = MemoryStore()
    long = "x" * 60
    (fault,) = send(store, [*(f"r{i}" for i in range(25)), long])
    assert (fault.id, fault.code) == (long, "row_too_large")
    assert store.requests == [10, 10, 5]


def test_ids_of_points() -> None:
    """Case: text, numbers, UUIDs in two spellings."""
    assert point_id("17") == 17
    assert point_id("18446744073709551615") == 2**64 - 1
    same = {
        point_id("550e8400-e29b-41d4-a716-446655440000"),
        point_id("550e8400e29b41d4a716446655440000"),
    }
    assert same == {"550e8400-e29b-41d4-a716-446655440000"}
    others = [
        "doc-1",
        "SKU-00A7",
        "notes/file_b.txt#3",
        "-3",
        "18446744073709551616",
        "017",
        "１７",
    ]
    made = [point_id(one) for one in others]
    assert len(set(made)) == len(others)
    assert {uuid.UUID(str(one)).version for one in made} == {5}
    code = f"from batchwright.load.qdrant import point_id; import json; print(json.dumps([point_id(x) for x in {others!r}]))"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(fresh.stdout) == made


def test_ids_from_a_column_must_be_text_or_whole_numbers() -> None:
    own = pa.array(['"a"', "17", '"17"', "true", '""', "1.5", None], pa.large_string())
    found = results([str(i) for i in range(7)], [[1.0, 0.0]] * 7, own=own)
    made, faults = make_rows(found, layout(json=["own"], id_source="own"), shape(2))
    assert made.column("id").to_pylist() == ["a", "17", "17"]
    assert made.column("numeric_id").to_pylist() == [False, True, False]
    assert [(fault.row, fault.code) for fault in faults] == [(i, "bad_id") for i in (3, 4, 5, 6)]


def test_vectors_that_nobody_would_find_are_told() -> None:
    nan, inf = float("nan"), float("inf")
    found = results(list("abcdef"), [[1, 0], [nan, 0], [inf, 0], [0, 0], None, None])
    codes = pa.array([None, None, None, None, "timeout", None], pa.string())
    found = found.set_column(found.schema.get_field_index("error_code"), "error_code", codes)
    made, faults = make_rows(found, layout(), shape(2))
    assert made.column("id").to_pylist() == ["a"]
    assert [(fault.row, fault.code) for fault in faults] == [
        (1, "bad_vector"), (2, "bad_vector"), (3, "bad_vector"), (4, "no_vector"), (5, "bad_vector"),
    ]  # fmt: skip
    assert "timeout" in faults[3].message


def test_nul_is_replaced_in_text_and_json_but_never_in_ids() -> None:
    store = PostgresStore(parse_target("postgresql://h/db?table=t"))
    kinds = (StoreColumn("prompt", "text"), StoreColumn("meta", "json"))
    store._shape = shape(2, *kinds)
    given = rows(
        ["z1", "z2", "z3", "z4\0", "z5"],
        prompt=pa.array(["ok", "pdf\0text", "ok", "ok", None], pa.large_string()),
        meta=pa.array(
            ['{"k":"v"}', None, '{"k":"a\\u0000b"}', None, '{"k":"not a \\\\u0000 one"}'],
            pa.large_string(),
        ),
    )
    fitted = store.fit(given)
    assert fitted.warnings == {"nul_replaced": 2}
    assert [(fault.id, fault.code) for fault in fitted.faults] == [("z4\0", "bad_id")]
    assert fitted.rows.column("prompt").to_pylist() == ["ok", "pdf\ufffdtext", "ok", None]
    assert fitted.rows.column("meta").to_pylist() == [
        '{"k":"v"}', None, '{"k": "a\ufffdb"}', '{"k":"not a \\\\u0000 one"}',
    ]  # fmt: skip


def test_milvus_counts_bytes() -> None:
    store = MilvusStore(parse_target("milvus:///m.db/t"))
    store._text_bytes = {"id": 1024, "text": 60}
    given = rows(
        ["a", "b", "é" * 600],
        text=pa.array(["é" * 30, "é" * 31, "x"], pa.large_string()),
    )
    fitted = store.fit(given)
    assert fitted.rows.column("id").to_pylist() == ["a"]
    assert {(fault.row, fault.code) for fault in fitted.faults} == {
        (1, "value_too_long"), (2, "bad_id"),
    }  # fmt: skip


def test_seen_ids_are_found_again_in_any_batch() -> None:
    seen = SeenIds()
    assert seen.add(["a", "b", "a"]) == [2]
    assert seen.add([f"x{i}" for i in range(500)]) == []
    assert seen.add(["c", "b", "x499", "d"]) == [1, 2]
    assert seen.add([]) == []
    assert seen.add(["d", "c", "a", "e"]) == [0, 1, 2]
