"""Try settings around the run's own on the pilot's rows, keep the fastest, and remember it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from batchwright.config.job import Job
from batchwright.core.errors import EngineError, JobError, StorageError
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.core.sweep import Change, SweepPoint, SweepReport
from batchwright.core.workload import LengthHistogram
from batchwright.engines.bench import Bench, BenchMaker, Pace
from batchwright.engines.vllm_setup import is_cpu_build
from batchwright.equip.equipment import engine_settings, engines_per_gpu, job_tokenizer
from batchwright.machine.best_settings import keep_sweep, sweep_key
from batchwright.machine.hardware import local_gpus
from batchwright.pilot.replay import replay, with_length
from batchwright.pilot.sweep import (
    changes_to_try,
    is_gain,
    is_overfull,
    point_of,
    smallest_of_the_fastest,
    to_remember,
    values_around,
)
from batchwright.plan.gpus import find_gpu
from batchwright.plan.search import capture_sizes
from batchwright.rundir import layout
from batchwright.rundir.answers import answer_lengths
from batchwright.rundir.locations import Location
from batchwright.rundir.manifest import existing_run
from batchwright.rundir.prepared import make_requests, prompt_lengths, read_slices
from batchwright.rundir.state import read_state
from batchwright.rundir.storage import Storage
from batchwright.tokens.files import read_json
from batchwright.wiring import engine_target

Say = Callable[[str], None]

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Work:
    """What a sweep runs, and the work that it stands for.

    Attributes:
        rows: of the pilot, with the answers' lengths that the pilot measured, in mixed order.
        prompts: prompt tokens of all rows of the job.
        max_tokens: the largest output cap of any row of the pilot.
    """

    rows: tuple[Request, ...]
    prompts: LengthHistogram
    max_tokens: int

    @property
    def prompt_mean(self) -> float:
        """Prompt tokens of a row of the pilot."""
        return sum(len(row.token_ids) for row in self.rows) / len(self.rows)

    @property
    def output_mean(self) -> float:
        """Output tokens of a row of the pilot."""
        return sum(row.max_tokens for row in self.rows) / len(self.rows)


def sweep(
    run_dir: Location, minutes: float, say: Say, stop: threading.Event, pace: Pace | None = None
) -> SweepReport:
    """Measure settings around the run's own on an engine of this process, and remember the best.

    Args:
        run_dir: of a run whose pilot is done.
        minutes: to spend; what does not fit is skipped, and the report says so.
        say: takes lines for people.
        stop: ends it.
        pace: how long to measure each setting.

    Raises:
        JobError: the run has no pilot with answers, or the job asks for vectors.
        EngineError: the engine cannot be started with the run's own settings.
        Stopped: `stop` was set.
    """
    storage, manifest = existing_run(run_dir)
    job = Job.model_validate(manifest.job)
    if job.task != "generate":
        raise JobError(f"a sweep is for text: this job's task is {job.task}")
    if job.engine.kind == "openai":
        raise JobError("a sweep tries engine settings, and those of an endpoint are not ours")
    work = pilot_work(storage)
    settings = engine_settings(manifest, job, job_tokenizer(job))
    device = device_name(job.engine.kind)
    maker = BenchMaker(
        engine_target(job.engine.kind),
        settings,
        log_dir=storage.local_folder(layout.LOGS),
        start_timeout_s=job.engine.start_timeout_s,
        hang_timeout_s=job.engine.hang_timeout_s,
        row_timeout_s=job.run.row_timeout_s,
    )
    plan = orjson.loads(storage.read_if_there(layout.PLAN) or b"{}")
    engines = engines_per_gpu(manifest, job)
    tried = _Sweep(maker, engines, work, pace or Pace(), minutes * 60, say, stop)
    tried.try_rows(plan.get("max_concurrent_rows"))
    host_bound = not plan or plan["limit"]["bound_by"] == "host"
    tried.try_changes(on_gpu=device != CPU, host_bound=host_bound and _shares(job, device))
    report = tried.report(device)
    _remember(job, work, report, settings, say)
    return report


def _shares(job: Job, device: str) -> bool:
    """Whether several engines can share what they run on: a card, or nothing at all."""
    return device != CPU or job.engine.kind == "fake"


def device_name(kind: str) -> str:
    """The engine's card by the name that plans use; `cpu` where there is none, or it uses none."""
    own = None if kind == "vllm" and is_cpu_build() else local_gpus()
    if own is None:
        return CPU
    try:
        return find_gpu(own.name).name
    except JobError:  # a card without a datasheet here has no plan, but may well be swept
        return own.name


