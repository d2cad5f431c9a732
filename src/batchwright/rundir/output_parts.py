"""Output parts read whole, and what is said of one that is damaged."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.errors import StorageError
from batchwright.rundir import layout
from batchwright.rundir.storage import Storage


def read_output_part(storage: Storage, file: str, columns: Sequence[str]) -> pa.Table:
    """Those of some columns that an output part has. Raises StorageError if it is damaged or gone."""
    data = storage.read_if_there(file)
    if data is None:
        raise damaged_part(file, "there is no such file")
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as part:
            there = set(part.schema_arrow.names)
            return part.read(columns=[name for name in columns if name in there])
    except (OSError, pa.ArrowException) as error:
        raise damaged_part(file, str(error)) from error


def damaged_part(file: str, reason: str) -> StorageError:
    """The error that names a part, and how its rows are had again."""
    chunk = layout.chunk_of_part(file.rpartition("/")[2])
    return StorageError(
        f"part {file} cannot be read: {(reason.splitlines() or ['no reason'])[0]}",
        f"Delete {layout.RECEIPTS}/{chunk}.json (and .1.json, …, if there are any), then `batchwright run`: "
        "the rows of that chunk are run again.",
    )
