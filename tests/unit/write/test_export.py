from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.errors import JobError, StorageError, VerifyError
from batchwright.core.schemas import CONTRACT_NAMES, JSON_INPUT
from tests.unit.write.stored import Folder, export, prepared, rejections, store


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    # Names that DuckDB takes for a pattern and for a partition.
    return Folder(tmp_path / "k=v [1]*" / "output")


def _refuse(name: str) -> Any:
    raise AssertionError(f"not strict JSON: {name}")


def _lines(paths: list[Path]) -> list[dict[str, Any]]:
    text = b"".join(path.read_bytes() for path in paths).decode()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=_refuse) for line in text.split("\n")[:-1]]


def _export_json(
    folder: Folder, tmp_path: Path, inputs: list[str], kinds: dict[str, set[str]], **settings: Any
) -> tuple[pa.Table, list[dict[str, Any]]]:
    part = store(folder, 0, prepared(inputs), range(len(inputs)))
    common = {"total_rows": len(inputs), "column_kinds": kinds, **settings}
    (path,) = export(folder, tmp_path / "p", [part], **common)
    lines = export(folder, tmp_path / "j", [part], **common, format="jsonl")
    return pq.read_table(path), _lines(lines)


def test_every_row_has_one_line_in_input_order(folder: Folder, tmp_path: Path) -> None:
    source = prepared([f'{{"q": "q{i}"}}' for i in range(6)])
    parts = [store(folder, 1, source, [4, 5], failed=[5]), store(folder, 0, source, [0, 2])]
    rejected = [
        rejections([1], pa.array([None], JSON_INPUT)),
        rejections([3], pa.array(['{"q": "q3"}'], JSON_INPUT)),
    ]
    (path,) = export(folder, tmp_path / "out", parts, rejected=iter(rejected), total_rows=6)
    table = pq.read_table(path)
    assert path.name == "results-00000.parquet"
    assert sorted(p.name for p in path.parent.iterdir()) == [
        ".manifest.json",
        "_SUCCESS",
        path.name,
    ]
    assert table.column_names == [*CONTRACT_NAMES, "q"]
    assert table.column("row").to_pylist() == list(range(6))
    assert table.column("status").to_pylist() == [
        "ok",
        "rejected",
        "ok",
        "rejected",
        "ok",
        "failed",
    ]
    assert table.column("error_code").to_pylist()[1:6:2] == ["bad_json", "bad_json", "timeout"]
    assert table.column("q").to_pylist() == ["q0", None, "q2", "q3", "q4", "q5"]
    lines = _lines(
        export(folder, tmp_path / "j", parts, rejected=rejected, total_rows=6, format="jsonl")
    )
    assert [list(line) for line in lines[:2]] == [[*CONTRACT_NAMES, "q"], [*CONTRACT_NAMES]]


def test_types_follow_the_kinds_of_the_whole_data(folder: Folder, tmp_path: Path) -> None:
    big = 303202010000000000000000000017
    rows = [
        '{"b": true, "i": 9007199254740993, "f": 1, "s": "x", "g": 7, "m": "x", "o": [1, {"a": 1}]}',
        f'{{"b": null, "i": -1, "f": 2.5, "s": null, "g": {big}, "m": 1, "o": {{"n": NaN}}, "n": null}}',
    ]
    kinds = {
        "b": {"bool", "null"},
        "i": {"int"},
        "f": {"int", "float"},
        "s": {"string", "null"},
        "g": {"int", "bigint"},
        "m": {"string", "int"},
        "o": {"list", "object"},
        "n": {"null"},
    }
    table, lines = _export_json(folder, tmp_path, rows, kinds)
    types = {name: str(table.schema.field(name).type) for name in kinds}
    assert types == {
        "b": "bool",
        "i": "int64",
        "f": "double",
        "s": "large_string",
        "g": "large_string",
        "m": "large_string",
        "o": "large_string",
        "n": "large_string",
    }
    assert table.column("i").to_pylist() == [9007199254740993, -1]
    assert table.column("f").to_pylist() == [1.0, 2.5]
    assert table.column("g").to_pylist() == ["7", str(big)]
    assert table.column("m").to_pylist() == ['"x"', "1"]
    assert table.column("o").to_pylist() == ['[1,{"a":1}]', '{"n":null}']
    assert lines[0] | json.loads(rows[0]) == lines[0]
    assert lines[1]["g"] == big
    assert lines[1]["o"] == {"n": None}


