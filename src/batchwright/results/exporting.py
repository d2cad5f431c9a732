"""A run's committed rows to wherever results go: files, a table of a lake, or a reader."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from batchwright.config.job import Job
from batchwright.core.errors import JobError
from batchwright.core.records import OrderBatch
from batchwright.results.responding import responses_of
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.rejected import RejectedRows, column_kinds
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.write.bucket_folder import ResultBucket
from batchwright.write.export import Committed, FileOptions, Say, export_files
from batchwright.write.folder import LocalFolder, ResultStore
from batchwright.write.lakes import LAKES, LakeOptions


def first_pass(state: RunState) -> list[OrderBatch]:
    """The stretches of the order that number the input's rows."""
    return [batch for batch in state.batches if batch.generation == 0]


def committed_rows(
    storage: Storage,
    manifest: Manifest,
    state: RunState,
    *,
    complete: bool = True,
    shaped: bool = True,
) -> Committed:
    """What the run has committed, as far as `state` has read it.

    Args:
        storage: the run directory.
        manifest: its manifest.
        state: its order and receipts.
        complete: whether a row without a result is a fault.
        shaped: whether results are made of the rows: their columns follow from the receipts of all
            prepared parts, which are many in a large run.
    """
    batches = first_pass(state)
    return Committed(
        parts=list(state.receipts.values()),
        rejected=RejectedRows(storage, batches),
        storage=storage,
        input_type=manifest.arrow_input_type(),
        column_kinds=column_kinds(storage, batches) if shaped else {},
        total_rows=state.counts().rows,
        task=Job.model_validate(manifest.job).task_settings(),
        complete=complete,
    )


def export_run(
    storage: Storage,
    manifest: Manifest,
    state: RunState,
    out_dir: Location,
    job: Job,
    say: Say | None = None,
) -> list[Location]:
    """Write the results of a finished run.

    Args:
        storage: the run directory.
        manifest: its manifest.
        state: its order and receipts.
        out_dir: where the results go.
        job: whose section `output` says what they are like.
        say: told how many rows are written.

    Returns:
        The files, or the table.
    """
    committed = committed_rows(storage, manifest, state)
    if job.output.format in LAKES:
        if not isinstance(out_dir, Path):
            raise JobError(
                f"output.path: a table ({job.output.format}) is made in a folder, not in {out_dir}",
                "Write Parquet there, which lakes can take over; or export to a folder.",
            )
        return [_to_lake(committed, out_dir, job, say)]
    options = FileOptions(
        format=job.output.format,
        columns=job.output.columns,
        target_file_bytes=job.output.target_file_mb << 20,
        compression=job.output.codec,
        row_group_mb=job.output.row_group_mb,
        in_order=job.output.order == "input",
        partition_by=tuple(job.output.partition_by),
        responses=responses_of(manifest, job, committed.parts, job.output.format),
    )
    return export_files(committed, result_store(out_dir), options, say)


def result_store(out_dir: Location) -> ResultStore:
    """The store of a place for results."""
    return LocalFolder(out_dir) if isinstance(out_dir, Path) else ResultBucket(out_dir)


def _to_lake(committed: Committed, out_dir: Path, job: Job, say: Say | None) -> Path:
    output = job.output
    options = LakeOptions(
        output.target_file_mb << 20, tuple(output.partition_by), output.codec or "zstd"
    )
    with tempfile.TemporaryDirectory(prefix="batchwright-") as scratch:
        shape = committed.shape(output.columns)
        in_order = output.order == "input"
        tables = committed.rows(committed.schema, Path(scratch), in_order=in_order)
        batches = _shaped(tables, shape.to_table, say)
        return LAKES[output.format](out_dir, shape.schema, batches, options)


def _shaped(
    tables: Iterator[pa.Table], to_table: Callable[[pa.Table], pa.Table], say: Say | None
) -> Iterator[pa.RecordBatch]:
    written = 0
    for part in tables:
        yield from to_table(part).combine_chunks().to_batches()
        written += part.num_rows
        if say is not None:
            say(written)
