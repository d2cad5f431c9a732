"""What the pilot of a run promised, and whether the rest of the run keeps it."""

from __future__ import annotations

from dataclasses import replace

import orjson

from batchwright.config.job import Job
from batchwright.core.errors import JobError, TimesLost
from batchwright.core.pilot import PilotReport
from batchwright.core.ports import Clock
from batchwright.equip.adapters import other_bases
from batchwright.foresight.piloting import over_budget, pilot_report
from batchwright.pilot.drift import drifted
from batchwright.pilot.show import pilot_line
from batchwright.rundir import layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.running.drive import Progress, pilot_is_done

# An estimate that moves by less, once all rows are known, is not told again.
WORTH_TELLING = 0.05

# A run's pilot is chosen from so many times its rows, if that many are prepared before an engine is up.
POOL = 100

NO_ESTIMATE = "the times of the pilot's rows were lost when their worker was killed: no estimate"


def with_pilot(manifest: Manifest) -> Manifest:
    """The manifest of a run that begins with a pilot, if its job wants one.

    Its rows are chosen from those that are prepared while the engine starts, so that it need not wait
    for the others; from all of them where a budget depends on it.
    """
    run, plan = manifest.job["run"], manifest.job["plan"]
    rows: int = run["pilot_rows"] if manifest.job["task"] == "generate" else 0
    budget = plan["max_hours"] is not None or plan["max_usd"] is not None
    return replace(manifest, pilot_rows=rows, pilot_pool=0 if budget else POOL * rows)


class Promise:
    """Looks at a run: tells the pilot's estimate once there is one, and when the run leaves it.

    Args:
        storage: of the run.
        manifest: of the run.
        job: the resolved job; its budgets are kept.
        clock: the time that the run takes is read from it.
    """

    def __init__(self, storage: Storage, manifest: Manifest, job: Job, clock: Clock) -> None:
        self._storage = storage
        self._manifest = manifest
        self._job = job
        self._clock = clock
        self._report: PilotReport | None = None
        self._began_at: float | None = None
        self._of_all_rows = False
        self._drift_told = False
        self._times_lost = False
        self._notes = other_bases(job)

    @property
    def has_budget(self) -> bool:
        """Whether the run must not go on before the pilot has said what it takes."""
        return self._job.plan.max_hours is not None or self._job.plan.max_usd is not None

    def begin(self, state: RunState) -> None:
        """Hold a pilot that was finished before this start against the budget.

        Raises:
            JobError: the job would take or cost more than it may, or has no pilot to say so.
        """
        if self.has_budget and not self._manifest.pilot_rows:
            raise JobError(
                "plan.max_hours and plan.max_usd need a pilot, and the run in "
                f"{self._storage.location} has begun without one",
                "Give another folder (--dir), with run.pilot_rows above 0.",
            )
        if not pilot_is_done(state) or not state.pilot:
            return
        pilot = {chunk.name for chunk in state.pilot}
        counts = state.counts()
        self._estimate(state, counts.rows - counts.rejected, alone=state.done <= pilot)
        self._of_all_rows = counts.ordered

    def look(self, state: RunState, progress: Progress) -> list[str]:
        """What is new to say."""
        notes, self._notes = self._notes, []
        return [*notes, *self._of_pilot(state, progress)]

    def _of_pilot(self, state: RunState, progress: Progress) -> list[str]:
        if self._times_lost or not state.pilot:
            return []
        if not all(chunk.name in state.done for chunk in state.pilot):
            return []
        before, known = self._report, self._of_all_rows
        rows_total = progress.rows_expected - progress.counts.rejected
        if before is None or (progress.counts.ordered and not known):
            report = self._estimate(state, rows_total, alone=False)
            if report is None:
                return [NO_ESTIMATE]
            self._of_all_rows = progress.counts.ordered
            if before is None:
                self._began_at = self._clock.monotonic() - self._spent_s(report)
                return [pilot_line(report)]
            moved = abs(report.hours.estimate / max(1e-9, before.hours.estimate) - 1)
            return [pilot_line(report)] if moved > WORTH_TELLING else []
        return self._drift(before, progress, rows_total)

    def _drift(self, report: PilotReport, progress: Progress, rows_total: int) -> list[str]:
        if self._began_at is None or self._drift_told:
            return []
        done = progress.rows_done - progress.counts.rejected
        line = drifted(report, done, self._clock.monotonic() - self._began_at, rows_total)
        self._drift_told = line is not None
        return [] if line is None else [line]

    def _spent_s(self, report: PilotReport) -> float:
        return 3600 * (report.hours.estimate - report.hours_left.estimate)

    def _estimate(self, state: RunState, rows_total: int, *, alone: bool) -> PilotReport | None:
        """What the pilot says; None if that was lost, which only a budget makes an error."""
        try:
            report = pilot_report(
                self._storage, self._manifest, self._job, state, rows_total=rows_total, alone=alone
            )
        except TimesLost:
            if self.has_budget:
                raise
            self._times_lost = True
            return None
        self._report = report
        path = layout.PILOT
        self._storage.put(path, orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2))
        problem = over_budget(report, self._job.plan.max_hours, self._job.plan.max_usd)
        if problem is not None:
            raise JobError(
                problem,
                "Raise the budget to go on from the pilot, or look at "
                f"{self._storage.location}/{path}.",
            )
        return report