def test_nan_stays_in_a_double_column_and_is_null_in_json(folder: Folder, tmp_path: Path) -> None:
    rows = ['{"x": NaN}', '{"x": null}', '{"x": -Infinity}', '{"x": 1e400}', '{"x": 0.5}']
    table, lines = _export_json(folder, tmp_path, rows, {"x": {"float", "null"}})
    nan, null, minus, big, half = table.column("x").to_pylist()
    assert math.isnan(nan)
    assert (null, minus, big, half) == (None, -math.inf, math.inf, 0.5)
    assert [line["x"] for line in lines] == [None, None, None, None, 0.5]


def test_a_wide_integer_turns_a_column_of_floats_into_text(folder: Folder, tmp_path: Path) -> None:
    rows = ['{"x": 9007199254740993}', '{"x": 0.5}', '{"x": NaN}']
    table, _ = _export_json(folder, tmp_path, rows, {"x": {"int", "float"}})
    assert table.column("x").to_pylist() == ["9007199254740993", "0.5", None]
    rejected = iter([rejections([1], pa.array(['{"x": 9007199254740993}'], JSON_INPUT))])
    part = store(folder, 1, prepared(['{"x": 0.5}']), [0])
    kinds = {"x": {"int", "float"}}
    settings: Any = {"rejected": rejected, "column_kinds": kinds, "total_rows": 2}
    (path,) = export(folder, tmp_path / "again", [part], **settings)
    assert pq.read_table(path).column("x").to_pylist() == ["0.5", "9007199254740993"]


def test_digits_beyond_a_double_are_kept_when_lines_are_written_anew(
    folder: Folder, tmp_path: Path
) -> None:
    row = '{"id": 11400714819323198549123, "x": 0.12345678901234567890123, "t": "\\ud800é"}'
    part = store(folder, 0, prepared([row]), [0])
    kinds = {"id": {"bigint"}, "x": {"float"}, "t": {"string"}}
    (path,) = export(
        folder, tmp_path / "j", [part], total_rows=1, column_kinds=kinds, format="jsonl"
    )
    line = path.read_text()
    assert '"input_id":11400714819323198549123,"x":0.12345678901234567890123' in line
    assert json.loads(line)["t"] == "\ufffdé"
    (path,) = export(folder, tmp_path / "p", [part], total_rows=1, column_kinds=kinds)
    assert pq.read_table(path).column("t").to_pylist() == ["\ufffdé"]


def test_data_that_hold_the_separator_are_not_torn(folder: Folder, tmp_path: Path) -> None:
    value = json.dumps({"m": [1, "\x1e\x1ebatchwright", 2], "id": "\x1e\x1ebatchwright"})
    kinds = {"m": {"list"}, "id": {"string"}}
    table, lines = _export_json(folder, tmp_path, [value, '{"m": []}'], kinds)
    assert [json.loads(text) for text in table.column("m").to_pylist()] == [
        json.loads(value)["m"],
        [],
    ]
    assert [line["m"] for line in lines] == [json.loads(value)["m"], []]


def test_text_over_several_lines_becomes_one_line(folder: Folder, tmp_path: Path) -> None:
    inputs = ['  {\n "q": "a"\r}  ', "{}", ' {"q" : "b"} ']
    _, lines = _export_json(folder, tmp_path, inputs, {"q": {"string"}})
    assert [line.get("q") for line in lines] == ["a", None, "b"]


