"""Keys of rows, sorted on disk: more of them than fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.errors import StorageError

_SORT_MEMORY = "512MB"
_THREADS = 2

SORTED_ROWS = 1 << 16

KEYS = pa.schema(
    [
        pa.field("seq", pa.int64()),
        pa.field("key", pa.large_binary()),
        pa.field("prompt", pa.int32()),
        pa.field("cap", pa.int32()),
    ]
)


class KeyFile:
    """Takes rows' keys in the order in which they wait, and gives them back sorted.

    Args:
        folder: an empty folder, for the keys and for what the sort has to put down.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "keys.parquet"
        self._writer = pq.ParquetWriter(self._path, KEYS, compression="lz4", use_dictionary=False)
        self.rows = 0

    def add(
        self,
        keys: pa.LargeBinaryArray,
        prompts: npt.NDArray[np.int32],
        caps: npt.NDArray[np.int32],
    ) -> None:
        """Add the next rows; `seq` counts them from 0."""
        seq = np.arange(self.rows, self.rows + len(keys))
        self._writer.write_table(pa.table([pa.array(seq), keys, prompts, caps], schema=KEYS))
        self.rows += len(keys)

    def close(self) -> None:
        """Everything is added."""
        self._writer.close()

    def __enter__(self) -> KeyFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def sorted(self, skip: int) -> Iterator[pa.RecordBatch]:
        """All rows but the first `skip`, by key and, where that is equal, as they came.

        Raises:
            StorageError: the disk is full, or a file is damaged.
        """
        import duckdb

        config: dict[str, Any] = {
            "memory_limit": _SORT_MEMORY,
            "temp_directory": str(self._folder / "spill"),
            "threads": _THREADS,
            "autoinstall_known_extensions": False,
        }
        try:
            with duckdb.connect(config=config) as connection:
                # Arrow, not a file name: DuckDB would take a `*` or `[` in it as a pattern.
                keys = connection.from_arrow(_reader(self._path))
                found = keys.filter(f"seq >= {skip:d}").order("key, seq")
                for batch in found.to_arrow_reader(SORTED_ROWS):
                    yield pa.Table.from_batches([batch]).cast(KEYS).to_batches()[0]
        except (duckdb.Error, OSError) as error:
            raise StorageError(f"cannot sort rows in {self._folder}: {error}") from error


def _reader(path: Path) -> pa.RecordBatchReader:
    file = pq.ParquetFile(path)
    return pa.RecordBatchReader.from_batches(KEYS, file.iter_batches(use_threads=False))
