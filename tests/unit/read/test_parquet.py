from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import InputError
from batchwright.read import parquet
from batchwright.read.files import list_files
from batchwright.read.rows import input_type
from batchwright.read.splits import cut_splits
from tests.unit.read.helpers import codes, kept, lines, read, records

TEXT = pa.large_string()


def save(path: Path, columns: dict[str, Any], **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def column_type(path: Path, name: str) -> pa.DataType:
    return input_type(list_files(str(path)), "parquet").field(name).type


def test_all_flavours_of_text_are_one_type(tmp_path: Path) -> None:
    flavours = [pa.string(), TEXT, pa.string_view(), pa.binary(), pa.binary_view(), pa.null()]
    for number, flavour in enumerate(flavours):
        value = None if flavour == pa.null() else "é".encode()
        column = pa.array([value], pa.binary()) if value else pa.nulls(1)
        save(tmp_path / f"{number}.parquet", {"t": column.cast(flavour)})
    save(tmp_path / "9.parquet", {"t": pa.array(["é", None]).dictionary_encode()})
    assert column_type(tmp_path, "t") == TEXT
    assert records(read(tmp_path)) == [{"t": "é"}] * 5 + [{"t": None}, {"t": "é"}, {"t": None}]


def test_columns_of_bytes_stay_bytes_and_cost_no_row(tmp_path: Path) -> None:
    """A column that no prompt needs must not keep a data set from being run."""
    photo = [{"bytes": b"\xff\xd8", "path": "a"}, None]
    path = save(
        tmp_path / "a.parquet", {"t": ["x", "y"], "raw": [None, b"\xff\xd8"], "photo": photo}
    )
    save(tmp_path / "b.parquet", {"t": ["z"], "raw": [b"text"]})
    assert column_type(tmp_path, "raw") == pa.large_binary()
    assert records(read(tmp_path)) == [
        {"t": "x", "raw": None, "photo": {"bytes": b"\xff\xd8", "path": "a"}},
        {"t": "y", "raw": b"\xff\xd8", "photo": None},
        {"t": "z", "raw": b"text", "photo": None},
    ]
    assert kept(read(path))[1]["raw"] == b"\xff\xd8"


@pytest.mark.parametrize("flavour", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_a_late_value_that_is_no_text_costs_its_own_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: pa.DataType
) -> None:
    monkeypatch.setattr("batchwright.read.parquet_types._VALUES", 2)
    values = pa.array([b"a", None, b"\xe9", "é".encode()]).cast(flavour)
    lists = pa.array([[b"a"], [b"b"], [b"c"], [b"d", b"\xff"]], pa.list_(pa.binary()))
    save(tmp_path / "a.parquet", {"t": values, "l": lists, "n": [1, 2, 3, 4]})
    batches = read(tmp_path)
    assert records(batches) == [
        {"t": "a", "l": ["a"], "n": 1}, {"t": None, "l": ["b"], "n": 2}, None, None,
    ]  # fmt: skip
    assert [one.problems for one in batches] == [{
        2: ("bad_unicode", "column 't' holds bytes that are not UTF-8"),
        3: ("bad_unicode", "column 'l' holds bytes that are not UTF-8"),
    }]  # fmt: skip


def test_text_that_its_writer_did_not_check_costs_its_own_row(tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 2], pa.int32()).buffers()[1]
    unchecked = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff"))
    batches = read(save(tmp_path / "a.parquet", {"t": unchecked, "n": [1, 2]}))
    assert records(batches) == [{"t": "a", "n": 1}, None]
    assert codes(batches) == [(1, "bad_unicode")]


def test_only_some_files_are_looked_into_for_bytes(tmp_path: Path) -> None:
    for number in range(parquet.FILES_LOOKED_INTO + 1):
        last = number == parquet.FILES_LOOKED_INTO
        save(tmp_path / f"{number}.parquet", {"t": [b"\xff" if last else b"x"]})
    assert column_type(tmp_path, "t") == TEXT
    assert records(read(tmp_path))[-1] is None


def test_null_columns_take_the_type_of_the_other_files(tmp_path: Path) -> None:
    save(tmp_path / "0.parquet", {"n": pa.nulls(1), "m": pa.nulls(1), "never": pa.nulls(1)})
    save(tmp_path / "1.parquet", {"n": [2**62], "m": [[{"role": "user"}]], "extra": [True]})
    assert records(read(tmp_path)) == [
        {"n": None, "m": None, "never": None, "extra": None},
        {"n": 2**62, "m": [{"role": "user"}], "never": None, "extra": True},
    ]
    assert column_type(tmp_path, "n") == pa.int64()
    assert column_type(tmp_path, "never") == TEXT