def test_a_clash_with_the_contract_gets_a_prefix_that_is_free(
    folder: Folder, tmp_path: Path
) -> None:
    kinds = {"id": {"int"}, "input_id": {"int"}, "text": {"string"}}
    row = '{"id": 1, "input_id": 2, "text": "t"}'
    table, lines = _export_json(folder, tmp_path, [row], kinds)
    assert table.column_names[-3:] == ["input_input_id", "input_id", "input_text"]
    own = {"input_input_id": 1, "input_id": 2, "input_text": "t"}
    assert table.to_pylist()[0] | own == table.to_pylist()[0]
    assert lines == table.to_pylist()


def test_names_that_differ_by_case_only_are_a_clash(folder: Folder, tmp_path: Path) -> None:
    """DuckDB, Spark and Delta take `Text` for `text`, and would show one in the other's place."""
    row = '{"Text": "t", "STATUS": "s", "a": 1, "A": 2}'
    kinds = {"Text": {"string"}, "STATUS": {"string"}, "a": {"int"}, "A": {"int"}}
    table, lines = _export_json(folder, tmp_path, [row], kinds)
    own = {"input_Text": "t", "input_STATUS": "s", "a": 1, "input_A": 2}
    assert table.to_pylist()[0] | own == table.to_pylist()[0]
    assert lines == table.to_pylist()
    assert len({name.lower() for name in table.column_names}) == len(table.column_names)
    found = duckdb.from_arrow(table).filter("Status = 'ok' and Input_text = 't'")
    assert found.aggregate("count(*)").fetchall() == [(1,)]


@pytest.mark.parametrize(("columns", "own"), [("none", []), (["c", "a"], ["a", "c"]), ([], [])])
def test_columns_are_chosen(folder: Folder, tmp_path: Path, columns: Any, own: list[str]) -> None:
    kinds = {"a": {"int"}, "b": {"int"}, "c": {"int"}}
    rows = ['{"a": 1, "b": 2, "c": 3}']
    table, lines = _export_json(folder, tmp_path, rows, kinds, columns=columns)
    assert table.column_names == [*CONTRACT_NAMES, *own]
    assert list(lines[0]) == [*CONTRACT_NAMES, *own]


def test_an_unknown_column_is_refused_and_a_lost_one_is_noticed(
    folder: Folder, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match="no row has 'z'"):
        _export_json(folder, tmp_path, ['{"q": "a"}'], {"q": {"string"}}, columns=["z"])
    with pytest.raises(VerifyError, match="'new'"):
        _export_json(folder, tmp_path, ['{"q": "a", "new": 1}'], {"q": {"string"}})
    with pytest.raises(VerifyError, match="'q' is not int64"):
        _export_json(folder, tmp_path, ['{"q": "a"}'], {"q": {"int"}})


