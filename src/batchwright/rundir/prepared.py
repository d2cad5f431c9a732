"""Read prepared parts: whole, or the rows of a chunk."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.core.errors import StorageError
from batchwright.core.records import OrderedPart, PreparedReceipt, Request, Slice
from batchwright.rundir import artifacts, layout
from batchwright.rundir.storage import Storage


def prepared_receipt(storage: Storage, split: int, part: int) -> PreparedReceipt | None:
    """Receipt of a prepared part, or None if it is not there yet."""
    path = layout.prepared_receipt(split, part)
    raw = storage.read_if_there(path)
    return None if raw is None else artifacts.load(PreparedReceipt, raw, path)


def ordered_receipt(storage: Storage, part: OrderedPart) -> PreparedReceipt:
    """Receipt of a prepared part that the order names. Raises StorageError if it is gone."""
    receipt = prepared_receipt(storage, part.split, part.part)
    if receipt is None:
        raise StorageError(
            f"{layout.prepared_receipt(part.split, part.part)} is missing, but the order names it",
            "Put it back, or start again in another run directory.",
        )
    return receipt


def open_part(
    storage: Storage, file: str, columns: Sequence[str] = ()
) -> pa.ipc.RecordBatchFileReader:
    """A prepared part; only what is asked of it is read and decompressed."""
    with reading(file):
        return _open(storage, file, columns)


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Damage found while reading, as an error that names the file."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise StorageError(
            f"{file} is damaged: {str(error).splitlines()[0]}",
            "The rows in it were numbered by it: start again in another run directory.",
        ) from error


def _open(storage: Storage, file: str, columns: Sequence[str]) -> pa.ipc.RecordBatchFileReader:
    local = storage.local_path(file)
    source = pa.py_buffer(storage.read(file)) if local is None else pa.memory_map(str(local))
    if not columns:
        return pa.ipc.open_file(source)
    schema = pa.ipc.open_file(source).schema
    wanted = [schema.get_field_index(name) for name in columns]
    return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=wanted))


def read_columns(storage: Storage, file: str, columns: Sequence[str]) -> pa.Table:
    """Some columns of a prepared part."""
    reader = open_part(storage, file, columns)
    with reading(file):
        return reader.read_all()


def prompt_lengths(storage: Storage, slices: Sequence[Slice]) -> npt.NDArray[np.int64]:
    """Prompt tokens of each row of some slices, in their order."""
    lengths: dict[str, npt.NDArray[np.int64]] = {}
    for piece in slices:
        if piece.part not in lengths:
            column = read_columns(storage, piece.part, ["token_ids"]).column(0)
            counted = pa.compute.list_value_length(column).to_numpy()
            lengths[piece.part] = counted.astype(np.int64)
    found = [lengths[piece.part][piece.start : piece.stop] for piece in slices]
    return np.concatenate([np.empty(0, np.int64), *found])


def read_slices(
    storage: Storage, slices: Sequence[Slice]
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The prepared rows of a chunk and their row numbers, in the chunk's order."""
    tables: list[pa.Table] = []
    numbers = []
    opened: dict[str, pa.ipc.RecordBatchFileReader] = {}
    for piece in slices:
        if piece.part not in opened:
            opened[piece.part] = open_part(storage, piece.part)
        with reading(piece.part):
            tables.append(_rows(opened[piece.part], piece.start, piece.stop))
        numbers.append(np.arange(piece.start, piece.stop, dtype=np.int64) + piece.first_row)
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return table, np.concatenate(numbers)


def _rows(reader: pa.ipc.RecordBatchFileReader, start: int, stop: int) -> pa.Table:
    """Rows [start, stop): only the record batches that hold them are decompressed."""
    batches = []
    first = 0
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        after = first + batch.num_rows
        if first < stop and after > start:
            low, high = max(start - first, 0), min(stop - first, batch.num_rows)
            batches.append(batch.slice(low, high - low))
        first = after
        if first >= stop:
            break
    return pa.Table.from_batches(batches, reader.schema)


def make_requests(prepared: pa.Table, rows: npt.NDArray[np.int64]) -> Iterator[Request]:
    """Prepared rows to requests, in order."""
    caps = prepared.column("max_tokens").to_pylist()
    sampling = prepared.column("sampling").to_pylist()
    columns = zip(rows.tolist(), token_id_arrays(prepared), caps, sampling, strict=True)
    return (Request(*columns_of_row) for columns_of_row in columns)


def token_id_arrays(prepared: pa.Table) -> list[array[int]]:
    """The prompts of prepared rows, 4 bytes a token: lists of a chunk could take gigabytes."""
    arrays: list[array[int]] = []
    for chunk in prepared.column("token_ids").chunks:
        offsets = chunk.offsets.to_numpy()
        base = int(offsets[0])
        flat = array("i")
        flat.frombytes(chunk.values.slice(base, int(offsets[-1]) - base).to_numpy().tobytes())
        edges = (offsets - base).tolist()
        arrays += [flat[start:stop] for start, stop in itertools.pairwise(edges)]
    return arrays


def with_row_ids(prepared: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Rows without an id of their own are known by their number."""
    ids = prepared.column("id")
    if ids.null_count == 0:
        return prepared
    numbers = pa.array(rows).cast(pa.large_string())
    filled = pa.compute.coalesce(ids, numbers)
    return prepared.set_column(prepared.schema.get_field_index("id"), "id", filled)
