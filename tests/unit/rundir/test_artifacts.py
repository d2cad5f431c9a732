from __future__ import annotations

from typing import Any

import orjson
import pytest

from batchwright.core.errors import Damaged, StorageError
from batchwright.core.records import (
    Chunk,
    Duplicate,
    OrderBatch,
    OrderedPart,
    PreparedReceipt,
    Receipt,
    Slice,
    SourceFile,
    Split,
)
from batchwright.core.schemas import FORMAT_VERSION
from batchwright.rundir import artifacts
from batchwright.rundir.manifest import Manifest

SLICE = Slice("prepared/part-000000-0000.arrow", 2, 9, 100)
RECEIPT = Receipt(
    1, 2, "output/part", "ab" * 32, 7, 5, 2, 1, 70, 30, 102, 108, "infer-1", 1.25, {"timeout": 2}
)
PART = OrderedPart("prepared/part", 3, 4, "data/é.jsonl", 100, 17, 9, 2)
RECORDS = [
    RECEIPT,
    PreparedReceipt(
        0, 1, "f", 9, 2, 11, last=True, prompt_tokens=77, sha256="cd", warnings={"blank_prompt": 1},
        column_kinds={"a b": ["null", "bigint"]},
    ),
    OrderBatch(
        0, 5, (PART,), (Chunk(0, 3, (SLICE,)),), (SLICE,), (Duplicate("f", 1, 101, 7),), 109,
        last=False,
    ),
    Manifest(
        job={"input": {"path": "x", "limit": None}, "sampling": {"seed": 2**63 - 1}},
        tools={"batchwright": "0.1.0"},
        files=(SourceFile("x", 2**40, "1764425000123456789"),),
        splits=(Split(0, "x", "jsonl", 0, -1),),
        format="jsonl",
        input_type="AAAA",
        id_column="",
        chat=True,
        max_model_len=4096,
        fingerprint={"model": {"name": "m", "revision": None}},
    ),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    assert artifacts.load(type(record), artifacts.dump(record), "file") == record


def test_a_file_says_its_version() -> None:
    assert orjson.loads(artifacts.dump(RECEIPT))["version"] == FORMAT_VERSION


def test_a_newer_version_is_refused_as_such() -> None:
    raw = orjson.dumps({"version": FORMAT_VERSION + 1, "something": "new"})
    with pytest.raises(Damaged, match="receipts/x.json was written by a newer batchwright"):
        artifacts.load(Receipt, raw, "receipts/x.json")


WHOLE = artifacts.dump(RECEIPT)


@pytest.mark.parametrize(
    "raw",
    [
        b"", bytes(64), WHOLE[:40], WHOLE[:-1], b"null", b"3", b'"text"', b"[]", b"[1]", b"{}",
        b'{"version": 1}', b'{"version": null}', b'{"version": "1"}',
        WHOLE.replace(b'"rows": 7', b'"rows": "many"'), b"\xff\xfe",
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(raw: bytes) -> None:
    with pytest.raises(StorageError, match="receipts/x.json is damaged"):
        artifacts.load(Receipt, raw, "receipts/x.json")


def test_a_file_that_is_made_again_may_be_tried_again_and_one_that_is_not_may_not() -> None:
    with pytest.raises(StorageError) as redone:
        artifacts.load(Receipt, b"", "receipts/x.json")
    with pytest.raises(Damaged) as lasting:
        artifacts.load(OrderBatch, b"", "order/x.json")
    assert (redone.value.exit_code, lasting.value.exit_code) == (75, 2)


def test_fields_that_a_later_version_added_to_this_format_are_ignored() -> None:
    body = orjson.loads(WHOLE) | {"new_field": 1}
    assert artifacts.load(Receipt, orjson.dumps(body), "x") == RECEIPT


def test_fields_that_an_earlier_version_did_not_have_are_empty() -> None:
    body = orjson.loads(WHOLE)
    for later in ("times", "slowest", "first_tokens"):
        del body[later]
    found = artifacts.load(Receipt, orjson.dumps(body), "x")
    assert (found.times, found.slowest, found.first_tokens) == ({}, (), {})