def test_parquet_columns_keep_their_types(folder: Folder, tmp_path: Path) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=dt.UTC)
    values: dict[str, pa.Array] = {
        "n": pa.array([9007199254740993, None], pa.int64()),
        "x": pa.array([math.nan, None], pa.float64()),
        "when": pa.array([moment, None], pa.timestamp("us", "Europe/Paris")),
        "ns": pa.array([1, None], pa.timestamp("ns")),
        "day": pa.array([dt.date(2026, 1, 2), None]),
        "clock": pa.array([dt.time(1, 2, 3), None]),
        "took": pa.array([-1500, None], pa.duration("ms")),
        "price": pa.array([decimal.Decimal("1.50"), None]),
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
        "word": pa.array(["w", None]).dictionary_encode(),
        "nested": pa.array(
            [[{"at": 1, "b": b"x"}], None],
            pa.list_(pa.struct([("at", pa.timestamp("ms")), ("b", pa.binary())])),
        ),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        "pair": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        "id": pa.array(["a", "b"]),
    }
    struct = pa.StructArray.from_arrays(list(values.values()), list(values))
    source = prepared(struct, struct.type)
    parts = [store(folder, 0, source, [0]), store(folder, 1, source, [1])]
    rejected = [rejections([2], pa.nulls(1, struct.type))]
    common: Any = {"rejected": rejected, "input_type": struct.type, "total_rows": 3}
    (path,) = export(folder, tmp_path / "p", parts, **common)
    table = pq.read_table(path)
    for name, array in values.items():
        got = table.column("input_id" if name == "id" else name)
        kind = pa.string() if name == "word" else array.type
        assert got.type == kind, name
        if name != "x":
            assert got.slice(0, 2).combine_chunks().equals(array.cast(kind)), name
    assert math.isnan(table.column("x")[0].as_py())
    assert table.column("x")[1].as_py() is None
    lines = _lines(export(folder, tmp_path / "j", parts, **common, format="jsonl"))
    own = {name: value for name, value in lines[0].items() if name not in CONTRACT_NAMES}
    assert own == {
        "n": 9007199254740993,
        "x": None,
        "when": "2026-01-02T04:04:05.000600+01:00",
        "ns": "1970-01-01T00:00:00.000000001",
        "day": "2026-01-02",
        "clock": "01:02:03.000000",
        "took": "-PT1.5S",
        "price": "1.50",
        "raw": "AP8=",
        "word": "w",
        "nested": [{"at": "1970-01-01T00:00:00.001", "b": "eA=="}],
        "map": [{"key": "k", "value": 1}],
        "pair": [1, 2],
        "input_id": "a",
    }
    assert list(lines[2]) == list(CONTRACT_NAMES)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (pa.timestamp("us"), ["+294247-01-10T04:00:54.775807", "-290308-12-21T19:59:05.224193"]),
        (pa.timestamp("us", "UTC"), ["+294247-01-10T04:00:54.775807Z", None]),
        (pa.timestamp("ms"), ["+292278994-08-17T07:12:55.807", None]),
        (pa.date32(), ["+5881580-07-11", "-5877641-06-23"]),
    ],
)
def test_times_of_far_years_are_written_as_what_they_are(
    folder: Folder, tmp_path: Path, kind: pa.DataType, texts: list[str | None]
) -> None:
    """Arrow writes some of them as another year, and others as no time at all."""
    whole: Any = pa.int32() if kind == pa.date32() else pa.int64()
    last = 2 ** (whole.bit_width - 1) - 1
    counts = [last, None if texts[1] is None else -last - 1, 0]
    struct = pa.StructArray.from_arrays([pa.array(counts, whole).cast(kind)], ["at"])
    parts = [store(folder, 0, prepared(struct, struct.type), [0, 1, 2])]
    common: Any = {"input_type": struct.type, "total_rows": 3}
    for format in ("jsonl", "csv"):
        (path,) = export(folder, tmp_path / format, parts, **common, format=format)
        for text in texts:
            assert text is None or text in path.read_text()
        assert "1970-01-01" in path.read_text()


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns", "Europe/Paris"), pa.duration("us"), pa.decimal256(60)]
)
def test_a_sorted_merge_keeps_types(tmp_path: Path, kind: pa.DataType, local: bool) -> None:
    folder = Folder(tmp_path / "o", local=local)
    values = (
        pa.array([decimal.Decimal(10**50 + i) for i in range(9)], kind)
        if (pa.types.is_decimal(kind))
        else pa.array([10**15 + i for i in range(9)]).cast(kind)
    )
    struct = pa.StructArray.from_arrays([values], ["v"])
    source = prepared(struct, struct.type)
    common: Any = {"input_type": struct.type, "total_rows": 9}
    apart = [store(folder, 0, source, range(4)), store(folder, 1, source, range(4, 9))]
    (expected,) = export(folder, tmp_path / "a", apart, **common)
    mixed = [store(folder, i + 2, source, range(i, 9, 3)) for i in range(3)]
    (got,) = export(folder, tmp_path / "b", mixed, **common)
    assert got.read_bytes() == expected.read_bytes()
    assert pq.read_table(got).column("v").combine_chunks().equals(values)


