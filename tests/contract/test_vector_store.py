"""Every vector database keeps one row for each id, says what does not fit, and finds neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchwright.core.errors import JobError, StoreError
from batchwright.core.ports import VectorStore
from batchwright.core.stores import StoreColumn, StoreShape, parse_target
from batchwright.load.rows import Layout, make_rows
from batchwright.load.sending import Sender, Sending
from batchwright.wiring import open_store
from tests.support.fake_qdrant import fake_qdrant
from tests.support.postgres_server import binaries, postgres

DIMENSIONS = 8
COLUMNS = (
    StoreColumn("text", "text"),
    StoreColumn("stars", "int"),
    StoreColumn("price", "float"),
    StoreColumn("good", "bool"),
    StoreColumn("tags", "json"),
)
SHAPE = StoreShape(DIMENSIONS, half=False, metric="cosine", columns=COLUMNS)
LAYOUT = Layout("id", "own", {column.name: column.name for column in COLUMNS}, frozenset({"tags"}))


@dataclass
class Place:
    """Where a store can make tables, and how to look into them."""

    kind: str
    url: Callable[[str], str]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["pgvector", "qdrant", "qdrant-http", "milvus", "lancedb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = request.param
    if kind == "pgvector":
        assert binaries() is not None
        url = request.getfixturevalue("postgres_url")
        name = f"t{abs(hash(str(tmp_path)))}"
        yield Place(kind, lambda table: f"{url}?table={name}_{table}")
    elif kind == "qdrant-http":
        with fake_qdrant() as server:
            _servers.append(server)
            yield Place(kind, lambda table: f"{server.url}/{table}")
    else:
        folder = {"qdrant": tmp_path / "q", "milvus": tmp_path / "m.db", "lancedb": tmp_path / "l"}
        scheme = "lance" if kind == "lancedb" else kind
        yield Place(kind, lambda table: f"{scheme}://{folder[kind]}/{table}")


def results(ids: list[str], vectors: Any, **changed: list[Any]) -> pa.Table:
    """Rows as the results of a run have them."""
    n = len(ids)
    flat = pa.array(np.asarray(vectors, np.float32).ravel())
    columns = {
        "row": pa.array(range(n), pa.int64()),
        "id": pa.array(ids, pa.large_string()),
        "error_code": pa.nulls(n, pa.string()),
        "error": pa.nulls(n, pa.large_string()),
        "embedding": pa.FixedSizeListArray.from_arrays(flat, DIMENSIONS),
        "text": pa.array([f"text {i}" for i in range(n)], pa.large_string()),
        "stars": pa.array([i % 5 for i in range(n)], pa.int64()),
        "price": pa.array([i / 4 for i in range(n)], pa.float64()),
        "good": pa.array([i % 2 == 0 for i in range(n)]),
        "tags": pa.array([f'["a",{i}]' for i in range(n)], pa.large_string()),
    }
    for name, values in changed.items():
        columns[name] = pa.array(values, columns[name].type)
    return pa.table(columns)


def rows_of(ids: list[str], vectors: Any, **changed: list[Any]) -> pa.Table:
    rows, faults = make_rows(results(ids, vectors, **changed), LAYOUT, SHAPE)
    assert not faults
    return rows


def vectors(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, DIMENSIONS)).astype(np.float32)


def opened(url: str, shape: StoreShape = SHAPE) -> VectorStore:
    store = open_store(parse_target(url))
    try:
        store.open(shape, create=True)
    except (JobError, StoreError):
        store.close()
        raise
    return store


def sender(store: VectorStore, **settings: Any) -> Sender:
    given = {"batch_bytes": 16_384, "parallel": store.limits.parallel, "pause": lambda _: None}
    return Sender(store, Sending(**(given | settings)))


def test_rows_are_there_once_however_often_they_are_written(place: Place) -> None:
    made = vectors(120)
    ids = [f"row-{i}" for i in range(120)]
    store = opened(place.url("once"))
    for _ in range(2):
        assert sender(store).send(store.fit(rows_of(ids, made)).rows) == []
    assert store.count() == 120
    store.finish()
    assert store.count() == 120
    store.close()
    again = open_store(parse_target(place.url("once")))
    assert again.open(SHAPE, create=True), "it was there"
    sender(again).send(again.fit(rows_of([*ids[:50], "new"], made[:51])).rows)
    assert again.count() == 121
    again.close()


def test_a_row_that_is_written_again_is_replaced(place: Place) -> None:
    made = vectors(3)
    store = opened(place.url("replaced"))
    sender(store).send(store.fit(rows_of(["a", "b", "c"], made)).rows)
    changed = rows_of(["b"], made[:1], text=["new text"], price=[None], tags=[None])
    sender(store).send(store.fit(changed).rows)
    stored = read_all(place, store, "replaced")
    assert stored["b"] == (
        "new text",
        0,
        None,
        True,
        None,
        pytest.approx(unit(place, made[0]), abs=1e-6),
    )
    assert stored["c"][0] == "text 2"
    assert stored["c"][4] == ["a", 2]
    assert set(stored) == {"a", "b", "c"}
    store.close()


def test_a_table_of_other_dimensions_is_refused_before_the_first_row(place: Place) -> None:
    store = opened(place.url("other"))
    sender(store).send(store.fit(rows_of(["a"], vectors(1))).rows)
    store.close()
    other = StoreShape(DIMENSIONS + 1, half=False, metric="cosine", columns=COLUMNS)
    with pytest.raises(JobError, match=r"8 dimensions, the run makes 9"):
        opened(place.url("other"), other)


def test_looking_makes_nothing(place: Place) -> None:
    store = open_store(parse_target(place.url("looked")))
    assert not store.open(StoreShape(8, half=False, metric="l2", columns=None), create=False)
    store.close()
    assert not store.open(SHAPE, create=False)
    store.close()


def test_neighbours_are_those_of_brute_force(place: Place) -> None:
    if place.kind == "qdrant-http":
        pytest.skip("the stand-in does not search")
    made = vectors(150)
    store = opened(place.url("near"))
    sender(store).send(store.fit(rows_of([f"r{i}" for i in range(150)], made)).rows)
    store.finish()
    normed = made / np.linalg.norm(made, axis=1, keepdims=True)
    for query in (3, 77, 120):
        best = np.argsort(-(normed @ normed[query]))[:5]
        assert search(place, store, "near", made[query]) == [f"r{i}" for i in best]
    store.close()


def test_a_metric_that_is_another_is_refused_where_the_table_fixes_it(place: Place) -> None:
    if place.kind in ("pgvector", "lancedb"):
        pytest.skip("the metric belongs to the search, not to the table")
    opened(place.url("metric")).close()
    with pytest.raises(JobError, match=r"compares by"):
        opened(place.url("metric"), StoreShape(8, half=False, metric="l2", columns=COLUMNS))


def test_a_database_that_is_not_there_is_named(place: Place) -> None:
    if place.kind in ("milvus", "lancedb", "qdrant"):
        pytest.skip("it is a folder")
    url = {
        "pgvector": "postgresql://u@127.0.0.1:1/db?table=t",
        "qdrant-http": "qdrant://127.0.0.1:1/t",
    }
    with pytest.raises(StoreError, match=r"(?s)127\.0\.0\.1"):
        opened(url[place.kind])


def unit(place: Place, vector: Any) -> list[float]:
    """Qdrant keeps vectors at length 1 where neighbours are found by cosine."""
    shown = vector / np.linalg.norm(vector) if place.kind == "qdrant" else vector
    return [float(number) for number in shown]


def read_all(place: Place, store: Any, table: str) -> dict[Any, tuple[Any, ...]]:
    """id to (text, stars, price, good, tags, vector)."""
    names = ["text", "stars", "price", "good", "tags"]
    if place.kind == "pgvector":
        import psycopg

        with psycopg.connect(store._target.place) as connection:
            found = connection.execute(
                f"SELECT id, text, stars, price, good, tags, embedding::text FROM {store._target.table}"
            ).fetchall()
        return {row[0]: (*row[1:6], [float(x) for x in row[6][1:-1].split(",")]) for row in found}
    if place.kind == "qdrant":
        points, _ = store._client.scroll(table, with_vectors=True, limit=1000)
        return {p.payload["id"]: (*(p.payload[n] for n in names), list(p.vector)) for p in points}
    if place.kind == "qdrant-http":
        url = store._target.place.replace("http", "qdrant")
        (server,) = [one for one in _servers if one.url == url]
        stored = server.collections[table].values()
        return {
            p["payload"]["id"]: (*(p["payload"][n] for n in names), p["vector"]) for p in stored
        }
    if place.kind == "milvus":
        found = store._client.query(table, filter="stars >= 0", output_fields=["*"])
        return {one["id"]: (*(one[n] for n in names), list(one["embedding"])) for one in found}
    found = store._table.to_arrow().to_pylist()
    import json

    return {
        one["id"]: (
            one["text"], one["stars"], one["price"], one["good"],
            None if one["tags"] is None else json.loads(one["tags"]), one["embedding"],
        )
        for one in found
    }  # fmt: skip


_servers: list[Any] = []


def search(place: Place, store: Any, table: str, query: Any) -> list[str]:
    """Ids of the five nearest."""
    if place.kind == "pgvector":
        import psycopg

        with psycopg.connect(store._target.place) as connection:
            found = connection.execute(
                f"SELECT id FROM {store._target.table} ORDER BY embedding <=> %s::vector LIMIT 5",
                [str([float(x) for x in query])],
            ).fetchall()
        return [one for (one,) in found]
    if place.kind == "qdrant":
        points = store._client.query_points(table, query=query.tolist(), limit=5).points
        return [point.payload["id"] for point in points]
    if place.kind == "milvus":
        found = store._client.search(table, data=[query.tolist()], limit=5)
        return [one["id"] for one in found[0]]
    return [
        one["id"] for one in store._table.search(query).distance_type("cosine").limit(5).to_list()
    ]
