"""A run's vectors in databases: traps told row by row, kills survived, nothing there twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import psycopg
import pytest

from batchwright import pipeline
from batchwright.config.sections import LoadTarget
from batchwright.core.errors import JobError, StoreError
from batchwright.core.stores import LoadCounts
from batchwright.results.following import load_now
from tests.e2e.command import call, kill_all, start
from tests.support.fake_qdrant import fake_qdrant
from tests.support.postgres_server import postgres

EMBED = ["--set", "task=embed", "--set", "prompt.column=prompt", "--engine", "fake"]
DIMENSIONS = 8
SMALL = ["--set", f"embedding.dimensions={DIMENSIONS}", "--set", "run.chunk_rows=8"]
UUID = "550e8400-e29b-41d4-a716-446655440000"

# Ids as people have them, and what follows from each; row 5 fails in the run.
ROWS: list[dict[str, Any]] = [
    {"id": "doc-1", "prompt": "alpha", "meta": {"k": "v"}, "stars": 3},
    {"id": 17, "prompt": "beta", "meta": {"k": "a\0b"}, "stars": 4},
    {"id": "notes/file_b.txt#3", "prompt": "alpha", "meta": None, "stars": 5},
    {"id": UUID, "prompt": "pdf\0text", "meta": {"k": "v"}, "stars": None},
    {"id": UUID.replace("-", ""), "prompt": "gamma", "meta": {"n": [1, 2]}, "stars": 1},
    {"id": "failed", "prompt": "delta", "meta": {}, "stars": 2},
    {"id": "z4\0", "prompt": "ok", "meta": {}, "stars": 2},
    {"id": "", "prompt": "no id", "meta": {}, "stars": 2},
    {"id": "long", "prompt": "x" * 70_000, "meta": {}, "stars": 2},
]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of ROWS."""
    folder = tmp_path_factory.mktemp("traps")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    options = ["--set", "engine.options={refuse_rows: [5]}", "--set", "run.max_failed=1"]
    options += ["--set", "plan.over_length=truncate_right"]
    call("run", rows, "--dir", folder / "run", *EMBED, *SMALL, *options)
    return folder / "run"


def load(run_dir: Path, url: str, **options: Any) -> LoadCounts:
    storage, manifest, job = pipeline.open_run(run_dir)
    again = options.pop("again", False)
    target = LoadTarget(to=url, **options)
    (found,) = load_now(storage, manifest, job, [target], threading.Event(), again=again)
    return found


def faults(run_dir: Path, kind: str) -> dict[int, str]:
    """Row to code, as errors.jsonl of the newest load tells them."""
    newest = max(run_dir.glob(f"load/{kind}-*/errors.jsonl"), key=lambda path: path.stat().st_mtime)
    return {one["row"]: one["code"] for one in map(json.loads, newest.read_text().splitlines())}


def test_postgres_keeps_what_it_can_and_tells_the_rest(run_dir: Path, postgres_url: str) -> None:
    url = f"{postgres_url}?table=traps"
    found = load(run_dir, url)
    assert found.finished
    assert found.loaded == 6
    assert found.faults == {"bad_id": 1, "no_vector": 1}
    assert found.warnings == {"nul_replaced": 2}
    assert faults(run_dir, "pgvector") == {5: "no_vector", 6: "bad_id"}
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute("SELECT id, prompt, meta, stars FROM traps").fetchall()
        kinds = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'traps'::regclass AND attnum > 0"
        ).fetchall()
        index = "SELECT indexdef FROM pg_indexes WHERE tablename = 'traps' AND indexdef ~ 'hnsw'"
        ((made,),) = connection.execute(index).fetchall()
    stored = {row[0]: row[1:] for row in rows}
    assert stored["17"] == ("beta", {"k": "a\ufffdb"}, 4)
    assert stored[UUID] == ("pdf\ufffdtext", {"k": "v"}, None)
    assert dict(kinds) == {
        "id": "text", "embedding": "vector(8)", "prompt": "text", "meta": "jsonb", "stars": "bigint",
    }  # fmt: skip
    assert "vector_cosine_ops" in made


