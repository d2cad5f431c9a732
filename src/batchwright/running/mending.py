"""What a power cut or a hand has damaged in a run directory: removed, or made again from the same input."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.config.job import Job
from batchwright.core.errors import StorageError
from batchwright.core.records import OrderedPart
from batchwright.equip.equipment import job_tokenizer
from batchwright.prepare import Preparer
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.events import Events
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.mend import remove_torn_files
from batchwright.rundir.prepared import ordered_receipts
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage


def mend(storage: Storage, manifest: Manifest, job: Job) -> None:
    """Remove what a power cut tore, make again what was lost, and note both.

    What a torn receipt stood for is done again; rows of prepared parts keep their numbers and answers.
    """
    events = Events(storage, "mend", SystemClock())
    for path in remove_torn_files(storage):
        events.write("torn_file_removed", path=path)
    for path in _remake_prepared(storage, manifest, job):
        events.write("prepared_again", path=path)


def _remake_prepared(storage: Storage, manifest: Manifest, job: Job) -> list[str]:
    """Prepare again what the order names and is not there; the rows keep their numbers and answers.

    Returns:
        The receipts of the parts that were made.

    Raises:
        StorageError: they are not what they were.
        InputError: the input is not what it was.
    """
    state = RunState(storage)
    state.refresh_order()
    named = [part for batch in state.batches for part in batch.parts]
    there = {f"{layout.PREPARED}/{name}" for name in storage.names(layout.PREPARED)}
    lost = [one for one in named if layout.prepared_receipt(one.split, one.part) not in there]
    if not lost:
        return []
    preparer = Preparer(storage, manifest, job, job_tokenizer(job))
    for split in sorted({part.split for part in lost}):
        for _ in preparer.prepare(manifest.splits[split]):
            pass
    _compare(storage, lost, limited=job.input.limit is not None)
    return [layout.prepared_receipt(part.split, part.part) for part in lost]


def _compare(storage: Storage, lost: Sequence[OrderedPart], *, limited: bool) -> None:
    for part, receipt in zip(lost, ordered_receipts(storage, lost), strict=True):
        same = receipt.rows >= part.rows if limited else receipt.rows == part.rows
        if not same:
            raise StorageError(
                f"{receipt.file} was lost, and made again it has {receipt.rows:,} rows, not {part.rows:,}",
                "Use the batchwright that began the run, or start again in another run directory (--dir).",
            )
