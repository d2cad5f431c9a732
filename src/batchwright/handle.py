"""The commands from Python: a job, and what can be done with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchwright.cli import render
from batchwright.cli.ending import stopping
from batchwright.cli.options import completed, job_and_dir, run_dir_of
from batchwright.cli.watching import watching
from batchwright.config.load import make_job
from batchwright.rundir.locations import location_of

if TYPE_CHECKING:
    from batchwright.config.job import Job
    from batchwright.core.pilot import PilotReport
    from batchwright.core.plan import Plan
    from batchwright.core.profile import LengthProfile
    from batchwright.deliver import Summary
    from batchwright.diagnose.verdict import Diagnosis
    from batchwright.foresight.check import Validation
    from batchwright.results.from_python import OpenedRun
    from batchwright.rundir.locations import Location
    from batchwright.running.drive import Progress
    from batchwright.views.looking import Standing
    from batchwright.write.verify import Verification


class JobHandle:
    """A job and its run directory; each method is the command of that name.

    They wait until they are done, and show on stderr how far they are. In the main thread Ctrl-C and
    SIGTERM end them early but cleanly, as they do a command.

    Attributes:
        settings: the resolved job.
        run_dir: where its run lives, or will live.
    """

    def __init__(self, settings: Job, run_dir: Location) -> None:
        self.settings = settings
        self.run_dir = run_dir

    def __repr__(self) -> str:
        return f"<job {self.settings.name}: {self.run_dir}>"

    def validate(self) -> Validation:
        """Check every row without an engine: what would be rejected, and why."""
        from batchwright import pipeline

        with _stoppable() as stop:
            return pipeline.validate(self.settings, stop, render.validation_lines())

    def profile(
        self, *, sample: float | None = None, cache_tokens: int | None = None
    ) -> LengthProfile:
        """Token lengths, duplicates and shared prefixes of the rows. No engine.

        Args:
            sample: share of the rows to look at, above 0 and up to 1; None for all.
            cache_tokens: size of the prefix cache for the hit rates.
        """
        from batchwright import pipeline

        with _stoppable() as stop:
            return pipeline.profile(
                self.settings, stop, render.count_lines(), sample=sample,
                cache_tokens=cache_tokens, run_dir=self.run_dir,
            )  # fmt: skip

    def plan(self, *, sample: float | None = None) -> Plan:
        """The engine's settings for these rows and cards, and what they promise. No GPU needed.

        Args:
            sample: share of the rows to look at, above 0 and up to 1; None for all.
        """
        from batchwright import pipeline

        with _stoppable() as stop:
            say = render.count_lines()
            return pipeline.plan(self.settings, stop, say, sample=sample, run_dir=self.run_dir)[0]

    def pilot(self, watch: Callable[[Progress], None] | None = None) -> PilotReport:
        """Run a sample on the real engine: hours, GPU hours and dollars of the whole job.

        Args:
            watch: called a few times a second with how far it is, in place of lines on stderr.
        """
        from batchwright import pipeline

        with _stoppable() as stop, self._watching(watch) as told:
            return pipeline.pilot(self.settings, self.run_dir, told, stop)[0]

    def run(self, watch: Callable[[Progress], None] | None = None) -> Summary:
        """Answer every row; called again, also in another process, it goes on where it stopped.

        Rows without an answer are no error here: see `Summary.counts`.

        Args:
            watch: called a few times a second with how far it is, in place of lines on stderr.

        Raises:
            batchwright.core.errors.BatchwrightError: see there for each case.
        """
        from batchwright import pipeline

        with _stoppable() as stop, self._watching(watch) as told:
            return pipeline.run(self.settings, self.run_dir, told, stop)

    def retry(
        self, codes: Sequence[str] = (), watch: Callable[[Progress], None] | None = None
    ) -> Summary:
        """Run the failed rows of a finished run again.

        Args:
            codes: only rows that failed with one of these; all if empty.
            watch: as for `run`.
        """
        from batchwright import pipeline

        with _stoppable() as stop, self._watching(watch) as told:
            return pipeline.retry(self.run_dir, told, stop, codes)

    def status(self) -> Standing:
        """Where the run stands: counts, workers, loads."""
        from batchwright import pipeline

        return pipeline.status(self.run_dir)

    def verify(self) -> Verification:
        """Prove from the files alone that every row has exactly one fate."""
        from batchwright import pipeline

        return pipeline.verify(self.run_dir)

    def diagnose(self) -> Diagnosis:
        """Why the run is slow or broken; it may still be running."""
        from batchwright import pipeline

        return pipeline.diagnose(self.run_dir)

    def report(self, page: str | Path | None = None) -> Location:
        """Write the run's report as one HTML page, and say where it is.

        Args:
            page: file to write; `report.html` in the run directory unless given.
        """
        from batchwright import pipeline

        return pipeline.report(self.run_dir, None if page is None else Path(page))[1]

    def export(self, settings: Mapping[str, Any]) -> list[Location]:
        """Write the results of a finished run again, elsewhere or in another form.

        Args:
            settings: keys of the job's section `output`, as `{"output.format": "jsonl"}`.

        Returns:
            The files.
        """
        from batchwright.cli.export import export_to

        return export_to(self.run_dir, settings)

    def open(self) -> OpenedRun:
        """The rows of the run as Arrow, pandas, Polars or DuckDB, while it runs or after."""
        from batchwright.results.from_python import OpenedRun

        return OpenedRun(self.run_dir)

    @contextmanager
    def _watching(
        self, watch: Callable[[Progress], None] | None
    ) -> Iterator[Callable[[Progress], None]]:
        if watch is not None:
            yield watch
            return
        with watching(self.settings.run.metrics_port, as_json=False) as told:
            yield told


def find_job(
    source: str | Path | Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    *,
    run_dir: str | Path | None = None,
) -> JobHandle:
    """See `batchwright.job`."""
    changes = dict(settings or {})
    if not isinstance(source, Mapping):
        place = None if run_dir is None else location_of(str(run_dir))
        return JobHandle(*job_and_dir(str(source), changes, (), place))
    read = make_job(deepcopy(dict(source)), changes, source="the job")
    folder = run_dir_of(read) if run_dir is None else location_of(str(run_dir))
    return JobHandle(completed(read, folder), folder)


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Python lets only the main thread handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield threading.Event()
        return
    with stopping() as stop:
        yield stop
