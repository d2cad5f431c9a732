"""Workers that share one run in a bucket, and what a cluster does to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from batchwright.rundir import layout
from batchwright.rundir.ledger import Roster
from batchwright.rundir.storage import Storage

LEASE_S = 6


def write_rows(storage: Storage, rows: int, files: int = 4) -> None:
    """Prompts as JSON lines in some files of a bucket."""
    per_file = -(-rows // files)
    for file in range(files):
        numbers = range(file * per_file, min(rows, (file + 1) * per_file))
        lines = [json.dumps({"id": f"r{n}", "prompt": f"row number {n}"}) for n in numbers]
        storage.put(f"rows-{file}.jsonl", "\n".join(lines).encode())


def write_job(path: Path, bucket: str, *, chunk_rows: int, seconds_per_step: float) -> Path:
    """A job file whose input, run and results are in the bucket."""
    path.write_text(
        json.dumps(
            {
                "input": {"path": f"{bucket}/in/*.jsonl"},
                "engine": {"kind": "fake", "options": {"seconds_per_step": seconds_per_step}},
                "sampling": {"max_tokens": 8},
                "output": {"path": f"{bucket}/out", "format": "jsonl"},
                "run": {
                    "dir": f"{bucket}/run", "lease_s": LEASE_S, "chunk_rows": chunk_rows,
                    "grace_s": 2, "order": "file",
                },
            }
        )
    )  # fmt: skip
    return path


@dataclass
class Crew:
    """Worker processes of one job.

    Attributes:
        job: the job file.
        environment: of the processes.
        folder: for what they print.
        workers: all that were started.
    """

    job: Path
    environment: dict[str, str]
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add(self, count: int = 1, *arguments: str) -> None:
        """Start workers as a pod or a Slurm task would: with nothing but the job's name."""
        for _ in range(count):
            with (self.folder / f"worker-{len(self.workers)}").open("wb") as log:
                command = [
                    sys.executable,
                    "-m",
                    "batchwright",
                    "worker",
                    *(arguments or (str(self.job),)),
                ]
                self.workers.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        env=self.environment, start_new_session=True,
                    )
                )  # fmt: skip

    def said(self, number: int) -> str:
        """What a worker printed."""
        return (self.folder / f"worker-{number}").read_text(errors="replace")

    def signal(self, number: int, what: signal.Signals, *, family: bool) -> None:
        """Send a signal to a worker, with or without the processes below it."""
        members = [psutil.Process(self.workers[number].pid)]
        if family:
            members += members[0].children(recursive=True)
        for member in members:
            try:
                os.kill(member.pid, what)
            except ProcessLookupError:
                continue

    def wait(self, numbers: Sequence[int], seconds: float) -> list[int]:
        """Exit codes."""
        deadline = time.monotonic() + seconds
        codes = []
        for number in numbers:
            try:
                codes.append(self.workers[number].wait(max(1.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"worker {number} runs on: {self.said(number)}") from None
        return codes

    def end(self) -> None:
        """Kill what is left."""
        for number, worker in enumerate(self.workers):
            if worker.poll() is None:
                self.signal(number, signal.SIGCONT, family=True)
                self.signal(number, signal.SIGKILL, family=True)
                worker.wait()


def wait_for_receipts(storage: Storage, count: int, seconds: float, crew: Crew) -> None:
    """Until so many chunks are done."""
    deadline = time.monotonic() + seconds
    while len(storage.names(layout.RECEIPTS)) < count:
        assert time.monotonic() < deadline, [crew.said(n) for n in range(len(crew.workers))]
        time.sleep(0.2)


def first_at_work(storage: Storage, crew: Crew, seconds: float) -> int:
    """Number of a worker that has rows in its engine."""
    deadline = time.monotonic() + seconds
    roster = Roster(storage)
    numbers = {worker.pid: number for number, worker in enumerate(crew.workers)}
    while True:
        for state in roster.read().values():
            if state.get("in_flight") and state.get("pid") in numbers:
                return numbers[state["pid"]]
        assert time.monotonic() < deadline, [crew.said(n) for n in range(len(crew.workers))]
        time.sleep(0.1)


def wait_until_all_work(storage: Storage, crew: Crew, seconds: float) -> None:
    """Until every worker has rows in its engine."""
    deadline = time.monotonic() + seconds
    roster = Roster(storage)
    wanted = {worker.pid for worker in crew.workers}
    while True:
        states = roster.read().values()
        if wanted <= {state.get("pid") for state in states if state.get("in_flight")}:
            return
        assert time.monotonic() < deadline, [crew.said(n) for n in range(len(crew.workers))]
        time.sleep(0.2)


def all_ids(results: Storage) -> list[str]:
    """Ids of every row of JSON lines results."""
    names = [name for name in results.names("") if name.startswith("results-")]
    lines: list[Any] = []
    for name in names:
        lines += [json.loads(line)["id"] for line in results.read(name).splitlines()]
    return lines
