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
from batchwright.core.media import media_tokens
from batchwright.core.media_counts import media_token_column
from batchwright.core.records import GROUPED, OrderedPart, PreparedReceipt, Request, Slice, Split
from batchwright.rundir import artifacts, layout
from batchwright.rundir.storage import Storage

# Row numbers of grouped rows; see `records.GROUPED`.
ROW_COLUMN = "row"


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


def ordered_receipts(storage: Storage, parts: Sequence[OrderedPart]) -> list[PreparedReceipt]:
    """Receipts of many prepared parts. Raises StorageError if one is gone."""
    if storage.is_local:
        return [ordered_receipt(storage, part) for part in parts]
    paths = [layout.prepared_receipt(part.split, part.part) for part in parts]
    bodies = storage.read_each(paths)
    found = zip(bodies, paths, strict=True)
    return [artifacts.load(PreparedReceipt, body, path) for body, path in found]


def paths_of(
    storage: Storage,
    part: OrderedPart,
    splits: Sequence[Split],
    indexes: Sequence[int] | npt.NDArray[np.int64],
) -> list[str]:
    """The input file of each of some rows of a prepared part.

    Args:
        storage: of the run.
        part: that the rows lie in.
        splits: of the run.
        indexes: places in the part.
    """
    split = splits[part.split]
    if not split.also or not len(indexes):
        return [part.path] * len(indexes)
    file_rows = np.array(ordered_receipt(storage, part).file_rows, dtype=np.int64).reshape(-1, 2)
    found = np.searchsorted(np.cumsum(file_rows[:, 1]), indexes, side="right")
    return [split.paths[place] for place in file_rows[found, 0].tolist()]


def rows_are_coming(storage: Storage) -> bool:
    """Whether a prepared part holds a row that will run."""
    for name in storage.names(layout.PREPARED):
        if not name.endswith(".json"):
            continue
        path = f"{layout.PREPARED}/{name}"
        receipt = artifacts.load(PreparedReceipt, storage.read(path), path)
        if receipt.rows > receipt.rejected:
            return True
    return False


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
            "Delete that file and run the same command again: it is made again, as it was."
            if layout.is_prepared_part(file)
            else "The rows run in its order: start again in another run directory (--dir).",
        ) from error


def _open(storage: Storage, file: str, columns: Sequence[str]) -> pa.ipc.RecordBatchFileReader:
    local = storage.local_path(file)
    # From an object store it is read as a whole: the next chunks lie in it too.
    source = pa.py_buffer(storage.read_kept(file)) if local is None else pa.memory_map(str(local))
    if not columns:
        return pa.ipc.open_file(source)
    schema = pa.ipc.open_file(source).schema
    # Runs of format 1 lack the column `extras`.
    wanted = [schema.get_field_index(name) for name in columns if name in schema.names]
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
            table = read_columns(storage, piece.part, ["token_ids", "extras"])
            counted = pa.compute.list_value_length(table.column("token_ids")).to_numpy()
            media = media_token_column(table.column("extras"))
            lengths[piece.part] = counted.astype(np.int64) + media
    found = [lengths[piece.part][piece.start : piece.stop] for piece in slices]
    return np.concatenate([np.empty(0, np.int64), *found])


def row_numbers(storage: Storage, slices: Sequence[Slice]) -> npt.NDArray[np.int64]:
    """Row number of each row of some slices, in their order."""
    columns: dict[str, npt.NDArray[np.int64]] = {}
    found: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    for piece in slices:
        if piece.first_row != GROUPED:
            found.append(np.arange(piece.start, piece.stop, dtype=np.int64) + piece.first_row)
            continue
        if piece.part not in columns:
            column = read_columns(storage, piece.part, [ROW_COLUMN]).column(0)
            columns[piece.part] = column.to_numpy()
        found.append(columns[piece.part][piece.start : piece.stop])
    return np.concatenate(found)


