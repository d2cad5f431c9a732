"""What a run left, gathered for the diagnosis: of a finished, a running or a broken one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from batchwright.config.job import Job
from batchwright.core.readings import INFER, PREPARE, Reading
from batchwright.core.records import Receipt
from batchwright.core.tail import find_ends, find_last_row
from batchwright.diagnose.evidence import (
    AnswerEvidence,
    DataEvidence,
    EngineFault,
    Evidence,
    Settings,
    Stop,
    WorkerEvidence,
)
from batchwright.diagnose.faults import UNKNOWN, capture_line, shown
from batchwright.diagnose.window import (
    OUTPUT_WEIGHT,
    host_evidence,
    prepare_evidence,
    worker_evidence,
)
from batchwright.engines.fatal_lines import find_fault
from batchwright.engines.last_log import EngineStart, ended_before, find_starts
from batchwright.rundir import layout
from batchwright.rundir.decided import read_decision
from batchwright.rundir.events import newest_start, read_events
from batchwright.rundir.ledger import Roster
from batchwright.rundir.manifest import Manifest, block_size
from batchwright.rundir.presence import Attendance, Presence
from batchwright.rundir.readings import read_readings
from batchwright.rundir.state import Counts, RunState, read_state
from batchwright.rundir.storage import Storage
from batchwright.views.given import told_plan, told_settings
from batchwright.views.glances import glance_at_answers, glance_at_rows

# Of an engine's log, the end: an engine that dies says why in its last lines.
LOG_TAIL_BYTES = 256 * 1024

# Errors that a worker reports of something else than its engine.
_NOT_THE_ENGINE = {"Stopped", "Interrupted", "InputError", "TooManyFailures", "StorageError", "NotAllowed", "Damaged",
                   "HubUnreachable",
                   "VerifyError", "MissingExtra", "ResumeRefused"}  # fmt: skip

# The command that starts a run may give a sign of life so long before it notes the start.
_BEAT_S = 5.0

# Those of them that are faults; a worker that was told to stop has done what it should.
_STOPS = _NOT_THE_ENGINE - {"Stopped", "Interrupted"}

Heartbeats = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Left:
    """The small files of a run."""

    storage: Storage
    manifest: Manifest
    job: Job
    state: RunState
    heartbeats: Heartbeats
    events: Sequence[Mapping[str, Any]]
    readings: Mapping[str, Sequence[Reading]]

    @property
    def begun_at(self) -> float:
        """When the newest start of the run began; 0 if nobody noted it."""
        return newest_start(self.events)


def gather(storage: Storage, manifest: Manifest, job: Job) -> Evidence:
    """All that the rules may know of a run. Its files are read, and none is changed."""
    left = _Left(
        storage,
        manifest,
        job,
        read_state(storage),
        Roster(storage).read(),
        read_events(storage),
        read_readings(storage),
    )
    counts = left.state.counts()
    workers = _workers(left, counts)
    settings = told_settings(job, manifest, _order(left))
    answers = _answers(left, counts, settings)
    evidence = Evidence(
        settings=settings,
        workers=workers,
        prepare=prepare_evidence([_of_role(one, PREPARE) for one in left.readings.values()]),
        hosts=host_evidence(list(chain.from_iterable(left.readings.values()))),
        data=_data(left, workers, answers),
        answers=answers,
        plan=told_plan(storage),
        faults=_faults(left),
        stop=_stop(left, counts),
        wall_s=_wall_s(left),
        rows=counts.rows,
        failed=counts.failures,
        rejected=counts.rejected,
        restarts=sum(one["event"] == "engine_restarted" for one in left.events),
    )
    return replace(evidence, unknown=_unknown(evidence, left))


def _of_role(readings: Sequence[Reading], role: str) -> list[Reading]:
    return [one for one in readings if one.role == role]


def _workers(left: _Left, counts: Counts) -> tuple[WorkerEvidence, ...]:
    """The engines of the run; without readings, by what their receipts say."""
    infer = {name: _of_role(one, INFER) for name, one in left.readings.items()}
    ends = _tail_ends(left, counts, {name: find_last_row(one) for name, one in infer.items()})
    found = []
    for name, readings in infer.items():
        heartbeat = left.heartbeats.get(name, {})
        engine = heartbeat.get("engine") or {}
        one = worker_evidence(
            name,
            readings,
            tail_ends_at=ends.get(name),
            start_up_s=_start_up_s(left, name),
            device=engine.get("device", ""),
            kv_tokens=engine.get("kv_tokens", 0),
        )
        if one is not None:
            found.append(one)
    return tuple(found) if found else _by_receipts(left, counts)


def _tail_ends(left: _Left, counts: Counts, last_rows: Mapping[str, float]) -> dict[str, float]:
    stopped = [name for name, heartbeat in left.heartbeats.items() if "error" in heartbeat]
    return find_ends(last_rows, complete=counts.complete, begun_at=left.begun_at, stopped=stopped)


def _by_receipts(left: _Left, counts: Counts) -> tuple[WorkerEvidence, ...]:
    """Of runs without readings: when each worker had chunks, and how much it did."""
    by_worker: dict[str, list[Receipt]] = {}
    for one in left.state.receipts.values():
        if one.finished_at:
            by_worker.setdefault(one.worker, []).append(one)
    last = {name: max(one.finished_at for one in found) for name, found in by_worker.items()}
    ends = _tail_ends(left, counts, last)
    workers = []
    for name, found in by_worker.items():
        seconds = last[name] - min(one.finished_at - one.seconds for one in found)
        work = sum(one.prompt_tokens + OUTPUT_WEIGHT * one.completion_tokens for one in found)
        worker = WorkerEvidence(
            name=name,
            host=str(left.heartbeats.get(name, {}).get("host", "")),
            seconds=seconds,
            start_up_s=_start_up_s(left, name),
            idle_s=ends.get(name, last[name]) - last[name],
            rows=sum(one.rows for one in found),
            output_tokens=sum(one.completion_tokens for one in found),
            computed_prompt_tokens=sum(one.prompt_tokens for one in found),
            tokens_per_s=work / seconds if seconds else 0.0,
        )
        workers.append(worker)
    return tuple(workers)


def _start_up_s(left: _Left, name: str) -> float | None:
    """From the start of a worker's process until its engine was up."""
    started = left.heartbeats.get(name, {}).get("started")
    up = [one["at"] for one in left.events if one["event"] == "engine_up" and one["worker"] == name]
    return max(0.0, up[0] - started) if started and up else None


