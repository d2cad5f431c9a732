"""Killed at any moment and started again, a run ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.command import call, kill_all, result_bytes, start

# The acceptance figure is 100,000 rows; the suite takes fewer, so that it stays short.
ROWS = int(os.environ.get("BATCHWRIGHT_KILL_ROWS", "20000"))
KILLS = 5


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rng = random.Random(7)
    with path.open("w") as file:
        for row in range(ROWS):
            if row % 997 == 5:
                file.write("{this is not json\n")
            elif row % 1009 == 7:
                file.write(f'{{"id": "r{row}", "prompt": ""}}\n')
            elif row % 1013 == 9:
                file.write(f'{{"id": "r{row - 1}", "prompt": "the id is taken"}}\n')
            else:
                words = " ".join(rng.choices(["red", "green", "blue"], k=rng.randint(1, 9)))
                file.write(f'{{"id": "r{row}", "prompt": "{words}", "n_words": {row % 7}}}\n')
    return path


@pytest.fixture(scope="module")
def options(rows: Path) -> list[str]:
    step_s = 0.02 if ROWS <= 20000 else 0.005
    return [
        "run", str(rows), "--engine", "fake", "--max-tokens", "12",
        "--set", f"engine.options.seconds_per_step={step_s}",
        "--set", "run.max_failed=1", "--set", "run.lease_s=5", "--set", "run.chunk_rows=500",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    summary = call(*options, "--dir", run_dir)
    assert summary["rows_in"] == ROWS
    return result_bytes(run_dir)


def test_sigkill_of_everything(
    options: list[str], undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    rng = random.Random()
    kills = 0
    for _ in range(KILLS):
        process = start(*options, "--dir", run_dir)
        try:
            process.wait(timeout=rng.uniform(1.0, 4.0))
        except subprocess.TimeoutExpired:
            kill_all(process)
            kills += 1
    summary = call(*options, "--dir", run_dir)
    proof = call("verify", run_dir)
    assert kills, "the run was over before the first kill: more rows are needed"
    assert proof["passed"]
    assert (proof["missing"], proof["duplicates"]) == (0, 0)
    assert proof["rows_in"] == ROWS == summary["rows_in"]
    assert result_bytes(run_dir) == undisturbed


def wait_for_a_receipt(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """The run is under way: a fixed time would be too short on one machine and too long on another."""
    while not any(run_dir.glob("receipts/*")):
        assert process.poll() is None, "the run ended by itself"
        time.sleep(0.02)


def test_sigkill_of_the_parent_alone(
    options: list[str], undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = start(*options, "--dir", run_dir)
    wait_for_a_receipt(process, run_dir)
    process.kill()
    process.wait()
    call(*options, "--dir", run_dir)
    assert call("verify", run_dir)["passed"]
    assert result_bytes(run_dir) == undisturbed


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)]
)
def test_asked_to_stop(
    number: signal.Signals,
    exit_code: int,
    options: list[str],
    undisturbed: dict[str, bytes],
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    process = start(*options, "--dir", run_dir)
    wait_for_a_receipt(process, run_dir)
    process.send_signal(number)
    assert process.wait(timeout=60) == exit_code
    status = call("status", run_dir)
    assert not status["complete"]
    assert not status["workers"], "every worker has said that it ended"
    call(*options, "--dir", run_dir)
    assert result_bytes(run_dir) == undisturbed