def test_integers_stay_exact_and_nan_is_not_null(tmp_path: Path) -> None:
    ids = [9007199254740993, None, 1700000000000000001]
    path = save(tmp_path / "a.parquet", {"id": ids, "x": pa.array([math.nan, None, 1.5])})
    rows = records(read(path))
    assert [row and row["id"] for row in rows] == ids
    assert rows[0] is not None
    assert math.isnan(rows[0]["x"])
    assert [row and row["x"] for row in rows[1:]] == [None, 1.5]


def test_integers_that_a_float_column_would_spoil_are_an_error(tmp_path: Path) -> None:
    save(tmp_path / "a.parquet", {"id": [9007199254740993]})
    save(tmp_path / "b.parquet", {"id": [0.5]})
    with pytest.raises(InputError, match=r"a\.parquet: column 'id'"):
        read(tmp_path)


def test_types_that_conflict_name_both_files(tmp_path: Path) -> None:
    one = save(tmp_path / "a.parquet", {"x": [1]})
    two = save(tmp_path / "b.parquet", {"x": ["1"]})
    with pytest.raises(InputError) as caught:
        read(tmp_path)
    assert caught.value.message == f"column 'x' is int64 in {one} but large_string in {two}"


def test_padding_of_nested_columns_is_taken_out(tmp_path: Path) -> None:
    messages = [
        [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "c"}],
        [],
        None,
        [{"role": "user", "content": "", "parts": [{"a": {"city": "x"}}, {"b": 1}]}],
    ]
    path = save(tmp_path / "a.parquet", {"id": [1, 2, 3, None], "messages": messages})
    rows = records(read(path))
    assert [row and row["messages"] for row in rows] == messages
    assert rows[3] is not None
    assert rows[3]["id"] is None
    assert kept(read(path))[0]["messages"][0]["tool_call_id"] is None


def test_structs_of_other_files_are_matched_by_name(tmp_path: Path) -> None:
    save(tmp_path / "a.parquet", {"m": [[{"role": "user", "content": "x"}]]})
    save(tmp_path / "b.parquet", {"m": [None, [{"content": "y", "n": 1, "role": "z"}]]})
    assert records(read(tmp_path)) == [
        {"m": [{"role": "user", "content": "x"}]},
        {"m": None},
        {"m": [{"content": "y", "n": 1, "role": "z"}]},
    ]


def test_maps_lists_and_extension_types_are_plain(tmp_path: Path) -> None:
    columns = {
        "map": pa.array([[("k", {"a": 1})], None], pa.map_(pa.string(), pa.struct({"a": "int8"}))),
        "view": pa.array([["a", "b"], ["c"]], pa.list_view(pa.string())),
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
        "large": pa.array([["a"], None], pa.large_list(pa.string())),
        "json": pa.array(["{}", None], pa.json_()),
    }
    assert records(read(save(tmp_path / "a.parquet", columns))) == [
        {"map": {"k": {"a": 1}}, "view": ["a", "b"], "fixed": [1, 2], "large": ["a"], "json": "{}"},
        {"map": None, "view": ["c"], "fixed": [3, 4], "large": None, "json": None},
    ]


def test_nanoseconds_are_read_wherever_they_stand(tmp_path: Path) -> None:
    """Python's times end at microseconds; what the output keeps has every digit."""
    count = 1_764_000_000_123_456_789
    at, span = pa.timestamp("ns"), pa.duration("ns")
    columns = {
        "at": pa.array([count, None], at),
        "zoned": pa.array([count, None], pa.timestamp("ns", "UTC")),
        "clock": pa.array([1_001, None], pa.time64("ns")),
        "events": pa.array([[{"at": count, "took": 2_001}], None], pa.list_(
            pa.struct({"at": at, "took": span}))),
        "map": pa.array([[("k", count)], None], pa.map_(pa.string(), at)),
    }  # fmt: skip
    batches = read(save(tmp_path / "a.parquet", columns))
    first, second = records(batches)
    moment = datetime(2025, 11, 24, 16, 0, 0, 123456)
    assert first == {
        "at": moment, "zoned": moment.replace(tzinfo=UTC), "clock": time(0, 0, 0, 1),
        "events": [{"at": moment, "took": timedelta(microseconds=2)}], "map": {"k": moment},
    }  # fmt: skip
    assert second == dict.fromkeys(columns)
    assert batches[0].kept.field("at").type == at
    assert batches[0].kept.field("at").cast(pa.int64()).to_pylist() == [count, None]


def test_hive_partitions_are_text_columns(tmp_path: Path) -> None:
    save(tmp_path / "lang=en/year=2024/0.parquet", {"a": [1]})
    save(tmp_path / "lang=pt%20BR/year=__HIVE_DEFAULT_PARTITION__/0.parquet", {"a": [2]})
    assert records(read(tmp_path)) == [
        {"a": 1, "lang": "en", "year": "2024"},
        {"a": 2, "lang": "pt BR", "year": None},
    ]
    save(tmp_path / "x/a=9/0.parquet", {"a": [3]})
    assert records(read(tmp_path / "x")) == [{"a": 3}]