def record_batches(
    storage: Storage, slices: Sequence[Slice], columns: Sequence[str] = ()
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    """All rows of some slices of parts in file order, with their row numbers, piece by piece.

    Each record batch is read once, however many slices lie in it.
    """
    for file, pieces in itertools.groupby(slices, lambda piece: piece.part):
        of_part = list(pieces)
        indexes = np.concatenate([np.arange(one.start, one.stop) for one in of_part])
        reader = open_part(storage, file, columns)
        first = 0
        for number in range(reader.num_record_batches):
            with reading(file):
                batch = reader.get_batch(number)
            low, high = np.searchsorted(indexes, [first, first + batch.num_rows])
            chosen = indexes[low:high]
            if len(chosen):
                taken = batch if len(chosen) == batch.num_rows else _take(batch, chosen - first)
                yield taken, chosen + of_part[0].first_row
            first += batch.num_rows
            if first > indexes[-1]:
                break


def _take(batch: pa.RecordBatch, indexes: npt.NDArray[np.int64]) -> pa.RecordBatch:
    if indexes[-1] - indexes[0] == len(indexes) - 1:
        return batch.slice(int(indexes[0]), len(indexes))
    return batch.take(pa.array(indexes))


def read_slices(
    storage: Storage, slices: Sequence[Slice]
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The prepared rows of a chunk and their row numbers, in the chunk's order."""
    # Each part is read once, from its start to its end; a pilot's rows are in another order.
    by_place = sorted(range(len(slices)), key=lambda n: (slices[n].part, slices[n].start))
    table, numbers = _read_in_order(storage, [slices[n] for n in by_place])
    if by_place == list(range(len(slices))):
        return table, numbers
    sizes = np.array([slices[n].stop - slices[n].start for n in by_place])
    firsts = dict(zip(by_place, (np.cumsum(sizes) - sizes).tolist(), strict=True))
    places = np.concatenate(
        [firsts[n] + np.arange(one.stop - one.start) for n, one in enumerate(slices)]
    )
    return table.take(pa.array(places)), numbers[places]


def _read_in_order(
    storage: Storage, slices: Sequence[Slice]
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    tables: list[pa.Table] = []
    numbers: list[npt.NDArray[np.int64]] = []
    opened: dict[str, _Part] = {}
    for piece in slices:
        if piece.part not in opened:
            opened[piece.part] = _Part(open_part(storage, piece.part))
        with reading(piece.part):
            rows = opened[piece.part].rows(piece.start, piece.stop)
        if piece.first_row == GROUPED:
            numbers.append(rows.column(ROW_COLUMN).to_numpy())
            rows = rows.drop_columns([ROW_COLUMN])
        else:
            numbers.append(np.arange(piece.start, piece.stop, dtype=np.int64) + piece.first_row)
        tables.append(rows)
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return table, np.concatenate(numbers)


class _Part:
    """A prepared part read from its start to its end, each record batch decompressed once.

    A pilot's chunk has its rows all over a part: to look for each of them from the start took
    seconds a chunk.
    """

    def __init__(self, reader: pa.ipc.RecordBatchFileReader) -> None:
        self._reader = reader
        self._index = 0
        self._first = 0  # row of the part at which the batch begins
        self._batch: pa.RecordBatch | None = None

    def rows(self, start: int, stop: int) -> pa.Table:
        """Rows [start, stop)."""
        if start < self._first:
            self._index, self._first, self._batch = 0, 0, None
        found = []
        while self._index < self._reader.num_record_batches:
            batch = self._batch
            if batch is None:
                batch = self._batch = self._reader.get_batch(self._index)
            after = self._first + batch.num_rows
            if self._first < stop and after > start:
                low = max(start - self._first, 0)
                found.append(batch.slice(low, min(stop - self._first, batch.num_rows) - low))
            if after >= stop:
                break
            self._index, self._first, self._batch = self._index + 1, after, None
        return pa.Table.from_batches(found, self._reader.schema)


def make_requests(prepared: pa.Table, rows: npt.NDArray[np.int64]) -> Iterator[Request]:
    """Prepared rows to requests, in order."""
    caps = prepared.column("max_tokens").to_pylist()
    sampling = prepared.column("sampling").to_pylist()
    extras = extras_of(prepared)
    columns = zip(rows.tolist(), token_id_arrays(prepared), caps, sampling, extras, strict=True)
    return (
        Request(row, ids, cap, fields, more, (), media_tokens(more))
        for row, ids, cap, fields, more in columns
    )


def extras_of(prepared: pa.Table) -> list[str]:
    """What the engine needs of each row besides its tokens; runs of format 1 have none."""
    if "extras" not in prepared.column_names:
        return [""] * prepared.num_rows
    column = prepared.column("extras")
    if column.null_count == len(column):
        return [""] * len(column)
    return [value or "" for value in column.to_pylist()]


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
