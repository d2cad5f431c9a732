"""What one process of a run does: prepare and order rows, or run chunks on an engine."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from batchwright.config.job import Job
from batchwright.core.errors import BatchwrightError, JobError, Stopped
from batchwright.core.readings import PREPARE
from batchwright.core.records import Split
from batchwright.drafts.references import media_limits
from batchwright.engines.feeder import Supervisor
from batchwright.engines.process import EngineProcess
from batchwright.engines.warm_up import start_gate
from batchwright.equip.coherence import check_shared_memory
from batchwright.equip.equipment import (
    answer_reader,
    engine_settings,
    gpus_per_replica,
    job_tokenizer,
    row_timeout_s,
)
from batchwright.machine.hardware import shared_memory_bytes
from batchwright.machine.worker_reading import Surroundings
from batchwright.order import Sequencer
from batchwright.prepare import Preparer
from batchwright.results.loading import Loader
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.heartbeat import Heartbeat, reported_error
from batchwright.rundir.ledger import Ledger, read_heartbeat
from batchwright.rundir.locations import Location
from batchwright.rundir.logs import logging_to
from batchwright.rundir.manifest import Manifest, existing_run, refuse_older
from batchwright.rundir.meters import PrepareMeter
from batchwright.rundir.split_queue import SplitQueue
from batchwright.rundir.state import RunState
from batchwright.rundir.storage import Storage
from batchwright.rundir.telemetry import Telemetry
from batchwright.rundir.timings import Timings
from batchwright.wiring import engine_target
from batchwright.worker import Worker

# While no split is free, other workers' claims are looked at this often.
LOOK_AGAIN_S = 0.5
LONGEST_PAUSE_S = 10.0

# The first chunks are cut when an engine is up: it should not wait for them.
LOOK_FOR_ENGINE_S = 0.05

_log = logging.getLogger("batchwright.run")
_prepare_log = logging.getLogger("batchwright.prepare")
_order_log = logging.getLogger("batchwright.order")

Role = Callable[[Storage, Manifest, Job, str, threading.Event], None]


def attend(run_dir: Location, role: str, name: str, stop: threading.Event) -> None:
    """Do one role's work for a run until nothing is left, and tell the run how it ended.

    Raises:
        BatchwrightError: what ended the work early; it also stands in the worker's heartbeat.
    """
    storage, manifest = existing_run(run_dir)
    refuse_older(storage)
    job = Job.model_validate(manifest.job)
    # Rows come and go by the thousand and hold no cycles: the collector would only look at them
    # again and again. What has been loaded so far never goes.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    if role not in ROLES:
        raise JobError(f"--role {role}: there are {', '.join(ROLES)}")
    try:
        with logging_to(storage, name, job.run.log_level):
            _work(role, storage, manifest, job, name, stop)
    except BatchwrightError as error:
        _report(storage, job, name, error)
        raise


def _work(
    role: str, storage: Storage, manifest: Manifest, job: Job, name: str, stop: threading.Event
) -> None:
    """Do a role's work; how it begins and ends stands in the worker's log."""
    began = time.monotonic()
    _log.info("worker starts", extra={"figures": {"role": role, "pid": os.getpid()}})
    try:
        ROLES[role](storage, manifest, job, name, stop)
    except BatchwrightError as error:
        level = logging.INFO if isinstance(error, Stopped) else logging.ERROR
        told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        _log.log(level, "worker gives up", extra={"figures": told})
        raise
    except Exception:
        _log.exception("worker failed")
        raise
    finally:
        seconds = round(time.monotonic() - began, 1)
        _log.info("worker ends", extra={"figures": {"seconds": seconds}})
        storage.flush_logs()


def infer(
    storage: Storage,
    manifest: Manifest,
    job: Job,
    name: str,
    stop: threading.Event,
    *,
    pilot_only: bool = False,
) -> None:
    """Run chunks on an engine of this process's own."""
    check_shared_memory(job, gpus_per_replica(manifest, job), shared_memory_bytes())
    clock = SystemClock()
    tokenizer = job_tokenizer(job)
    log_path = storage.local_folder(layout.LOGS) / f"{name}.engine.log"
    settings = engine_settings(manifest, job, tokenizer)
    gate = start_gate(settings, os.environ, job.engine.start_timeout_s)

    def make_engine() -> EngineProcess:
        return EngineProcess(
            engine_target(job.engine.kind, job.task),
            log_path=log_path,
            start_timeout_s=job.engine.start_timeout_s,
            hang_timeout_s=job.engine.hang_timeout_s,
            start_gate=gate,
        )

    supervisor = Supervisor(
        make_engine,
        settings,
        row_timeout_s=row_timeout_s(job),
        monotonic=clock.monotonic,
    )
    timings = Timings(storage, name, clock) if manifest.pilot_rows else None
    reader = answer_reader(job, log_path.with_name(f"{name}.reader.log"))
    worker = Worker(
        storage, job, name, clock, supervisor, tokenizer,
        timings=timings, reader=reader, media=media_limits(job, manifest.files),
        pilot_only=pilot_only,
    )  # fmt: skip
    worker.run(stop)


def pilot(storage: Storage, manifest: Manifest, job: Job, name: str, stop: threading.Event) -> None:
    """Run the chunks of the pilot, and no others."""
    infer(storage, manifest, job, name, stop, pilot_only=True)


