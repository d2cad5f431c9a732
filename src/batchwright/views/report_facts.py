"""Gathers the facts of a run's report: out of its receipts, signs of life, telemetry and parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from batchwright.config.job import Job
from batchwright.core.latency import add_up, quantile_s
from batchwright.core.losses import EngineTime
from batchwright.core.records import Chunk, Receipt
from batchwright.core.report import (
    CHUNK_DONE,
    ROW_BEGUN,
    ROW_DONE,
    Cost,
    ReportFacts,
    SlowChunk,
    Times,
    WorkerFacts,
)
from batchwright.core.tail import find_ends, find_last_row
from batchwright.equip.equipment import engines_per_gpu, gpus_per_replica
from batchwright.results.fates import failure_groups
from batchwright.rundir import layout
from batchwright.rundir.decided import read_decision
from batchwright.rundir.events import newest_start, read_events
from batchwright.rundir.ledger import Roster
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.presence import Attendance, Presence
from batchwright.rundir.promised import read_pilot, read_plan
from batchwright.rundir.readings import thinned_readings
from batchwright.rundir.state import RunState, read_state
from batchwright.rundir.storage import Storage
from batchwright.rundir.waste import wasted, with_counted
from batchwright.running.progress import expected_rows, with_engines
from batchwright.views.report_rows import row_lengths
from batchwright.views.report_time import MOST_READINGS, Watched, WorkDone, charts, time_balance

SLOWEST = 6

# Devices of engines whose work no card of this machine shows.
_WITHOUT_CARDS = ("cpu", "none", "")


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker with an engine: its last sign of life, and when it was there."""

    worker: str
    name: str
    heartbeat: Mapping[str, Any]
    time: EngineTime

    @property
    def engine(self) -> Mapping[str, Any]:
        return self.heartbeat.get("engine") or {}


def gather_report(storage: Storage, manifest: Manifest, job: Job) -> ReportFacts:
    """All that a report of the run shows, as of now; a run that is under way may be looked at too.

    Memory does not grow with the rows: of many parts some stand for all, and the report says so.
    """
    state = read_state(storage)
    receipts = list(state.receipts.values())
    roster = Roster(storage).read()
    attendance = Attendance(storage, job.run.lease_s)
    presences = {name: attendance.of(name, one) for name, one in roster.items()}
    events = read_events(storage)
    workers = _workers(roster, _engine_starts(events))
    waste = wasted(with_counted(roster, receipts).values(), complete=state.counts().complete)
    return ReportFacts(
        run_dir=str(storage.location),
        source=manifest.job["input"]["path"],
        state=_run_state(storage, presences.values()),
        task=job.task,
        makes_text=job.task_settings().makes_text,
        began_at=min([one.time.began_at for one in workers], default=0.0),
        ended_at=max([one.time.ended_at for one in workers], default=0.0),
        **_counts(state, manifest, job),
        wasted_rows=waste.rows,
        busy_s=state.busy_s(),
        cost=_cost(workers, manifest, job),
        workers=_worker_facts(workers, receipts, presences),
        times=_times(receipts),
        **_over_time(storage, job, state, workers, newest_start(events)),
        failures=failure_groups(storage, state),
        slow_chunks=_slow_chunks(state, workers),
        slow_rows=_slow_rows(receipts),
        pilot=read_pilot(storage),
        settings=changed_settings(manifest.job),
        engine_options={**manifest.planned, **job.engine.options},
        versions=_versions(manifest, workers),
    )


def _counts(state: RunState, manifest: Manifest, job: Job) -> dict[str, Any]:
    """The rows by fate and their tokens, by the names that the facts have."""
    counts = state.counts()
    return {
        "rows": counts.rows,
        "rows_expected": expected_rows(state, counts, manifest, job),
        "ok": counts.ok,
        "failed": counts.failed,
        "rejected": counts.rejected,
        "truncated": counts.truncated,
        "prompt_tokens": counts.prompt_tokens,
        "output_tokens": counts.completion_tokens,
    }


def _over_time(
    storage: Storage, job: Job, state: RunState, workers: Sequence[_Worker], begun: float
) -> dict[str, Any]:
    """What comes of the telemetry and of the rows' lengths, by the names that the facts have."""
    receipts = list(state.receipts.values())
    began_at = min([one.time.began_at for one in workers], default=0.0)
    readings = [thinned_readings(storage, one.worker, MOST_READINGS) for one in workers]
    ends = find_ends(
        {one.name: find_last_row(own) for one, own in zip(workers, readings, strict=True)},
        complete=state.counts().complete,
        begun_at=begun,
        stopped=[one.name for one in workers if "error" in one.heartbeat],
    )
    watched = [
        Watched(one.name, one.time, own, ends.get(one.name))
        for one, own in zip(workers, readings, strict=True)
    ]
    lengths = row_lengths(storage, receipts)
    plan = read_plan(storage)
    work = WorkDone(state.counts().ok, job.sampling.n or 1, _best_cached_share(storage))
    return {
        "charts": tuple(charts(watched, receipts, began_at)),
        "balance": time_balance(watched, plan, lengths, work),
        "lengths": lengths,
        "plan": plan,
    }


def _workers(
    roster: Mapping[str, Mapping[str, Any]], engine_starts: Mapping[str, float]
) -> list[_Worker]:
    """Those with an engine, in the order in which they started."""
    found = []
    for worker, number in with_engines(roster).items():
        heartbeat = roster[worker]
        ended_at = float(heartbeat["at"])
        began_at = float(heartbeat.get("started", ended_at))
        engine = EngineTime(began_at, engine_starts.get(worker), ended_at)
        found.append(_Worker(worker, f"worker {number}", heartbeat, engine))
    return found


