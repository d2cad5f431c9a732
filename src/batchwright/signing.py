"""Rows to signs, in this process or in several: what the profile is counted from."""

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
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchwright.config.job import Job
from batchwright.core import errors
from batchwright.core.errors import BatchwrightError, RowError, Stopped
from batchwright.core.ports import Tokenizer
from batchwright.core.records import RowBatch
from batchwright.prepare import RowPreparer, make_prompt_builder
from batchwright.profile.scripts import main_script
from batchwright.profile.signs import (
    NOT_COUNTED,
    NOT_TAKEN,
    SIGNS,
    RowSigns,
    make_signs,
    signs_from_batch,
    signs_to_batch,
)
from batchwright.read.rows import read_split
from batchwright.roles import job_tokenizer, stop_with_parent
from batchwright.rundir import artifacts
from batchwright.rundir.manifest import Manifest
from batchwright.tokens.fit import Fitter
from batchwright.validate.sampling import shortest_answer

# The preparer is told no limit, so that rows over it are measured too; it is applied here.
_NO_LIMIT = 1 << 30

# One row in so many is looked at for its script.
_SCRIPT_EVERY = 8

# Batches of 4,096 rows that a process may be ahead of the count: a split of 16 MiB is about 10.
_BATCHES_AHEAD = 32

_LOOK_AGAIN_S = 0.2

Signs = Generator[tuple[int, RowSigns], None, None]


class Signer:
    """Batches of rows to their signs.

    Args:
        sample: share of the rows to look at, None for all. A row is taken by a hash of its split
            and its place in it, so the same rows are taken each time.
    """

    def __init__(
        self,
        manifest: Manifest,
        job: Job,
        tokenizer: Tokenizer,
        sample: float | None,
        block_size: int,
    ) -> None:
        self._rows = RowPreparer(job, tokenizer, replace(manifest, max_model_len=_NO_LIMIT))
        self._manifest = manifest
        self._prompts = make_prompt_builder(job, chat=manifest.chat)
        self._fitter = Fitter(tokenizer, manifest.max_model_len, job.plan.over_length)
        self._sample = sample
        self._block_size = block_size

    def split(self, number: int) -> Iterator[RowSigns]:
        """The signs of a split, batch by batch. Raises InputError if the file is damaged."""
        manifest, first = self._manifest, 0
        split = manifest.splits[number]
        for batch in read_split(split, manifest.format, manifest.arrow_input_type()):
            if batch.records:
                yield self.sign(batch, number, first)
                first += len(batch.records)

    def sign(self, batch: RowBatch, split: int, first: int) -> RowSigns:
        """The signs of a batch that begins with row `first` of a split."""
        taken = self._taken(split, first, len(batch.records))
        drafts = iter(self._rows.prepare(_only(batch, taken)))
        rows = [self._sign(next(drafts)) if take else _UNSEEN for take in taken.tolist()]
        lengths = np.array([len(row.token_ids) for row in rows], dtype=np.int64)
        flat = [token for row in rows for token in row.token_ids]
        return make_signs(
            ids=[row.id for row in rows],
            codes=[row.code for row in rows],
            full=np.array([row.full for row in rows], dtype=np.int32),
            token_ids=np.array(flat, dtype=np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            max_tokens=[row.max_tokens for row in rows],
            sampling=[row.sampling for row in rows],
            scripts=self._scripts(batch, rows),
            block_size=self._block_size,
        )

    def token_ids(self, number: int, index: int) -> list[int]:
        """The prompt of row `index` of a split; the split is read again up to there."""
        manifest = self._manifest
        split = manifest.splits[number]
        for batch in read_split(split, manifest.format, manifest.arrow_input_type()):
            if index < len(batch.records):
                return self._prompt_of(batch, index)
            index -= len(batch.records)
        return []

    def _prompt_of(self, batch: RowBatch, index: int) -> list[int]:
        alone = np.arange(len(batch.records)) == index
        (draft,) = self._rows.prepare(_only(batch, alone))
        return self._sign(draft).token_ids

    def _taken(self, split: int, first: int, rows: int) -> npt.NDArray[np.bool_]:
        if self._sample is None:
            return np.ones(rows, dtype=np.bool_)
        place = np.arange(first, first + rows, dtype=np.uint64) + np.uint64(split << 36)
        mixed = (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        return mixed < np.uint64(int(self._sample * float(1 << 64)))

    def _sign(self, draft: Any) -> _Row:
        """A draft, cut or rejected as preparing it within the limit would."""
        if draft.problem:
            return _Row(draft.id, draft.problem[0], NOT_COUNTED, [], 0, draft.sampling, None)
        full = len(draft.token_ids)
        try:
            ids, max_tokens, _ = self._fitter.fit(
                draft.prompt, draft.token_ids, draft.max_tokens, shortest_answer(draft.sampling)
            )
        except RowError as error:
            return _Row(draft.id, error.code, full, [], 0, draft.sampling, None)
        return _Row(draft.id, None, full, ids, max_tokens, draft.sampling, draft.prompt)

    def _scripts(self, batch: RowBatch, rows: list[_Row]) -> npt.NDArray[np.int8]:
        scripts = np.full(len(rows), -1, dtype=np.int8)
        for index in range(0, len(rows), _SCRIPT_EVERY):
            row, record = rows[index], batch.records[index]
            if row.code is None and record is not None:
                scripts[index] = main_script(self._prompts.own_text(record, row.prompt))
        return scripts


@dataclass(frozen=True, slots=True)
class _Row:
    id: str | None
    code: str | None
    full: int
    token_ids: list[int]
    max_tokens: int
    sampling: str
    prompt: Any


_UNSEEN = _Row(None, NOT_TAKEN, NOT_COUNTED, [], 0, "{}", None)


def _only(batch: RowBatch, taken: npt.NDArray[np.bool_]) -> RowBatch:
    """The records of some rows; what the output keeps of them is not asked for here."""
    if taken.all():
        return batch
    kept = np.flatnonzero(taken).tolist()
    problems = {new: batch.problems[old] for new, old in enumerate(kept) if old in batch.problems}
    records = [batch.records[index] for index in kept]
    return RowBatch(records, batch.kept, [batch.lines[index] for index in kept], problems)


def sign_splits(signer: Signer, splits: int) -> Signs:
    """The number of the split and the signs of its rows, for all, made in this process."""
    for number in range(splits):
        for signs in signer.split(number):
            yield number, signs


def signs_of_splits(
    manifest: Manifest,
    job: Job,
    sample: float | None,
    block_size: int,
    processes: int,
    stop: threading.Event,
) -> Signs:
    """The same made in several processes, and still in file order.

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
            [sys.executable, "-m", "batchwright.signing"],
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
