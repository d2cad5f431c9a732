"""Parts to few streams of rows in order: parts that follow each other are one, the rest is sorted.

A run's parts overlap little: in file order they follow each other, and a pilot or a retry lies
across them. They are read side by side as they are. Only where rows ran in another order (grouped
by prefix, by length) does every part hold rows from everywhere; those are sorted on disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.records import Receipt
from batchwright.core.schemas import INPUT_COLUMN
from batchwright.rundir.output_parts import damaged_part
from batchwright.write.ahead import PartStorage, ReadAhead
from batchwright.write.sorted_runs import SortedRuns

# Rows that are read at a time. Small, because rows can be large.
BATCH_ROWS = 1024

# Added to every row while parts of several generations are merged.
GENERATION = "generation"

# Streams that are read side by side without sorting; each has a file open.
_CHAINS_MAX = 16

# Of each column of an open part; without it, a reader takes the whole column of a row group.
_READ_BYTES = 2**18

Chain = list[Receipt]


def part_streams(
    parts: Sequence[Receipt], storage: PartStorage, schema: pa.Schema, scratch: Path
) -> list[Iterator[pa.Table]]:
    """Streams of tables, each in order of rows, that together hold the rows of all parts.

    Args:
        parts: receipts of all generations, in any order.
        storage: where the parts are.
        schema: the part schema; the tables have the column GENERATION more.
        scratch: an empty folder of this machine, for what has to be sorted.
    """
    direct, rest = _choose(chain_parts(parts))
    streams = [_read_chain(chain, storage, schema) for chain in direct]
    if rest:
        streams.append(_sorted(rest, storage, schema, scratch))
    return streams


def chain_parts(parts: Sequence[Receipt]) -> list[Chain]:
    """As few chains as there can be of parts of which each begins after the one before it ends."""
    chains: list[Chain] = []
    ends: list[tuple[int, int]] = []  # last row of a chain, and its place
    for part in sorted((one for one in parts if one.rows), key=_place):
        if ends and ends[0][0] < part.first_row:
            _, place = heapq.heappop(ends)
            chains[place].append(part)
        else:
            place = len(chains)
            chains.append([part])
        heapq.heappush(ends, (part.last_row, place))
    return chains


def _choose(chains: list[Chain]) -> tuple[list[Chain], list[Chain]]:
    """The chains to read as they are, and those to sort.

    Where there are too many, a part alone is one that has rows from everywhere: sorting it costs
    what sorting all the others costs, and an open part costs memory.
    """
    if len(chains) <= _CHAINS_MAX:
        return chains, []
    longest = sorted(chains, key=len, reverse=True)
    direct = [chain for chain in longest[:_CHAINS_MAX] if len(chain) > 1]
    return direct, longest[len(direct) :]


def _place(part: Receipt) -> tuple[int, int, int]:
    return part.first_row, part.generation, part.chunk


def input_arrays(parts: Sequence[Receipt], storage: PartStorage) -> Iterator[pa.Array]:
    """The column `input` of every part, in pieces, in no order of rows."""
    ahead = ReadAhead(storage, [part.file for part in parts])
    for part in parts:
        for batch in read_batches(ahead, part.file, [INPUT_COLUMN]):
            yield batch.column(0)


def read_batches(
    storage: PartStorage, file: str, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, BATCH_ROWS at a time. Raises StorageError."""
    path = storage.local_path(file)
    try:
        source = pa.BufferReader(storage.read(file)) if path is None else pa.OSFile(str(path))
        with source, pq.ParquetFile(source, buffer_size=_READ_BYTES) as parquet:
            yield from parquet.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise damaged_part(file, str(error)) from error


def read_part(part: Receipt, storage: PartStorage, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a part with their generation."""
    field = pa.field(GENERATION, pa.int32())
    for batch in read_batches(storage, part.file):
        table = conform(pa.Table.from_batches([batch]), schema)
        generation = pa.array(np.full(table.num_rows, part.generation, np.int32))
        yield table.append_column(field, generation)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with these columns; those that parts lack (of format 1; `line`) are null."""
    if table.schema.equals(schema):
        return table
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)


def _read_chain(chain: Chain, storage: PartStorage, schema: pa.Schema) -> Iterator[pa.Table]:
    ahead = ReadAhead(storage, [part.file for part in chain])
    for part in chain:
        yield from read_part(part, ahead, schema)


def _sorted(
    chains: Sequence[Chain], storage: PartStorage, schema: pa.Schema, scratch: Path
) -> Iterator[pa.Table]:
    """Rows of many parts in order. Nothing is read before the first of them is asked for."""
    runs = SortedRuns(scratch, ("row", GENERATION))
    # By chunk: rows that ran together lie near each other more often than not.
    parts = [part for chain in chains for part in chain]
    parts.sort(key=lambda one: (one.generation, one.chunk, one.sequence))
    ahead = ReadAhead(storage, [part.file for part in parts])
    for part in parts:
        for table in read_part(part, ahead, schema):
            runs.add(table)
    yield from runs.merged()
