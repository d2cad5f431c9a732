"""An external sort of rows: sorted runs on disk, merged again in bounded memory.

Arrow's own files keep every type as it is, which a database between would not (DuckDB reads
decimals of 256 bits as doubles), and the memory is what the constants here say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.core.errors import StorageError

Keys = npt.NDArray[np.int64]

# Of rows that are sorted in memory: a run. About three times as much is in use meanwhile.
RUN_BYTES = 128 * 2**20

# Tables that have just been read take up to twice the memory of what they hold, until packed.
_PACKED_BYTES = 8 * 2**20

# A run is read back in pieces of this size, one of each run at a time.
PIECE_BYTES = 2**19

# So many runs are made into one longer run: 256 pieces of 512 KiB are in memory at a time.
FAN_IN = 256

# Rows that leave the merge at a time.
_STEP_BYTES = 16 * 2**20


class SortedRuns:
    """Takes tables of one schema in any order and gives them back sorted.

    Args:
        scratch: an empty folder of this machine.
        keys: names of two integer columns to sort by.
    """

    def __init__(self, scratch: Path, keys: tuple[str, str]) -> None:
        self._scratch = scratch
        self._keys = keys
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._loose: list[pa.Table] = []
        self._loose_bytes = 0
        self._runs: list[Path] = []
        self._longer: list[Path] = []
        self._count = 0
        self._seen = _Seen()

    def add(self, table: pa.Table) -> None:
        """Take some rows. Raises StorageError when the disk is full."""
        self._loose.append(table)
        self._loose_bytes += table.nbytes
        if self._loose_bytes >= _PACKED_BYTES:
            self._pack()
        self._seen.add(table.column(self._keys[0]).to_numpy())
        if self._bytes >= RUN_BYTES:
            self._write_run()

    def merged(self) -> Iterator[pa.Table]:
        """All rows, sorted. Raises StorageError."""
        self._pack()
        if not (self._runs or self._longer):
            if self._tables:
                yield self._sort()
            return
        if self._tables:
            self._write_run()
        yield from self._merge([*self._longer, *self._runs])

    def _pack(self) -> None:
        if self._loose:
            self._tables.append(pa.concat_tables(self._loose).combine_chunks())
        self._bytes += self._loose_bytes
        self._loose, self._loose_bytes = [], 0

    def _sort(self) -> pa.Table:
        table = pa.concat_tables(self._tables).combine_chunks()
        self._tables, self._bytes = [], 0
        return table.take(_order(table, self._keys))

    def _write_run(self) -> None:
        self._runs.append(self._write(iter([self._sort()])))
        pa.default_memory_pool().release_unused()
        if len(self._runs) == FAN_IN:
            longer = self._write(self._merge(self._runs))
            for path in self._runs:
                path.unlink()
            self._longer.append(longer)
            self._runs = []

    def _write(self, tables: Iterator[pa.Table]) -> Path:
        path = self._scratch / f"run-{self._count:06d}.arrow"
        self._count += 1
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
        try:
            first = next(tables)
            with (
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_stream(sink, first.schema, options=options) as writer,
            ):
                for table in itertools.chain([first], tables):
                    for piece in _pieces(table):
                        writer.write_table(piece)
        except OSError as error:
            raise _no_room(self._scratch, error) from error
        return path

    def _merge(self, paths: Sequence[Path]) -> Iterator[pa.Table]:
        """Rows of sorted runs, taken from all of them up to a common limit, again and again."""
        readers = [RunReader(_read(path, self._scratch), self._keys[0]) for path in paths]
        readers = [reader for reader in readers if reader.refill()]
        while readers:
            limit = min(int(one.keys[0]) for one in readers) + self._step(readers)
            taken = [table for one in readers for table in one.rows_below(limit)]
            table = pa.concat_tables(taken).combine_chunks()
            yield table.take(_order(table, self._keys))
            readers = [reader for reader in readers if reader.refill()]

    def _step(self, readers: Sequence[RunReader]) -> int:
        """How far to go at once: about _STEP_BYTES, by the size of the rows that come next."""
        rows = sum(len(one.keys) for one in readers)
        row_bytes = sum(one.bytes_in_hand for one in readers) / rows
        return max(int(_STEP_BYTES / max(row_bytes, 1) * self._seen.keys_per_row), 1)


class _Seen:
    """How densely the keys lie, so that a step has enough rows."""

    def __init__(self) -> None:
        self._rows = 0
        self._first = np.iinfo(np.int64).max
        self._last = np.iinfo(np.int64).min

    def add(self, keys: Keys) -> None:
        if len(keys):
            self._rows += len(keys)
            self._first = min(self._first, int(keys.min()))
            self._last = max(self._last, int(keys.max()))

    @property
    def keys_per_row(self) -> float:
        # Where they lie more densely than on average, a step has up to so many times the rows.
        return min(max((self._last - self._first + 1) / max(self._rows, 1), 1.0), 8.0)


class RunReader:
    """Takes a stream of tables, sorted by a column, apart at given values."""

    def __init__(self, tables: Iterator[pa.Table], key: str) -> None:
        self.keys: Keys = np.empty(0, np.int64)
        self._tables = tables
        self._table: pa.Table | None = None
        self._key = key

    def refill(self) -> bool:
        """Have a row in hand; False at the end."""
        while not len(self.keys):
            self._table = next(self._tables, None)
            if self._table is None:
                return False
            self.keys = self._table.column(self._key).to_numpy().astype(np.int64, copy=False)
        return True

    @property
    def bytes_in_hand(self) -> int:
        """Size of the rows in hand."""
        return 0 if self._table is None else int(self._table.nbytes)

    def rows_below(self, limit: int) -> Iterator[pa.Table]:
        """The rows not yet taken whose key is smaller than `limit`."""
        while self.refill() and self.keys[0] < limit:
            assert self._table is not None
            cut = int(np.searchsorted(self.keys, limit))
            yield self._table.slice(0, cut)
            self._table, self.keys = self._table.slice(cut), self.keys[cut:]


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The table in pieces of about PIECE_BYTES, by what each of them holds."""
    if table.num_rows <= 1 or table.nbytes <= PIECE_BYTES:
        yield table
        return
    half = table.num_rows // 2
    yield from _pieces(table.slice(0, half))
    yield from _pieces(table.slice(half))


def _order(table: pa.Table, keys: tuple[str, str]) -> npt.NDArray[np.intp]:
    major, minor = (table.column(name).to_numpy() for name in keys)
    order: npt.NDArray[np.intp] = np.lexsort((minor, major))
    return order


def _read(path: Path, scratch: Path) -> Iterator[pa.Table]:
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        raise _no_room(scratch, error) from error


def _no_room(scratch: Path, error: Exception) -> StorageError:
    return StorageError(
        f"cannot sort the rows in {scratch}: {error}",
        "Sorting takes about as much room as the parts. Free some, or export with order=any.",
    )
