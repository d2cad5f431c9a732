"""URLs of vector databases: one table each, and no secrets."""

from __future__ import annotations

import pytest

from batchwright.core.errors import JobError
from batchwright.core.stores import absolute_target, parse_target


@pytest.mark.parametrize(
    ("url", "kind", "place", "table"),
    [
        ("postgresql://me@h:5/db?table=t", "pgvector", "postgresql://me@h:5/db", "t"),
        ("postgres://h/db/t", "pgvector", "postgresql://h/db", "t"),
        ("postgresql://h/db?sslmode=require&table=s.t", "pgvector",
         "postgresql://h/db?sslmode=require", "s.t"),
        ("postgresql:///db?host=/run/pg&table=t", "pgvector", "postgresql:///db?host=%2Frun%2Fpg", "t"),
        ("qdrant://h:6333/c", "qdrant", "http://h:6333", "c"),
        ("qdrant+https://h/c", "qdrant", "https://h", "c"),
        ("qdrant:///data/q/c", "qdrant", "/data/q", "c"),
        ("qdrant://./q/c", "qdrant", "./q", "c"),
        ("milvus://h:19530/c?db=x", "milvus", "http://h:19530", "c"),
        ("milvus:///data/m.db/c", "milvus", "/data/m.db", "c"),
        ("lance://folder/sub/t", "lancedb", "folder/sub", "t"),
        ("lance:///data/l/t", "lancedb", "/data/l", "t"),
    ],
)  # fmt: skip
def test_a_url_names_a_table(url: str, kind: str, place: str, table: str) -> None:
    target = parse_target(url)
    assert (target.kind, target.place, target.table) == (kind, place, table)


@pytest.mark.parametrize(
    "url",
    ["redis://h/x", "postgresql://h/db", "postgresql://h/a/b/c", "qdrant://h:6333", "qdrant://h/a/b",
     "milvus://h:x/c", "lance://t", "reviews"],
)  # fmt: skip
def test_a_url_without_a_table_is_refused(url: str) -> None:
    with pytest.raises(JobError):
        parse_target(url)


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:s3cret@h/db?table=t", "postgresql://h/db?table=t&password=s3cret",
     "qdrant://h/c?api_key=s3cret", "milvus://root:s3cret@h/c", "redis://me:s3cret@h/x"],
)  # fmt: skip
def test_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_target(url)
    assert "s3cret" not in str(caught.value)


def test_the_same_table_has_the_same_name_for_every_user() -> None:
    names = {parse_target(f"postgresql://{user}h/db?table=t").name for user in ("", "me@", "you@")}
    assert len(names) == 1
    assert parse_target("postgresql://h/db?table=u").name not in names
    assert "." not in parse_target("qdrant://h/a.b").name


def test_paths_are_made_whole() -> None:
    assert absolute_target("lance://v/t", "/data") == "lance:///data/v/t"
    assert absolute_target("milvus://./m.db/t?x=1", "/data") == "milvus:///data/m.db/t?x=1"
    for same in ("lance:///v/t", "qdrant://h/c", "nonsense"):
        assert absolute_target(same, "/data") == same