def test_qdrant_has_two_spellings_of_a_uuid_once(run_dir: Path) -> None:
    with fake_qdrant(busy=2) as server:
        found = load(run_dir, f"{server.url}/traps")
        points = server.collections["traps"]
        assert server.config["traps"]["hnsw_config"]["m"] == 16, "built after all points were there"
    assert found.faults == {"duplicate_id": 1, "no_vector": 1}
    assert faults(run_dir, "qdrant") == {4: "duplicate_id", 5: "no_vector"}
    assert found.loaded == len(points) == 6
    kept = {point["payload"]["id"]: point["payload"] for point in points.values()}
    assert kept[17]["meta"] == {"k": "a\0b"}, "the number is one in the payload, NUL is kept"
    assert kept["doc-1"]["stars"] == 3
    assert 17 in points
    assert UUID in points


def test_milvus_tells_texts_that_are_too_long(run_dir: Path, tmp_path: Path) -> None:
    found = load(run_dir, f"milvus://{tmp_path}/m.db/traps")
    assert found.loaded == 6
    assert found.faults == {"no_vector": 1, "value_too_long": 1}
    assert faults(run_dir, "milvus") == {5: "no_vector", 8: "value_too_long"}


def test_lance_keeps_all_that_has_a_vector(run_dir: Path, tmp_path: Path) -> None:
    url = f"lance://{tmp_path}/l/traps"
    assert load(run_dir, url).loaded == 7
    before = lancedb.connect(tmp_path / "l").open_table("traps").version
    assert load(run_dir, url).loaded == 7
    table = lancedb.connect(tmp_path / "l").open_table("traps")
    assert table.count_rows() == 7
    assert load(run_dir, url, again=True).finished
    assert table.count_rows() == 7
    assert before


def test_another_choice_of_columns_needs_all_rows_again(run_dir: Path, postgres_url: str) -> None:
    url = f"{postgres_url}?table=chosen"
    load(run_dir, url, columns=["stars"], index=False)
    with pytest.raises(JobError, match=r"otherwise: columns: \['stars'\] -> none"):
        load(run_dir, url, columns="none", index=False)
    assert load(run_dir, url, columns="none", index=False, again=True).loaded == 6
    with pytest.raises(JobError, match="no row has 'star'"):
        load(run_dir, f"{postgres_url}?table=chosen2", columns=["star"])
    with pytest.raises(JobError, match="lacks the column prompt, meta"):
        load(run_dir, url, again=True)


def test_a_column_can_be_the_id(run_dir: Path, postgres_url: str) -> None:
    """Rows 5 to 8 have two stars each: the first that has a vector keeps the id."""
    found = load(run_dir, f"{postgres_url}?table=by_stars", id="stars", columns="none")
    assert found.faults == {"bad_id": 1, "duplicate_id": 1, "no_vector": 1}
    assert found.loaded == 5


def test_a_table_that_was_removed_is_filled_again(run_dir: Path, postgres_url: str) -> None:
    url = f"{postgres_url}?table=removed"
    load(run_dir, url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE removed")
    assert load(run_dir, url).loaded == 6
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM removed").fetchone() == (6,)
        connection.execute("DELETE FROM removed WHERE id = '17'")
    with pytest.raises(StoreError, match="has 5 rows, but 6 were loaded"):
        load(run_dir, url)
    assert load(run_dir, url, again=True).finished


def test_a_secret_never_comes_near_the_disk(
    run_dir: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "s3cret")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    with fake_qdrant() as server:
        load(run_dir, f"{server.url}/secret")
        assert server.api_keys == {"s3cret"}
    load(run_dir, f"{postgres_url}?table=secret")
    with pytest.raises(JobError) as caught:
        load(run_dir, "qdrant://h/c?api_key=s3cret")
    assert "s3cret" not in str(caught.value)
    assert "QDRANT_API_KEY" in caught.value.hint
    for path in run_dir.rglob("*"):
        assert path.is_dir() or b"s3cret" not in path.read_bytes()


def many_rows(folder: Path, count: int) -> Path:
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"id": f"r{i}", "prompt": f"p {i}"}) + "\n" for i in range(count))
    )
    return rows