def _order(left: _Left) -> str:
    """In which order most rows ran."""
    decision = read_decision(left.storage)
    if decision is not None:
        return decision.order
    asked = left.job.run.order
    return "file" if asked == "auto" else asked


def _answers(left: _Left, counts: Counts, settings: Settings) -> AnswerEvidence:
    files = [one.file for one in left.state.receipts.values() if one.ok]
    seen = glance_at_answers(left.storage, files, chat=settings.chat)
    return AnswerEvidence(
        rows=counts.ok,
        outputs=seen.outputs,
        cut=counts.truncated / counts.ok if counts.ok else 0.0,
        texts=seen.texts,
        marked=seen.marked,
        looping=seen.looping,
        prompt_tokens=counts.prompt_tokens,
        output_tokens=counts.completion_tokens,
    )


def _data(left: _Left, workers: Sequence[WorkerEvidence], answers: AnswerEvidence) -> DataEvidence:
    parts = [
        part.file for batch in left.state.batches if not batch.generation for part in batch.parts
    ]
    pools = [one.kv_tokens for one in workers if one.kv_tokens] or [left.manifest.kv_tokens]
    seen = glance_at_rows(
        left.storage,
        parts,
        block_size=block_size(left.manifest),
        kv_tokens=min(pools) if left.job.task == "generate" else 0,
        mean_output=answers.output_tokens / max(1, answers.rows),
    )
    return DataEvidence(
        files=len(left.manifest.files),
        bytes=sum(one.size for one in left.manifest.files),
        rows_seen=seen.rows,
        longest_prompt=seen.longest_prompt,
        mean_prompt=seen.mean_prompt,
        repeated=seen.repeated,
        hit_rate_file=seen.hit_rate_file,
        hit_rate_best=seen.hit_rate_best,
    )


