"""The diagnosis of run directories: real runs of the fake engine, with readings as they would be.

What a run is like for minutes is made up of readings laid into the directory of a short real run;
`benchmarks/diagnose.py` makes the long ones for real.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.core.readings import Reading
from batchwright.engines.last_log import start_line
from batchwright.rundir import layout
from batchwright.rundir.readings import reading_line
from tests.e2e.command import call
from tests.support.readings import CARD, infer_readings, prepare_readings

ROWS = 600
SETTINGS = ["--engine", "fake", "--column", "prompt", "--set", "run.pilot_rows=0",
            "--set", "run.chunk_rows=100"]  # fmt: skip


def make_run(folder: Path, prompts: Sequence[str], *settings: str) -> Path:
    rows = [json.dumps({"id": f"r{n}", "prompt": prompt}) for n, prompt in enumerate(prompts)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    call("run", folder / "rows.jsonl", "--dir", folder / "run", *SETTINGS, *settings)
    return folder / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with nothing wrong."""
    prompts = [f"{number}: say something" for number in range(ROWS)]
    return make_run(tmp_path_factory.mktemp("well"), prompts)


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to lay readings into."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def diagnose(run_dir: Path, *options: str, exit_code: int = 0) -> dict[str, Any]:
    shown = CliRunner().invoke(app, ["diagnose", str(run_dir), "--json", *options])
    assert shown.exit_code == exit_code, shown.output
    return dict(json.loads(shown.stdout))


def codes(run_dir: Path) -> list[str]:
    return [one["code"] for one in diagnose(run_dir)["findings"]]


def lay(run_dir: Path, *workers: list[Reading]) -> Path:
    """In place of the run's own readings, which are too few."""
    shutil.rmtree(run_dir / layout.TELEMETRY)
    (run_dir / layout.TELEMETRY).mkdir()
    for readings in workers:
        lines = b"".join(map(reading_line, readings))
        (run_dir / layout.telemetry(readings[0].worker)).write_bytes(lines)
    return run_dir


def readings(name: str = "infer-1", **how: Any) -> list[Reading]:
    """Of a worker that began just now: what an earlier start left is no tail of this one."""
    return infer_readings(name, begun_at=time.time(), **how)


SCENARIOS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("slow_reading", {"starved": 0.4}, {"read_s": 90.0}),
    ("slow_tokenizing", {"starved": 0.4}, {"tokenize_s": 90.0}),
    ("slow_media", {"media": 0.4}, {}),
    ("slow_writes", {"commit_wait": 0.3}, {}),
    ("small_batch", {"running": 32, "slots": 32, "kv_use": 0.1}, {}),
    ("kv_full", {"kv_use": 0.97, "preemptions_per_s": 20.0}, {}),
    ("host_bound", {"core": 0.98, "cards": (replace(CARD, use=0.4),)}, {}),
    ("throttled", {"cards": (replace(CARD, throttled=("heat",), sm_mhz=1100),)}, {}),
    ("others_on_card", {"cards": (replace(CARD, others_bytes=20 << 30),)}, {}),
    ("tail", {"tail_s": 60.0}, {}),
    ("slowing", {"seconds": 1200.0, "slowing": 0.6}, {}),
]


@pytest.mark.parametrize(("code", "engine", "preparing"), SCENARIOS)
def test_the_first_finding_names_the_cause(
    run_dir: Path, code: str, engine: dict[str, Any], preparing: dict[str, Any]
) -> None:
    lay(run_dir, readings(**engine), prepare_readings(**preparing))
    assert codes(run_dir) == [code]


def test_one_slow_engine_among_three(run_dir: Path) -> None:
    slow = readings("infer-slow", rows_per_s=20, seconds=120)
    lay(run_dir, readings("infer-1"), readings("infer-2"), slow, prepare_readings())
    (finding,) = diagnose(run_dir)["findings"]
    assert (finding["code"], finding["worker"]) == ("slow_replica", "infer-slow")


