"""Rows of results to one file of any name; its ending says the format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.errors import JobError
from batchwright.rundir.locations import Location, is_address
from batchwright.rundir.storage import Storage
from batchwright.write.csv_rows import CsvRows
from batchwright.write.folder import storage_errors
from batchwright.write.results import ResultShape

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".csv": "csv"}


def format_of(place: Location) -> str:
    """The format that a file's name says. Raises JobError."""
    name = str(place).rpartition("/")[2]
    found = FORMATS.get(Path(name).suffix.lower())
    if found is None:
        raise JobError(
            f"-o {place}: the format is not known by its ending",
            f"Name a file that ends in {', '.join(FORMATS)}.",
        )
    return found


def write_one_file(place: Location, shape: ResultShape, tables: Iterable[pa.Table]) -> int:
    """Write rows, and show the file once it is whole.

    Args:
        place: of the file, on a disk or in an object store.
        shape: of the results.
        tables: rows with the columns of a part.

    Returns:
        How many rows it has.

    Raises:
        JobError: its ending is no format.
        StorageError: it cannot be written.
    """
    kind = format_of(place)
    with _file(place) as path, storage_errors(place):
        if kind == "parquet":
            return _parquet(path, shape, tables)
        if kind == "jsonl":
            return _lines(path, b"", shape.to_lines, tables)
        rows = CsvRows(shape)
        return _lines(path, rows.header, rows.to_lines, tables)


@contextmanager
def _file(place: Location) -> Iterator[Path]:
    """A file beside the wanted one, or on this machine, that takes its place at the end."""
    if is_address(place):
        folder, _, name = str(place).rpartition("/")
        with tempfile.TemporaryDirectory(prefix="batchwright-") as scratch:
            local = Path(scratch, name)
            yield local
            Storage(folder).send(name, local)
        return
    path = Path(place).expanduser()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        with storage_errors(path):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _parquet(path: Path, shape: ResultShape, tables: Iterable[pa.Table]) -> int:
    rows = 0
    with pq.ParquetWriter(path, shape.schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(shape.to_table(table))
            rows += table.num_rows
    return rows


def _lines(
    path: Path, header: bytes, to_lines: Callable[[pa.Table], bytes], tables: Iterable[pa.Table]
) -> int:
    rows = 0
    with path.open("wb") as file:
        file.write(header)
        for table in tables:
            file.write(to_lines(table))
            rows += table.num_rows
    return rows