def test_splits_by_row_groups_cover_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", {"a": range(100)}, row_group_size=15)
    group = pq.ParquetFile(path).metadata.row_group(0).total_byte_size
    for split_bytes, count in [(1, 7), (2 * group, 4), (1 << 20, 1)]:
        splits = cut_splits(list_files(path), "parquet", split_bytes=split_bytes)
        assert len(splits) == count
        batches = read(path, split_bytes=split_bytes, batch_rows=10)
        assert [row and row["a"] for row in records(batches)] == list(range(100))
        assert lines(batches) == list(range(100))
        assert max(len(batch.records) for batch in batches) <= 10
    assert batches[-1].num_lines == 100


def test_batches_of_long_rows_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.parquet", {"a": [str(n) * 1000 for n in range(50)]})
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 10_000)
    assert max(len(batch.records) for batch in read(path)) < 20


def test_a_file_without_rows(tmp_path: Path) -> None:
    assert records(read(save(tmp_path / "a.parquet", {"a": pa.array([], TEXT)}))) == []


@pytest.mark.parametrize("cut", [0, 4, 60, -1])
def test_a_damaged_file_names_itself(tmp_path: Path, cut: int) -> None:
    path = save(tmp_path / "a.parquet", {"a": ["x" * 50] * 50})
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:cut])
    with pytest.raises(InputError, match=r"a\.parquet"):
        read(path)
    Path(path).write_bytes(data[:4] + b"\xff" * 40 + data[44:])
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet"):
        read(path)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="two columns are named 'a'"):
        read(tmp_path / "a.parquet")


FAR_US = 9_223_372_036_854_775_807  # how databases write "for ever"


def test_times_that_python_cannot_hold_are_null_to_prompts_and_cost_no_row(tmp_path: Path) -> None:
    at = pa.timestamp("us")
    columns = {
        "t": ["x", "y"],
        "until": pa.array([FAR_US, 0], pa.int64()).cast(at),
        "day": pa.array([2**30, 0], pa.int32()).cast(pa.date32()),
        "span": pa.array([2**62, 0], pa.int64()).cast(pa.duration("s")),
        "zoned": pa.array([253_402_300_799_000_000, 0], pa.timestamp("us", "Europe/Berlin")),
        "within": pa.array([{"at": FAR_US}, {"at": 0}], pa.struct({"at": pa.int64()})).cast(
            pa.struct({"at": at})
        ),
    }
    batches = read(save(tmp_path / "a.parquet", columns))
    far, near = records(batches)
    assert far == {**dict.fromkeys(columns), "t": "x"}
    assert near is not None
    assert near["until"] == datetime(1970, 1, 1)
    assert codes(batches) == []
    assert batches[0].kept.field("until").cast(pa.int64()).to_pylist() == [FAR_US, 0]


def test_a_time_zone_that_nobody_knows_is_utc(tmp_path: Path) -> None:
    zoned = pa.array([5, None], pa.timestamp("us", "Mars/Base"))
    batches = read(save(tmp_path / "a.parquet", {"at": zoned}))
    assert column_type(tmp_path, "at") == pa.timestamp("us", "UTC")
    moment = datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    assert records(batches) == [{"at": moment}, {"at": None}]


def test_uuids_are_text(tmp_path: Path) -> None:
    """They are what many tables have as their key."""
    known = UUID("0189f7ea-ae2c-7809-8aeb-b819cf5e9e7f")
    path = save(tmp_path / "a.parquet", {"id": pa.array([known.bytes, None], pa.uuid())})
    assert records(read(path)) == [{"id": str(known)}, {"id": None}]
    assert column_type(tmp_path, "id") == TEXT


def test_two_fields_of_one_name_within_a_column(tmp_path: Path) -> None:
    twice = [pa.field("a", pa.int64()), pa.field("a", pa.int64())]
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], fields=twice)
    column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), inner)
    path = save(tmp_path / "a.parquet", {"m": column})
    with pytest.raises(InputError, match="column 'm' has two fields named 'a'"):
        read(path)


def test_structs_know_which_of_their_keys_are_null(tmp_path: Path) -> None:
    path = save(tmp_path / "a.parquet", {"m": [{"a": 1, "b": None}, {"a": None, "b": "x"}]})
    first, second = (row["m"] for row in records(read(path)) if row)
    assert (first, second) == ({"a": 1}, {"b": "x"})
    assert [first.is_null(name) for name in "abc"] == [False, True, False]
