"""Any process of several commands on one run is killed, stopped for a while or asked to end, at any moment.

What came of it is read by pyarrow alone: every row once, in input order, with the answer of a run that
nobody disturbed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.command import call, kill_all, start

ROWS = 6000
TROUBLE_S = 45.0
LEASE_S = 3


def results(run_dir: Path) -> pa.Table:
    files = sorted((run_dir / "results").glob("results-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        head = psutil.Process(process.pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class Trouble:
    """What befalls processes, by chance with a fixed seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stopped: list[tuple[float, psutil.Process]] = []

    def strike(self, victim: psutil.Process) -> None:
        """SIGKILL mostly; SIGTERM; or SIGSTOP, for shorter or longer than the lease."""
        what = self.chance.choices(
            [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], weights=[6, 2, 2]
        )[0]
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(what)
        if what == signal.SIGSTOP:
            until = time.monotonic() + self.chance.uniform(1, 2 * LEASE_S)
            self.stopped.append((until, victim))

    def wake(self, now: float) -> None:
        """Let those go on whose time is up."""
        for until, victim in self.stopped:
            if until < now:
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.resume()
        self.stopped = [one for one in self.stopped if one[0] >= now]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_befalls_processes_no_row_is_lost_or_there_twice(
    seed: int, tmp_path: Path
) -> None:
    trouble = Trouble(seed)
    chance = trouble.chance
    rows = tmp_path / "rows.jsonl"
    words = ["red", "green", "blue"]
    rows.write_text(
        "".join(
            f'{{"id": "r{n}", "prompt": "{" ".join(chance.choices(words, k=5))} {n}"}}\n'
            for n in range(ROWS)
        )
    )
    options = [
        "run", rows, "--engine", "fake", "--max-tokens", "12", "--set", f"run.lease_s={LEASE_S}",
        "--set", "run.chunk_rows=150", "--set", "run.grace_s=2",
        "--set", f"run.order={chance.choice(['file', 'prefix', 'auto'])}",
        "--set", f"run.pilot_rows={chance.choice([0, 100])}",
    ]  # fmt: skip
    slow = [
        "--set", "engine.options.seconds_per_step=0.25", "--set", "engine.options.rows_per_step=100",
    ]  # fmt: skip
    call(*options, "--dir", tmp_path / "whole")
    run_dir = tmp_path / "run"
    commands: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + TROUBLE_S
    try:
        while time.monotonic() < deadline and not (run_dir / "_SUCCESS").exists():
            commands = [one for one in commands if one.poll() is None]
            while len(commands) < 2:
                alone = chance.random() < 0.4 and (run_dir / "manifest.json").exists()
                line = ["worker", run_dir] if alone else [*options, *slow, "--dir", run_dir]
                commands.append(start(*line))
            time.sleep(chance.uniform(0.3, 2.5))
            trouble.wake(time.monotonic())
            if living := [member for one in commands for member in family(one)]:
                trouble.strike(chance.choice(living))
    finally:
        trouble.wake(float("inf"))
        for one in commands:
            if one.poll() is None:
                kill_all(one)
    call(*options, "--dir", run_dir)
    found, wanted = results(run_dir), results(tmp_path / "whole")
    assert found.column("row").to_pylist() == list(range(ROWS))
    for name in ("id", "text", "status"):
        assert found.column(name).to_pylist() == wanted.column(name).to_pylist()
    assert call("verify", run_dir)["passed"]