def test_an_engine_that_has_nothing_left_is_a_tail(run_dir: Path) -> None:
    lay(run_dir, readings("infer-1", seconds=60), readings("infer-2"), prepare_readings())
    assert codes(run_dir) == ["tail"]


def test_small_files_that_the_engine_waits_for(run_dir: Path) -> None:
    manifest = json.loads((run_dir / layout.MANIFEST).read_bytes())
    manifest["files"] = [
        {"path": f"{number}.jsonl", "size": 50, "identity": "x"} for number in range(2_000)
    ]
    (run_dir / layout.MANIFEST).write_text(json.dumps(manifest))
    lay(run_dir, readings(starved=0.4), prepare_readings(read_s=90))
    assert codes(run_dir) == ["small_files"]


def test_a_healthy_run_is_told_so_with_its_figures(run_dir: Path) -> None:
    lay(run_dir, readings(), prepare_readings())
    shown = CliRunner().invoke(app, ["diagnose", str(run_dir), "--check"])
    assert shown.exit_code == 0
    first, worker = shown.stdout.splitlines()
    assert first.startswith(f"{run_dir}: nothing is wrong. workers 1, GPU use 95 %, engine starved")
    assert worker == "worker   infer-1: engine-bound"


def test_a_short_run_is_not_judged_by_its_shares(finished: Path) -> None:
    found = diagnose(finished)
    assert found["findings"] == []
    assert [one["bound"] for one in found["verdicts"]] == ["too short to say"]
    assert "less than 20 s" in found["unknown"][0]


def test_a_run_of_a_version_without_readings(run_dir: Path) -> None:
    (run_dir / layout.TELEMETRY).rename(run_dir / "away")
    (run_dir / layout.TELEMETRY).mkdir()
    old = b'{"at":1.0,"rows":5,"running":3,"kv_use":0.1}\n'
    (run_dir / layout.telemetry("infer-old")).write_bytes(old)
    found = diagnose(run_dir)
    assert found["findings"] == []
    assert found["unknown"][0].startswith("There are no readings")
    assert found["figures"]["answers"] == f"{ROWS}"


def test_a_run_that_goes_on_has_no_tail_yet(run_dir: Path) -> None:
    lay(run_dir, readings(tail_s=60), prepare_readings())
    (run_dir / layout.SUCCESS).unlink()
    last = sorted((run_dir / layout.RECEIPTS).iterdir())[-1]
    last.unlink()
    (beat,) = (run_dir / layout.WORKERS).glob("infer-*.json")
    living = {"ended": False, "at": time.time(), "host": "elsewhere"}
    beat.write_text(json.dumps(json.loads(beat.read_bytes()) | living))
    assert codes(run_dir) == []


def test_findings_are_told_to_people_and_to_scripts(run_dir: Path) -> None:
    lay(run_dir, readings(starved=0.4), prepare_readings(read_s=90))
    shown = CliRunner().invoke(app, ["diagnose", str(run_dir), "--check"])
    assert shown.exit_code == 1
    text = shown.stdout
    assert "1. The engine waits for input that is read too slowly [slow_reading]" in text
    assert "   weight   loss, worth up to 40 % of the time" in text
    assert "known by engine starved: 40 %" in text
    assert "worker   infer-1: prep-bound (40 % of its time)" in text
    assert max(map(len, text.splitlines())) <= 100
    diagnose(run_dir, "--check", exit_code=1)


def test_answers_that_are_cut_and_rows_that_repeat(tmp_path: Path) -> None:
    prompts = [f"say {number % 50}" for number in range(ROWS)]
    run_dir = make_run(tmp_path, prompts, "--set", "sampling.max_tokens=12")
    cut, copies = diagnose(run_dir)["findings"]
    assert (cut["code"], cut["weight"]) == ("answers_cut", "broken")
    assert copies["code"] == "duplicates"
    assert dict(copies["evidence"])["repeats"] == "92 % of 600 rows looked at"


