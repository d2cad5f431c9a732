"""Signs of all rows made in several processes at once, and still in file order."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from typing import IO, Any

import pyarrow as pa

from batchwright.config.job import Job
from batchwright.core import errors
from batchwright.core.errors import BatchwrightError, Stopped
from batchwright.drafts.signer import Signer, Signs
from batchwright.equip.equipment import job_tokenizer
from batchwright.profile.signs import (
    SIGNS,
    signs_from_batch,
    signs_to_batch,
)
from batchwright.rundir import artifacts
from batchwright.rundir.manifest import Manifest
from batchwright.running.roles import stop_with_parent

# Batches of 4,096 rows that a process may be ahead of the count: a split of 16 MiB is about 10.
_BATCHES_AHEAD = 32

_LOOK_AGAIN_S = 0.2


def signs_of_splits(
    manifest: Manifest,
    job: Job,
    sample: float | None,
    block_size: int,
    processes: int,
    stop: threading.Event,
) -> Signs:
    """The number of the split and the signs of its rows, for all, made in several processes.

    Process p makes the splits p, p + `processes`, … and runs ahead by a bounded number of
    batches.

    Raises:
        BatchwrightError: what ended a process.
        Stopped: `stop` was set.
    """
    processes = min(processes, len(manifest.splits))
    task = {"sample": sample, "block_size": block_size, "processes": processes}
    manifest_text = artifacts.dump(replace(manifest, job=job.model_dump(mode="json"))).decode()
    children: list[_Child] = []
    try:
        for index in range(processes):
            children.append(_Child({**task, "index": index, "manifest": manifest_text}))
        for number in range(len(manifest.splits)):
            child = children[number % processes]
            while (batch := child.next(stop)).num_rows:
                yield number, signs_from_batch(batch)
    finally:
        for child in children:
            child.close()


class _Child:
    """A process that makes signs, and the thread that reads them."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "batchwright.foresight.signing"],
            stdin=subprocess.PIPE,  # closes when this process dies: the child sees it
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,
        )
        self._batches: queue.Queue[pa.RecordBatch | None] = queue.Queue(_BATCHES_AHEAD)
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="signs", daemon=True)
        self._reader.start()
        stdin = self._pipe(self._popen.stdin)
        try:
            stdin.write(json.dumps(task).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return  # it is dead already: `next` says so

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None, "it was opened with PIPE"
        return pipe

    def _read(self) -> None:
        try:
            for batch in pa.ipc.open_stream(self._pipe(self._popen.stdout)):
                if not self._put(batch):
                    return
        except (pa.ArrowInvalid, OSError, ValueError):
            pass  # it broke off: the None below says so
        self._put(None)

    def _put(self, batch: pa.RecordBatch | None) -> bool:
        while not self._closed.is_set():
            try:
                self._batches.put(batch, timeout=_LOOK_AGAIN_S)
            except queue.Full:
                continue
            return True
        return False

    def next(self, stop: threading.Event) -> pa.RecordBatch:
        """The next batch; one without rows ends a split."""
        while True:
            try:
                batch = self._batches.get(timeout=_LOOK_AGAIN_S)
                break
            except queue.Empty:
                if stop.is_set():
                    raise Stopped("stopped before all rows were profiled") from None
        if batch is None:
            raise BatchwrightError(
                f"a process that reads and tokenises rows ended (exit code {self._popen.wait()}): "
                f"{self._last_words()}",
                "Is there enough memory? Fewer processes need less of it.",
            )
        if batch.num_rows and batch.column("split")[0].as_py() < 0:
            kind = getattr(errors, batch.column("code")[0].as_py())
            raise kind(*json.loads(batch.column("id")[0].as_py()))
        return batch

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._closed.set()
        self._popen.kill()
        self._popen.wait()
        self._reader.join()
        self._pipe(self._popen.stdout).close()
        with contextlib.suppress(BrokenPipeError):
            self._pipe(self._popen.stdin).close()
        self._log.close()


def main() -> None:
    """A child: reads its task as one line of JSON, writes a stream of Arrow batches."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what libraries print must not get between the batches
        task = json.loads(sys.stdin.buffer.readline())
        stop = threading.Event()
        stop_with_parent(stop)
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        with pa.ipc.new_stream(out, SIGNS) as stream:
            try:
                _send(stream, task, out, stop)
            except BatchwrightError as error:
                stream.write_batch(_error_batch(error))


def _send(
    stream: pa.RecordBatchStreamWriter, task: dict[str, Any], out: IO[bytes], stop: threading.Event
) -> None:
    manifest = artifacts.load(Manifest, task["manifest"].encode(), "the task")
    job = Job.model_validate(manifest.job)
    end = pa.RecordBatch.from_pylist([], schema=SIGNS)
    signer = Signer(manifest, job, job_tokenizer(job), task["sample"], task["block_size"])
    for number in range(task["index"], len(manifest.splits), task["processes"]):
        for signs in signer.split(number):
            if stop.is_set():
                return
            stream.write_batch(signs_to_batch(signs, number))
        stream.write_batch(end)
        out.flush()


def _error_batch(error: BatchwrightError) -> pa.RecordBatch:
    row = {
        "split": -1,
        "code": type(error).__name__,
        "id": json.dumps([error.message, error.hint]),
    }
    return pa.RecordBatch.from_pylist([row], schema=SIGNS)


if __name__ == "__main__":
    main()