def pilot_work(storage: Storage) -> Work:
    """The rows of a finished pilot that have an answer.

    Raises:
        JobError: there is none.
    """
    state = read_state(storage)
    lengths = answer_lengths(storage, state)
    slices = [one for chunk in state.pilot for one in chunk.slices]
    if not lengths or not slices:
        raise JobError(
            "no row of the pilot has an answer to measure with",
            f"Look at {storage.location}/{layout.LOGS} and at the failures: batchwright status RUN.",
        )
    prepared, numbers = read_slices(storage, slices)
    requests = [one for one in make_requests(prepared, numbers) if one.row in lengths]
    # Chunks are sorted in some way: every stretch of the stream shall have the same mix.
    mixed = np.random.default_rng(0).permutation(len(requests)).tolist()
    everything = [one for chunk in state.chunks for one in chunk.slices]
    return Work(
        rows=tuple(with_length(requests[at], lengths[requests[at].row]) for at in mixed),
        prompts=LengthHistogram.of(prompt_lengths(storage, everything).tolist()),
        max_tokens=max(one.max_tokens for one in requests),
    )


class _Sweep:
    """A sweep under way: what was measured, what is the best so far, how much time is left."""

    def __init__(
        self, maker: BenchMaker, engines: int, work: Work, pace: Pace, seconds: float, say: Say,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self._maker = maker
        self._engines = engines  # that share a card already, by the plan or the user's will
        self._shared = {"engines_per_gpu": engines} if engines > 1 else {}
        self._settings = maker.settings
        self._work = work
        self._pace = pace
        self._say = say
        self._stop = stop
        self._began = time.monotonic()
        self._deadline = self._began + seconds
        self._requests = replay(work.rows)
        self._points: list[SweepPoint] = []
        self._skipped: list[str] = []
        self._reference = self._kept = 0
        self._most = maker.settings.max_num_seqs
        self._start_up_s = 0.0
        self._just_started_s = 0.0
        self._engine = ""

    def try_rows(self, room: int | None) -> None:
        """Find the best `max_num_seqs`, on one engine that is given fewer rows than it takes.

        `room` is how many rows the KV cache holds by the plan, None without one.
        """
        planned = self._settings.max_num_seqs
        most = self._most_rows(room)
        try:
            bench = self._start(most, {}, self._engines)
        except (EngineError, JobError) as error:
            if most <= planned:
                raise
            self._skipped.append(f"max_num_seqs {most}: {error.message}")
            most = planned
            bench = self._start(most, {}, self._engines)
        self._most = most
        values = values_around(planned, most)
        try:
            for at, value in enumerate(values):
                point = self._measure(bench, value, self._shared, len(values) - at)
                if point is not None and is_overfull(point):
                    break
        finally:
            bench.stop()
        self._skip_the_rest(values)
        if not self._points:
            raise JobError(
                "the sweep's time was over before anything was measured",
                "Give it more: --sweep-minutes.",
            )
        known = [int(point.settings["max_num_seqs"]) for point in self._points]
        self._reference = max(at for at, rows in enumerate(known) if rows <= max(planned, known[0]))
        self._kept = smallest_of_the_fastest(self._points)

    def try_changes(self, *, on_gpu: bool, host_bound: bool) -> None:
        """Try what needs an engine of its own, and keep what brings more than noise."""
        rows = int(self._best.settings["max_num_seqs"])
        kept: dict[str, Any] = {}
        names: dict[str, Any] = {**self._shared}
        engines = self._engines
        changes = changes_to_try(
            self._settings.kind, self._settings.options, rows,
            on_gpu=on_gpu, host_bound=host_bound and engines == 1,
        )  # fmt: skip
        for change in changes:
            if change.engines > engines + 1 or (change.name in names and change.engines == 1):
                continue
            count = max(engines, change.engines)
            options = {**kept, **change.options}
            shown = {**names, change.name: change.value, **change.options}
            point = self._try_change(change, rows, options, shown, count)
            if point is not None and is_gain(point, self._best):
                kept, names, engines = options, shown, count
                self._kept = len(self._points) - 1

    def report(self, device: str) -> SweepReport:
        """What was found."""
        return SweepReport(
            points=tuple(self._points),
            reference=self._reference,
            kept=self._kept,
            skipped=tuple(self._skipped),
            seconds=time.monotonic() - self._began,
            device=device,
            engine=self._engine,
        )

    @property
    def _best(self) -> SweepPoint:
        return self._points[self._kept]

    def _most_rows(self, room: int | None) -> int:
        """Twice the run's own `max_num_seqs`, if the cache, a step and the job have the rows."""
        own = self._settings.max_num_seqs
        limits = [2 * own, max(own, self._work.prompts.rows)]
        budget = self._settings.options.get("max_num_batched_tokens")
        return min([*limits, *(max(own, int(limit)) for limit in (room, budget) if limit)])

    def _try_change(
        self, change: Change, rows: int, options: dict[str, Any], shown: dict[str, Any], count: int
    ) -> SweepPoint | None:
        name = f"{change.name} {change.value}"
        # A start is as long as the last one was, and the best point took its time to measure.
        needed = count * self._start_up_s + 1.5 * self._best.seconds
        if time.monotonic() + needed > self._deadline:
            self._skipped.append(f"{name}: no time left (about {needed:,.0f} s)")
            return None
        bench: Bench | None = None
        try:
            bench = self._start(self._most, options, count)
            return self._measure(bench, rows, shown, 1)
        except (EngineError, JobError) as error:
            self._skipped.append(f"{name}: {error.message.splitlines()[0]}")
            return None
        finally:
            if bench is not None:
                bench.stop()

    def _start(self, rows: int, changed: Mapping[str, Any], count: int) -> Bench:
        """Start engines that can run so many rows, with some options changed."""
        options = {**self._settings.options, **changed}
        if "cudagraph_capture_sizes" in options and rows > self._settings.max_num_seqs:
            options["cudagraph_capture_sizes"] = list(capture_sizes(rows, {}))
        what = "".join(f", {name} {value}" for name, value in changed.items())
        self._say(f"sweep: starting {count} engine{'s' * (count > 1)} for {rows} rows{what}")
        started = self._maker.start(rows, options, count, self._requests)
        self._start_up_s = max(self._start_up_s, started.start_up_s)
        self._just_started_s = started.start_up_s
        self._engine = f"{started.info.name} {started.info.version}"
        return started.bench

    def _measure(
        self, bench: Bench, rows: int, shown: Mapping[str, Any], left: int
    ) -> SweepPoint | None:
        """Measure one point and note it; `left` values share the time that is left."""
        name = " ".join(f"{key} {value}" for key, value in {"max_num_seqs": rows, **shown}.items())
        now = time.monotonic()
        deadline = now + max(0.0, self._deadline - now) / left
        reading = bench.measure(rows, self._pace, deadline, self._stop)
        if reading is None:
            self._skipped.append(f"{name}: not measured in its share of the time")
            return None
        cached = bench.cached_tokens / max(1, bench.finished)
        per_row = self._work.prompt_mean + self._work.output_mean - cached
        point = point_of({"max_num_seqs": rows, **shown}, reading, per_row, self._just_started_s)
        self._just_started_s = 0.0
        self._points.append(point)
        self._say(f"sweep: {name}: {point.rows_per_s:,.1f} rows/s, KV use {point.kv_use:.0%}, "
                  f"{point.preemptions:,} preemptions")  # fmt: skip
        return point

    def _skip_the_rest(self, values: tuple[int, ...]) -> None:
        last = int(self._points[-1].settings["max_num_seqs"]) if self._points else values[-1]
        self._skipped += [
            f"max_num_seqs {value}: the KV cache was full before"
            for value in values
            if value > last and is_overfull(self._points[-1])
        ]


def _remember(
    job: Job, work: Work, report: SweepReport, settings: EngineSettings, say: Say
) -> None:
    """Keep the outcome for later plans; a cache that cannot be written is no reason to fail."""
    name = job.model.name
    config = read_json(name, "config.json", job.model.revision) if name else {}
    key = sweep_key(job, config, report.device, work.prompts, work.max_tokens)
    today = datetime.now(UTC).date().isoformat()
    sweep = to_remember(key, report, work.output_mean, today, settings.options)
    try:
        say(f"sweep: remembered in {keep_sweep(sweep)}")
    except StorageError as error:
        say(f"sweep: not remembered: {error.message}")