def test_an_engine_that_cannot_start_is_explained_by_its_log(run_dir: Path) -> None:
    """The log, the last heartbeat and the readings of a worker whose engine never came up."""
    (beat,) = (run_dir / layout.WORKERS).glob("infer-*.json")
    state = json.loads(beat.read_bytes())
    error = {
        "kind": "EngineError",
        "message": "the engine did not start\n  | see above",
        "hint": "",
    }
    state |= {"error": error, "engine": None, "ended": True}
    beat.write_text(json.dumps(state))
    told = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    head = "(EngineCore_DP0 pid=7) ERROR 11-30 03:00:00 [core.py:700] "
    log = f"{head}Traceback (most recent call last):\n{head}{told}\n{head}Engine core failed\n"
    (run_dir / layout.LOGS / f"{beat.stem}.engine.log").write_text(log)
    (finding,) = diagnose(run_dir)["findings"]
    assert finding["code"] == "out_of_memory"
    assert finding["worker"] == beat.stem
    assert ["the engine says", told] in finding["evidence"]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def end_with(run_dir: Path, error: dict[str, str], *starts: str) -> None:
    """The last sign of life of a worker that an error ended, and its engine's log, start by start."""
    (beat,) = (run_dir / layout.WORKERS).glob("infer-*.json")
    state = json.loads(beat.read_bytes())
    beat.write_text(json.dumps(state | {"error": error, "ended": True}))
    log = b"".join(start_line(1e9 + n) + text.encode() for n, text in enumerate(starts))
    (run_dir / layout.LOGS / f"{beat.stem}.engine.log").write_bytes(log)


def test_a_fault_of_an_older_start_is_none_of_this_one(run_dir: Path) -> None:
    error = {"kind": "JobError", "message": "no such adapter", "hint": ""}
    end_with(run_dir, error, OOM, "all is well\n")
    assert codes(run_dir) == []
    end_with(run_dir, error, "all is well\n", OOM)
    assert codes(run_dir) == ["out_of_memory"]


def test_of_two_faults_the_last_start_has_the_one_that_counts(run_dir: Path) -> None:
    error = {"kind": "EngineDied", "message": "the engine process ended", "hint": ""}
    end_with(run_dir, error, OOM, "No space left on device\n")
    (finding,) = diagnose(run_dir)["findings"]
    assert ["kind", "disk_full"] in finding["evidence"]


def test_an_engine_that_came_up_again_is_explained_by_the_start_that_died(run_dir: Path) -> None:
    (beat,) = (run_dir / layout.WORKERS).glob("infer-*.json")
    now = time.time()
    log = start_line(now) + OOM.encode() + start_line(now + 1) + b"No space left on device\n"
    (run_dir / layout.LOGS / f"{beat.stem}.engine.log").write_bytes(log)
    event = {"at": now + 2, "worker": beat.stem, "event": "engine_restarted", "reason": "gone"}
    with (run_dir / layout.EVENTS).open("a") as events:
        events.write(json.dumps(event) + "\n")
    assert codes(run_dir) == ["out_of_memory"]


def test_a_death_without_known_words_shows_the_last_ones(run_dir: Path) -> None:
    (beat,) = (run_dir / layout.WORKERS).glob("infer-*.json")
    event = {"at": time.time(), "worker": beat.stem, "event": "engine_restarted",
             "reason": "the engine hangs: no step for 600 s"}  # fmt: skip
    with (run_dir / layout.EVENTS).open("a") as events:
        events.write(json.dumps(event) + "\n{torn")
    (finding,) = diagnose(run_dir)["findings"]
    assert finding["code"] == "engine_failed"
    assert ["last words", "the engine hangs: no step for 600 s"] in finding["evidence"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    found = diagnose(tmp_path / "nothing", exit_code=2)
    assert "is not a run directory" in found["error"]["message"]