def _engine_starts(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """When each worker's first engine was up."""
    found: dict[str, float] = {}
    for event in events:
        if event["event"] == "engine_up":
            found.setdefault(event["worker"], float(event["at"]))
    return found


def _run_state(storage: Storage, presences: Iterable[Presence]) -> str:
    if storage.read_if_there(layout.SUCCESS) is not None:
        return "finished"
    return "running" if Presence.RUNNING in presences else "stopped"


def _cost(workers: Sequence[_Worker], manifest: Manifest, job: Job) -> Cost:
    """Hours in which there was a worker, and hours of all cards; an endpoint's are not ours."""
    held_s = sum(one.time.seconds for one in workers)
    cards = 0 if job.engine.kind == "openai" else gpus_per_replica(manifest, job)
    return Cost(
        hours=covered_s([(one.time.began_at, one.time.ended_at) for one in workers]) / 3600,
        card_hours=held_s * cards / engines_per_gpu(manifest, job) / 3600,
        cards=cards,
        on_cards=any(_has_cards(one.engine) for one in workers),
        usd_per_card_hour=job.plan.usd_per_gpu_hour,
    )


def _has_cards(engine: Mapping[str, Any]) -> bool:
    return str(engine.get("device", "")).lower() not in _WITHOUT_CARDS


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in one of the spans at least."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _worker_facts(
    workers: Sequence[_Worker], receipts: Iterable[Receipt], presences: Mapping[str, Presence]
) -> tuple[WorkerFacts, ...]:
    rows: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for receipt in receipts:
        rows[receipt.worker] += receipt.rows
        tokens[receipt.worker] += receipt.completion_tokens
    return tuple(
        WorkerFacts(
            name=one.name,
            worker=one.worker,
            host=str(one.heartbeat.get("host", "")),
            device=str(one.engine.get("device", "")),
            engine=f"{one.engine.get('name', '')} {one.engine.get('version', '')}".strip(),
            hours=one.time.seconds / 3600,
            start_up_s=None if one.time.up_at is None else one.time.start_up_s,
            rows=rows[one.worker],
            output_tokens=tokens[one.worker],
            state=presences[one.worker],
        )
        for one in workers
    )


def _times(receipts: Sequence[Receipt]) -> tuple[Times, ...]:
    """How long rows, their first tokens and chunks took, as far as it was noted."""
    noted = [seconds for one in receipts for _, seconds in one.slowest]
    longest = max(noted, default=inf)
    begun = _counted(ROW_BEGUN, add_up(one.first_tokens for one in receipts), longest)
    done = _counted(ROW_DONE, add_up(one.times for one in receipts), longest)
    if done is not None and noted:
        done = replace(done, longest_s=longest)
    found = [begun, done]
    chunks = sorted(one.seconds for one in receipts if one.last)
    if chunks:
        p50, p90, p99 = (chunks[int(share * (len(chunks) - 1))] for share in (0.5, 0.9, 0.99))
        found.append(Times(CHUNK_DONE, p50, p90, p99, chunks[-1]))
    return tuple(one for one in found if one is not None)


def _counted(name: str, counts: Mapping[str, int], longest_s: float) -> Times | None:
    """Quantiles of what was counted by steps, none of them above what is known; None of nothing."""
    steps = (quantile_s(counts, share) for share in (0.5, 0.9, 0.99, 1.0))
    known = [min(seconds, longest_s) for seconds in steps if seconds is not None]
    return Times(name, *known) if known else None


def _slow_chunks(state: RunState, workers: Sequence[_Worker]) -> tuple[SlowChunk, ...]:
    names = {one.worker: one.name for one in workers}
    rows: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    last: dict[str, Receipt] = {}
    for receipt in state.receipts.values():
        chunk = Chunk(receipt.generation, receipt.chunk, ()).name
        rows[chunk] += receipt.rows
        tokens[chunk] += receipt.completion_tokens
        if chunk not in last or receipt.seconds > last[chunk].seconds:
            last[chunk] = receipt
    slowest = sorted(last, key=lambda chunk: -last[chunk].seconds)[:SLOWEST]
    return tuple(
        SlowChunk(
            name=chunk,
            worker=names.get(last[chunk].worker, last[chunk].worker),
            rows=rows[chunk],
            seconds=last[chunk].seconds,
            output_tokens=tokens[chunk],
        )
        for chunk in slowest
    )


def _slow_rows(receipts: Iterable[Receipt]) -> tuple[tuple[int, float], ...]:
    found = [row for one in receipts for row in one.slowest]
    return tuple(sorted(found, key=lambda row: -row[1])[:SLOWEST])


def _best_cached_share(storage: Storage) -> float | None:
    """By the decision on the order, if one was made."""
    decision = read_decision(storage)
    return None if decision is None else decision.hit_rate_best


def changed_settings(job: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not as they are by default, by their dotted names."""
    changed = Job.model_validate(job).model_dump(mode="json", exclude_defaults=True)
    return dict(_flat(changed, ""))


def _flat(section: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name != "engine.options":
            yield from _flat(value, f"{name}.")
        elif name != "engine.options":  # shown with what the plan chose
            yield name, value


def _versions(manifest: Manifest, workers: Sequence[_Worker]) -> dict[str, str]:
    engines = {str(one.engine["name"]): str(one.engine["version"]) for one in workers if one.engine}
    devices = sorted({str(one.engine.get("device", "")) for one in workers if one.engine} - {""})
    found = {**manifest.tools, **engines}
    return found | ({"device": ", ".join(devices)} if devices else {})