def prepare(
    storage: Storage, manifest: Manifest, job: Job, name: str, stop: threading.Event
) -> None:
    """Prepare splits, and put them in order if no other worker does, until the order is complete.

    A preparer with nothing left to prepare stays: it takes over if the one that orders dies.
    """
    ledger = Ledger(storage, name, SystemClock(), job.run.lease_s)
    meter = PrepareMeter()
    around = Surroundings(storage, name, PREPARE, SystemClock())
    telemetry = Telemetry(storage, name, lambda: around.reading(prepare=meter.reading()))
    splits_done = 0

    def state() -> dict[str, Any]:
        return {"role": PREPARE, "splits": splits_done, "reading": telemetry.as_json()}

    with Heartbeat(ledger, state, job.run.lease_s), telemetry:
        order = RunState(storage)
        order.refresh_order()
        if order.ordered:
            return
        preparer = Preparer(storage, manifest, job, job_tokenizer(job), meter)
        queue = SplitQueue(storage, ledger, manifest.splits[order.first_open_split :])
        sequencer: Sequencer | None = None
        idle = 0
        while not stop.is_set():
            if sequencer is None and ledger.claim(layout.ORDER_UNIT):
                _order_log.info("puts the rows in order")
                sequencer = Sequencer(storage, manifest)
            split = queue.take(time.monotonic())
            if split is not None:
                _prepare_split(preparer, split, sequencer, stop)
                splits_done += 1
            if sequencer is not None:
                advanced = sequencer.advance()
            else:
                advanced = bool(order.refresh_order())
                queue.pass_over(order.first_open_split)
            if order.ordered or (sequencer and sequencer.finished):
                return
            idle = 0 if split is not None or advanced else idle + 1
            if idle:
                with meter.timing("idle"):
                    stop.wait(_pause_s(storage, sequencer, idle))


def _pause_s(storage: Storage, sequencer: Sequencer | None, idle: int) -> float:
    """In an object store each look has its price: who waits in vain waits longer and longer.

    But whoever puts rows in order must see soon that engines need more.
    """
    first_s = storage.seldom(LOOK_AGAIN_S)
    if sequencer is not None:
        waits = storage.is_local and sequencer.waits_for_engine()
        return LOOK_FOR_ENGINE_S if waits else first_s
    return first_s if storage.is_local else min(first_s * 1.5 ** min(idle, 9), LONGEST_PAUSE_S)


def _prepare_split(
    preparer: Preparer, split: Split, sequencer: Sequencer | None, stop: threading.Event
) -> None:
    began = time.monotonic()
    rows = rejected = tokens = 0
    for receipt in preparer.prepare(split):
        rows, rejected = rows + receipt.rows, rejected + receipt.rejected
        tokens += receipt.prompt_tokens
        if sequencer:  # a large file that is one split must not keep the engine waiting
            sequencer.advance()
        if stop.is_set():
            return
    told = {"split": split.ordinal, "file": split.path, "files": len(split.paths), "rows": rows, "rejected": rejected,
            "prompt_tokens": tokens, "seconds": round(time.monotonic() - began, 2)}  # fmt: skip
    _prepare_log.info("split prepared", extra={"figures": told})


def both(storage: Storage, manifest: Manifest, job: Job, name: str, stop: threading.Event) -> None:
    """Prepare in a process beside, and run chunks here: a pod that needs nobody else.

    Raises:
        BatchwrightError: what either of the two could not go on with.
    """
    beside_name = f"{name}-prepare"
    command = [
        sys.executable, "-m", "batchwright", "worker", storage.location,
        "--role", "prepare", "--name", beside_name, "--with-parent",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE) as beside:
        failed = threading.Event()

        def watch() -> None:
            if beside.wait() > 0 and not stop.is_set():
                failed.set()
                stop.set()

        threading.Thread(target=watch, name="prepare-watch", daemon=True).start()
        try:
            infer(storage, manifest, job, name, stop)
        except Stopped:
            error = (
                reported_error(read_heartbeat(storage, beside_name)) if failed.is_set() else None
            )
            raise error or Stopped("stopped") from None
        finally:
            beside.terminate()


def load(storage: Storage, manifest: Manifest, job: Job, name: str, stop: threading.Event) -> None:
    """Load what is committed into the job's vector databases, until the run has no more to come."""
    ledger = Ledger(storage, name, SystemClock(), job.run.lease_s)
    ledger.refresh()
    loaders = [Loader(storage, manifest, job, wanted, ledger, stop) for wanted in job.load]
    if not loaders:
        return

    def state() -> dict[str, Any]:
        phases = ", ".join(dict.fromkeys(loader.phase for loader in loaders))
        rows = sum(loader.rows_sent for loader in loaders)
        return {"role": "load", "phase": phases, "loaded": rows}

    with Heartbeat(ledger, state, job.run.lease_s), ThreadPoolExecutor(len(loaders)) as pool:
        # One database that fails does not keep the others from being filled.
        ends = [pool.submit(loader.run, follow=True) for loader in loaders]
        for end in ends:
            end.exception()
    for end in ends:
        end.result()


ROLES: dict[str, Role] = {
    "infer": infer, "pilot": pilot, "prepare": prepare, "both": both, "load": load,
}  # fmt: skip


def _report(storage: Storage, job: Job, name: str, error: BatchwrightError) -> None:
    ledger = Ledger(storage, name, SystemClock(), job.run.lease_s)
    # Its counters stay: they tell what was done in vain.
    last = read_heartbeat(storage, name)
    counters = {key: value for key, value in last.items() if key not in ledger.own_fields}
    body: dict[str, Any] = {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
    }
    ledger.heartbeat({**counters, "error": body}, ended=True)


def stop_with_parent(stop: threading.Event) -> None:
    """Set `stop` when standard input ends: that is how a worker sees that its parent is gone."""

    def watch() -> None:
        # Not sys.stdin: a thread that holds its lock would break the interpreter's own end.
        while os.read(0, 4096):
            pass
        stop.set()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