def test_a_killed_load_goes_on_and_a_run_fills_a_table_while_it_runs(
    tmp_path: Path, postgres_url: str
) -> None:
    """One run: it is killed, it loads while it runs; then its load elsewhere is killed."""
    rows = many_rows(tmp_path, 120)
    job = tmp_path / "job.yaml"
    job.write_text(
        json.dumps(
            {
                "input": {"path": str(rows)},
                "task": "embed",
                "prompt": {"column": "prompt"},
                "embedding": {"dimensions": DIMENSIONS},
                "engine": {"kind": "fake"},
                "run": {"chunk_rows": 16},
                "load": [{"to": f"{postgres_url}?table=live"}],
            }
        )
    )
    hangs = "engine.options={hang_rows: [119], seconds_per_step: 0.05}"  # so the run cannot end
    first = start("run", job, "--dir", tmp_path / "run", "--set", hangs)
    try:
        wait_until(lambda: rows_in(postgres_url, "live") > 0, first)
    finally:
        kill_all(first)
    summary = call("run", job, "--dir", tmp_path / "run")
    committed_at = max(
        json.loads(path.read_bytes())["finished_at"]
        for path in (tmp_path / "run" / "receipts").iterdir()
    )
    (part,) = [summary["loads"][0]]
    assert (part["loaded"], part["finished"]) == (120, True)
    loaded_at = max(one["finished_at"] for one in load_receipts(tmp_path / "run", "pgvector"))
    assert loaded_at - committed_at < 30
    assert rows_in(postgres_url, "live") == 120
    loads = pipeline.status(tmp_path / "run").loads
    assert loads[0].loaded == 120

    with fake_qdrant() as server:
        url = f"{server.url}/killed"
        second = start("load", tmp_path / "run", "--to", url, "--batch-mb", 0.002, "--parallel", 1)
        try:
            wait_until(lambda: len(server.collections.get("killed", {})) >= 40, second)
        finally:
            os.kill(second.pid, signal.SIGKILL)
            second.wait()
        assert len(server.collections["killed"]) < 120
        server.lose_after = 5  # and the connection is lost before the reply
        load(tmp_path / "run", url)
        once = json.dumps(server.collections["killed"], sort_keys=True)
        assert len(server.collections["killed"]) == 120
        load(tmp_path / "run", url, again=True)
        assert json.dumps(server.collections["killed"], sort_keys=True) == once


def load_receipts(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in run_dir.glob(f"load/{kind}-*/parts/*.json")]


def rows_in(url: str, table: str) -> int:
    with psycopg.connect(url) as connection:
        there = connection.execute("SELECT to_regclass(%s)", [table]).fetchone()
        if there is None or there[0] is None:
            return 0
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(found[0]) if found else 0


def wait_until(condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_database_that_does_not_fit_ends_a_run_before_its_first_row(
    tmp_path: Path, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("CREATE TABLE fixed (id text PRIMARY KEY, embedding vector(3))")
    to = f"load=[{{to: '{postgres_url}?table=fixed'}}]"
    options = [*EMBED, *SMALL, "--set", to, "--dir", tmp_path / "run"]
    said = call("run", many_rows(tmp_path, 4), *options, exit_code=2)
    assert "3 dimensions, the run makes 8" in said["error"]["message"]
    assert not (tmp_path / "run" / "receipts").exists()


def test_workers_without_a_leader_load_too(tmp_path: Path) -> None:
    """Whoever sees the last row done loads; one that comes later finds nothing left to do."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": f"r{n}", "prompt": f"text {n}"}) + "\n" for n in range(40)))  # fmt: skip
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({
        "input": {"path": str(rows)}, "task": "embed", "prompt": {"column": "prompt"},
        "engine": {"kind": "fake"}, "embedding": {"dimensions": DIMENSIONS},
        "run": {"dir": str(tmp_path / "run"), "chunk_rows": 8, "pilot_rows": 0},
        "load": [{"to": f"lance://{tmp_path / 'lake'}/texts"}],
    }))  # fmt: skip
    for _ in range(2):
        call("worker", job)
        table = lancedb.connect(tmp_path / "lake").open_table("texts")
        assert table.count_rows() == 40
    (load,) = call("status", tmp_path / "run")["loads"]
    assert load["finished"]
    assert load["loaded"] == 40
