"""A run for Python: its rows as Arrow, pandas, Polars or DuckDB, while it runs and after."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.errors import JobError
from batchwright.results.exporting import committed_rows
from batchwright.results.fates import WITHOUT_ANSWER, restricted
from batchwright.rundir.locations import Location, location_of
from batchwright.rundir.manifest import Manifest, existing_run
from batchwright.rundir.state import Counts, RunState
from batchwright.rundir.storage import Storage
from batchwright.write.export import Committed

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

Order = Literal["input", "any"]


class OpenedRun:
    """A run directory that is only read.

    Everything here shows the run as it was when it was opened, or last `refresh`ed: committed
    rows only, each with its newest outcome. A run that goes on meanwhile is not disturbed.
    """

    def __init__(self, run_dir: Path | str) -> None:
        """Open a run.

        Raises:
            JobError: the place holds no run.
        """
        self._storage: Storage
        self._manifest: Manifest
        self._storage, self._manifest = existing_run(location_of(str(run_dir)))
        self._state = RunState(self._storage)
        self.refresh()

    def __repr__(self) -> str:
        counts = self.counts()
        state = "complete" if counts.complete else "not complete"
        return f"<run {self.path}: {state}, {counts.settled} of {counts.rows} rows>"

    @property
    def path(self) -> Location:
        """The run directory."""
        return self._storage.place

    @property
    def job(self) -> dict[str, Any]:
        """The resolved job file as plain data."""
        return self._manifest.job

    @property
    def complete(self) -> bool:
        """Whether every row of the input has its fate."""
        return self.counts().complete

    def refresh(self) -> OpenedRun:
        """Look again at what has been committed."""
        self._state.refresh()
        return self

    def counts(self) -> Counts:
        """Rows by fate, tokens, failures by code; the names are those of `status`."""
        return self._state.counts()

    def results(
        self,
        columns: Literal["all", "none"] | Sequence[str] = "all",
        *,
        order: Order = "input",
    ) -> Results:
        """One row for each row of the input that has a fate: ok, failed or rejected.

        Args:
            columns: the input's own columns to keep, beside those that all results have.
            order: `input`, or `any`, which is faster where rows ran in another order.

        Raises:
            JobError: no row has one of `columns`.
        """
        committed = committed_rows(
            self._storage, self._manifest, self._state, complete=self.complete
        )
        return Results(committed, columns, in_order=order == "input")

    def failed(self) -> Results:
        """Only the rows without an answer, failed or rejected, with code and message."""
        found = self.results()
        few = restricted(found.committed, WITHOUT_ANSWER)  # parts without failures are not read
        return replace(found, committed=few, answered=False)

    def to_arrow(self) -> pa.Table:
        """All results as one table in memory."""
        return self.results().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """All results as a pandas frame with Arrow types; needs the extra `pandas`."""
        return self.results().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All results as a Polars frame; needs the extra `polars`."""
        return self.results().to_polars()

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """The results as a relation of DuckDB, which streams them each time it is asked."""
        return self.results().to_duckdb(connection)


@dataclass(frozen=True, slots=True)
class Results:
    """Rows of results that are read anew each time they are gone through.

    It is an Arrow stream by itself (`__arrow_c_stream__`): Polars, pandas, DuckDB and pyarrow take
    it as it is.

    Attributes:
        committed: the rows.
        columns: the input's own columns to keep.
        in_order: whether rows come in input order.
        answered: False for rows without an answer only.
    """

    committed: Committed
    columns: Literal["all", "none"] | Sequence[str] = "all"
    in_order: bool = True
    answered: bool = True

    @property
    def schema(self) -> pa.Schema:
        """Columns and types; of JSON input, by the values seen so far."""
        return self.committed.shape(self.columns).schema

    def reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches, in little memory."""
        shape = self.committed.shape(self.columns)
        return pa.RecordBatchReader.from_batches(shape.schema, self._batches(shape.to_table))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches."""
        return iter(self.reader())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for any library that knows Arrow's PyCapsule interface."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows as one table in memory."""
        return self.reader().read_all()

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame, with Arrow types: integers stay integers beside nulls."""
        try:
            import pandas as pd
        except ImportError as error:
            raise _missing("pandas", error) from error
        frame: pd.DataFrame = self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
        return frame

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars frame."""
        try:
            import polars as pl
        except ImportError as error:
            raise _missing("polars", error) from error
        return pl.DataFrame(self.reader())

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """The rows as a relation of DuckDB, which streams them each time it is asked.

        Args:
            connection: where the relation lives; DuckDB's own default connection unless given.
        """
        import duckdb

        wide = _Widened(self)
        source = connection or duckdb.default_connection()
        return source.from_arrow(wide)

    def _batches(self, to_table: Any) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryDirectory(prefix="batchwright-") as scratch:
            rows = self.committed.rows(self.committed.schema, Path(scratch), in_order=self.in_order)
            for part in rows:
                wanted = part if self.answered else _without_answer(part)
                if wanted.num_rows:
                    yield from to_table(wanted).combine_chunks().to_batches()


@dataclass(frozen=True, slots=True)
class _Widened:
    """Results for DuckDB, which has no type for halves of a float."""

    results: Results

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = self.results.reader()
        schema = pa.schema([field.with_type(_wider(field.type)) for field in reader.schema])
        return reader.cast(schema).__arrow_c_stream__(requested_schema)


def _wider(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_fixed_size_list(kind) and pa.types.is_float16(kind.value_type):
        return pa.list_(pa.float32(), kind.list_size)
    return kind


def _without_answer(part: pa.Table) -> pa.Table:
    return part.filter(pc.not_equal(part.column("status"), "ok"))


def _missing(package: str, error: ImportError) -> JobError:
    return JobError(
        f"this needs {package}, which is not installed ({error})",
        f"pip install 'batchwright[{package}]'",
    )