def _faults(left: _Left) -> tuple[EngineFault, ...]:
    """What ended engines since the newest start of the run.

    Of an engine's log, what it printed in the start that ended so: a fault of an older one may be
    mended by now.
    """
    found = []
    for name, heartbeat in left.heartbeats.items():
        error = heartbeat.get("error")
        if (
            not error
            or error["kind"] in _NOT_THE_ENGINE
            or heartbeat.get("at", 0.0) < left.begun_at
        ):
            continue
        at_start = not heartbeat.get("engine")
        log = _engine_starts(left.storage, name)[-1].text
        told = _fault(log, name, error["message"], at_start=at_start)
        # An error of the job explains itself; only an engine's end needs to be looked into.
        if told.code != UNKNOWN or error["kind"] in ("EngineError", "EngineDied"):
            found.append(told)
    for event in left.events:
        if event["event"] == "engine_restarted" and event["at"] >= left.begun_at:
            reason = str(event.get("reason", ""))
            starts = _engine_starts(left.storage, event["worker"])
            log = ended_before(starts, event["at"]).text
            found.append(_fault(log, event["worker"], reason, at_start=False))
    return tuple(found)


def _fault(log: str, worker: str, said: str, *, at_start: bool) -> EngineFault:
    """What ended an engine: by its log where that tells, else by what its worker said."""
    for text in (log, said):
        found = find_fault(text)
        if found is not None:
            line = shown(found.line)
            return EngineFault(found.code, line, worker, at_start, found.summary, found.remedy)
        captured = capture_line(text)
        if captured is not None:
            return EngineFault("graph_capture", captured, worker, at_start)
    words = [line for line in said.splitlines() if line.strip()] or ["it left no words"]
    return EngineFault(UNKNOWN, shown(words[-1]), worker, at_start)


def _engine_starts(storage: Storage, worker: str) -> list[EngineStart]:
    """The starts in the end of an engine's log; an empty one where it lies on another machine."""
    path = storage.local_path(f"{layout.LOGS}/{worker}.engine.log")
    if path is None or not path.is_file():
        return find_starts("")
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return find_starts(log.read().decode(errors="replace"))


def _stop(left: _Left, counts: Counts) -> Stop | None:
    """How the newest start of the run stopped, by the last signs of life of its workers."""
    attendance = Attendance(left.storage, left.job.run.lease_s)
    presences = {name: attendance.of(name, one) for name, one in left.heartbeats.items()}
    if counts.complete or Presence.RUNNING in presences.values():
        return None
    since = left.begun_at - _BEAT_S
    newest = {name: one for name, one in left.heartbeats.items() if one.get("at", 0.0) >= since}
    lost = sum(presences[name] is not Presence.ENDED for name in newest)
    told = [one for one in newest.values() if one.get("error", {}).get("kind") in _STOPS]
    error = max(told, key=lambda one: float(one["at"]))["error"] if told else {}
    return Stop(
        counts.chunks_done, counts.chunks, lost, error.get("message", ""), error.get("hint", "")
    )


def _wall_s(left: _Left) -> float:
    marks = [one["at"] for one in left.events]
    marks += [one.at for readings in left.readings.values() for one in readings]
    return max(marks) - min(marks) if marks else 0.0


def _unknown(evidence: Evidence, left: _Left) -> tuple[str, ...]:
    """What cannot be judged, and why."""
    found = []
    if not any(left.readings.values()):
        found.append(
            "There are no readings: the run was made by an older version, or no engine was up. How "
            "its time was spent, batches and cards cannot be judged."
        )
        return tuple(found)
    if evidence.workers and not evidence.reliable:
        found.append(
            "The engines worked for less than 20 s: shares of so short a time say nothing."
        )
    on_cards = [one for one in evidence.reliable if one.device not in ("cpu", "none", "")]
    if on_cards and not any(one.cards for one in on_cards):
        found.append(
            "There are no readings of cards: clocks, heat and other processes are unknown."
        )
    if evidence.reliable and evidence.prepare is None:
        found.append("Those who prepare rows left no readings: what they waited for is unknown.")
    return tuple(found)
