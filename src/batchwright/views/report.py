"""Writes the report of a run: gathers the facts, asks the diagnosis, draws the page."""

from __future__ import annotations

from pathlib import Path

from batchwright.config.job import Job
from batchwright.core.errors import BatchwrightError
from batchwright.core.report import ReportFacts
from batchwright.diagnose.verdict import diagnose as judge_evidence
from batchwright.pages.blocks import write_page
from batchwright.pages.report import report_page
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.events import Events
from batchwright.rundir.locations import Location, below
from batchwright.rundir.manifest import Manifest, read_manifest
from batchwright.rundir.storage import Storage
from batchwright.views.diagnosis_facts import gather
from batchwright.views.report_facts import gather_report


def write_report(
    storage: Storage, manifest: Manifest, job: Job, page: Path | None = None
) -> tuple[ReportFacts, Location]:
    """Write the report of a run, of whatever state it is in.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job.
        page: file to write; `report.html` in the run directory unless given.

    Returns:
        What the page tells, and where it is.

    Raises:
        StorageError: the page cannot be written, or the run cannot be read.
    """
    facts = gather_report(storage, manifest, job)
    text = report_page(facts, judge_evidence(gather(storage, manifest, job)).findings)
    if page is not None:
        write_page(page, text)
        return facts, page
    storage.put(layout.REPORT, text.encode())
    return facts, below(storage.place, layout.REPORT)


def report_at_the_end(storage: Storage) -> Location | None:
    """The report of a run that has just ended well; None if it could not be made.

    The run is done by now. Neither a full disk nor a fault in a drawing may make it look failed:
    what was wrong stands in the events, and `batchwright report` says it again.
    """
    try:
        manifest = read_manifest(storage)
        _, place = write_report(storage, manifest, Job.model_validate(manifest.job))
    except (
        BatchwrightError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        ArithmeticError,
    ) as error:
        kind = type(error).__name__
        Events(storage, "report", SystemClock()).write("report_failed", reason=f"{kind}: {error}")
        storage.flush_logs()
        return None
    return place
