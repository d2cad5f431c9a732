"""What goes into any format comes out of it: the same rows, whatever the values are."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv
from pyarrow.dataset import partitioning

from tests.unit.write.stored import Folder, export, prepared, store

# Without lone surrogates, which no UTF-8 has, and NUL, at which readers of CSV differ.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
VALUES = st.fixed_dictionaries(
    {
        "t": st.none() | TEXTS | st.sampled_from(['"', ",", "\r\n", "nan", "NULL", " x ", "=1"]),
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "o": st.none() | st.lists(st.integers(0, 9) | TEXTS, max_size=3),
    }
)
KINDS = {
    "t": {"string", "null"}, "i": {"int", "null"}, "f": {"float", "null"}, "b": {"bool", "null"},
    "o": {"list", "null"},
}  # fmt: skip
PACKED = {
    ".gz": gzip.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


def _plain(path: Path) -> bytes:
    return PACKED.get(path.suffix, bytes)(path.read_bytes())


def _from_csv(path: Path) -> list[dict[str, Any]]:
    path.with_suffix(".plain").write_bytes(_plain(path))
    table = csv.read_csv(
        path.with_suffix(".plain"),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
            column_types={"t": "string", "i": "int64", "f": "float64", "b": "bool", "o": "string"},
        ),
    )  # fmt: skip
    return list(table.to_pylist())


def _from_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _plain(path).split(b"\n")[:-1]]


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(VALUES, min_size=1, max_size=8),
    compression=st.sampled_from(["none", "gzip", "zstd"]),
)
def test_each_format_gives_the_values_back(rows: list[dict[str, Any]], compression: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folder = Folder(root / "o")
        parts = [store(folder, 0, prepared([json.dumps(row) for row in rows]), range(len(rows)))]
        common: Any = {"total_rows": len(rows), "column_kinds": KINDS, "compression": compression}
        read: dict[str, Any] = {
            "csv": _from_csv, "jsonl": _from_jsonl, "parquet": lambda path: pq.read_table(path).to_pylist(),
        }  # fmt: skip
        for format, reader in read.items():
            (path,) = export(folder, root / format, parts, format=format, **common)
            found = reader(path)
            for row, back in zip(rows, found, strict=True):
                # Nested values are JSON text in tables, and values in JSON lines.
                nested = back["o"] if format == "jsonl" else json.loads(back["o"] or "null")
                own = {**{key: back[key] for key in "tifb"}, "o": nested}
                assert own == row, format


LABELS = (
    st.none()
    | st.sampled_from(["good", "bad", "a/b", "x=y", "%41", "é ", "None", "."])
    | TEXTS.filter(bool)
)


@settings(max_examples=10, deadline=None)
@given(labels=st.lists(LABELS, min_size=1, max_size=12))
def test_folders_by_value_give_the_values_back(labels: list[str | None]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folder = Folder(root / "o")
        rows = [json.dumps({"label": f"v{label}" if label else label}) for label in labels]
        parts = [store(folder, 0, prepared(rows), range(len(rows)))]
        common: Any = {"total_rows": len(rows), "column_kinds": {"label": {"string", "null"}}}
        export(folder, root / "p", parts, partition_by=("label",), **common)
        # A reader that is told the type: of missing values alone, pyarrow guesses none.
        labelled = partitioning(pa.schema([("label", pa.string())]), flavor="hive")
        table = pq.read_table(root / "p", partitioning=labelled)
        found = sorted(table.to_pylist(), key=lambda row: row["row"])
        assert [row["label"] for row in found] == [f"v{one}" if one else one for one in labels]