def test_the_newest_generation_wins(folder: Folder, tmp_path: Path) -> None:
    source = prepared(['{"q": "x"}'] * 5)
    parts = [
        store(folder, 0, source, range(5), failed=[1, 3]),
        store(folder, 0, source, [1, 3], generation=1, failed=[3]),
        store(folder, 0, source, [3], generation=2),
    ]
    for count, failed in ((1, [1, 3]), (2, [3]), (3, [])):
        (path,) = export(folder, tmp_path / "out", parts[:count], total_rows=5)
        status = pq.read_table(path).column("status").to_pylist()
        assert [i for i, each in enumerate(status) if each == "failed"] == failed


def test_rows_missing_double_or_beyond_are_named(folder: Folder, tmp_path: Path) -> None:
    source = prepared(['{"q": "x"}'] * 6)
    part = store(folder, 0, source, [0, 1, 3])
    with pytest.raises(VerifyError, match="rows without a result: 2, 4, 5"):
        export(folder, tmp_path / "out", [part], total_rows=6)
    with pytest.raises(VerifyError, match="beyond the 2 of the input: 3"):
        export(folder, tmp_path / "out", [part], total_rows=2)
    again = store(folder, 1, source, [1, 2])
    with pytest.raises(VerifyError, match="more than one result: 1"):
        export(folder, tmp_path / "out", [part, again], total_rows=4)
    rejected = [rejections([1, 2], pa.nulls(2, JSON_INPUT))]
    with pytest.raises(VerifyError, match="more than one result: 1"):
        export(folder, tmp_path / "out", [part], rejected=rejected, total_rows=4)
    assert list((tmp_path / "out").iterdir()) == []


def test_files_close_at_the_target_size_and_stale_ones_go(folder: Folder, tmp_path: Path) -> None:
    rows = 5000
    source = prepared([f'{{"q": "{i * 7919}"}}' for i in range(rows)])
    part = store(folder, 0, source, range(rows))
    out = tmp_path / "out"
    common: Any = {"total_rows": rows, "format": "jsonl"}
    lines = export(folder, out, [part], **common, target_file_bytes=300_000)
    assert [path.name for path in lines] == [f"results-{i:05d}.jsonl" for i in range(len(lines))]
    assert 3 <= len(lines) <= 5
    assert [line["row"] for line in _lines(lines)] == list(range(rows))
    common["format"] = "parquet"
    paths = export(folder, out, [part], **common, target_file_bytes=20_000)
    assert len(paths) > 1
    assert {path.name for path in out.iterdir()} == {
        ".manifest.json",
        "_SUCCESS",
        *(path.name for path in paths),
    }
    assert pq.read_table(paths).column("row").to_pylist() == list(range(rows))


def test_no_rows_give_one_empty_file(folder: Folder, tmp_path: Path) -> None:
    (path,) = export(folder, tmp_path / "p", [], total_rows=0)
    assert pq.read_table(path).num_rows == 0
    (path,) = export(folder, tmp_path / "j", [], total_rows=0, format="jsonl")
    assert path.read_bytes() == b""


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_a_full_disk_names_the_path(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    part = store(folder, 0, prepared(['{"q": "x"}']), [0])
    monkeypatch.setattr(
        "batchwright.write.folder.LocalFolder.open",
        lambda self, name: Path("/dev/full").open("wb", buffering=0),  # noqa: SIM115
    )
    with pytest.raises(StorageError, match=r"cannot write .*results-00000.*No space left"):
        export(folder, tmp_path / "out", [part], total_rows=1, format=format)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_unusable_folder_or_part_is_named(folder: Folder, tmp_path: Path) -> None:
    part = store(folder, 0, prepared(['{"q": "x"}']), [0])
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/out"):
        export(folder, tmp_path / "file" / "out", [part], total_rows=1)
    (folder.root / part.file).write_bytes(b"PAR1 torn")
    with pytest.raises(StorageError, match=part.file):
        export(folder, tmp_path / "out", [part], total_rows=1)
