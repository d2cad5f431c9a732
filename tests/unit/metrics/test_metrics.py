"""What a scrape shows: each figure under its name, and nothing of what is not known."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from batchwright.core.errors import JobError
from batchwright.core.pilot import Interval
from batchwright.metrics.server import FAMILIES, Collector, RunLook, serving
from batchwright.metrics.words import Look, WorkerLook
from batchwright.rundir.ledger import Ledger
from batchwright.running.drive import Progress
from tests.unit.metrics.samples import LOOK, PREPARES, PROGRESS, READING, heartbeat
from tests.unit.pages.samples import REPORT
from tests.unit.rundir.small_runs import ManualClock, SmallRun, prompts, small_run


def page(look: Look | None) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(lambda: look))
    return generate_latest(registry).decode()


def values(text: str, name: str) -> dict[str, float]:
    """Labels as they are written to the value."""
    found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def test_every_metric_is_shown_where_everything_is_known() -> None:
    text = page(LOOK)
    assert [one.name for one in FAMILIES if not values(text, one.name)] == []


def test_names_are_unique_and_a_counter_says_so() -> None:
    names = [one.name for one in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(one.name.endswith("_total") == (one.kind == "counter") for one in FAMILIES)
    assert all(one.text.endswith(".") for one in FAMILIES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_names_and_texts_keep_to_the_conventions_of_prometheus() -> None:
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=page(LOOK), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_figures_stand_under_their_names() -> None:
    text = page(LOOK)
    worker = 'role="infer",run="r",worker="w"'
    assert values(text, "batchwright_rows") == {
        'fate="ok",run="r"': 90, 'fate="failed",run="r"': 3, 'fate="rejected",run="r"': 2,
    }  # fmt: skip
    assert values(text, "batchwright_eta_seconds") == {'run="r"': 2}
    assert values(text, "batchwright_rows_finished_total") == {worker: 7}
    assert values(text, "batchwright_feed_starved_seconds_total") == {worker: 0.25}
    assert values(text, "batchwright_prepare_seconds_total")[
        'role="prepare",run="r",step="tokenize",worker="p"'
    ] == 2.0  # fmt: skip
    card = f'gpu="3",host="node-1",{worker}'
    assert values(text, "batchwright_gpu_utilization_ratio") == {card: 0.9}  # of two cards
    assert values(text, "batchwright_gpu_sm_clock_hertz")[card] == 1.41e9
    throttled = values(text, "batchwright_gpu_throttled")
    assert throttled[f'gpu="3",host="node-1",reason="heat",{worker.split(",", 1)[0]},'
                     + worker.split(",", 1)[1]] == 1  # fmt: skip
    assert sum(throttled.values()) == 2


def test_what_is_not_known_is_not_shown() -> None:
    assert page(None) == ""
    bare = Look(run="r", about={}, started_at=5.0, workers=(WorkerLook("w", {"role": "infer"}),))
    text = page(bare)
    assert values(text, "batchwright_run_info") == {'run="r"': 1}
    for name in ("eta_seconds", "rows", "engine_running_rows", "run_estimated_seconds",
                 "rows_finished_total", "gpu_power_watts"):  # fmt: skip
        assert f"batchwright_{name}" not in text


def test_of_a_worker_that_has_ended_counters_stay_and_gauges_go() -> None:
    ended = WorkerLook("w", heartbeat(READING, ended=True), READING)
    text = page(replace(LOOK, workers=(ended,)))
    assert values(text, "batchwright_completion_tokens_total")
    assert values(text, "batchwright_engine_preemptions_total")
    for name in ("worker_info", "engine_running_rows", "gpu_utilization_ratio", "gpu_throttled"):
        assert not values(text, f"batchwright_{name}")


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return small_run(tmp_path, prompts(4), run_dir="runs/r", plan__max_hours=0.5)


def told(run: SmallRun) -> Progress:
    return replace(PROGRESS, run_dir=run.storage.place)


def beat(run: SmallRun, name: str, at: float, reading=READING) -> None:
    clock = ManualClock()
    clock.seconds = at
    state = {key: one for key, one in heartbeat(reading).items() if key not in ("at", "ended")}
    Ledger(run.storage, name, clock, 60).heartbeat(state)


def test_a_look_has_the_workers_of_this_start_and_is_made_at_most_once_a_second(
    run: SmallRun,
) -> None:
    clock = ManualClock()  # at 1000
    beat(run, "of-before", 900.0)
    beat(run, "w", 1001.0)
    watched = RunLook(None, clock.monotonic, clock.now)
    assert watched.look() is None
    watched.watch(told(run))
    first = watched.look()
    assert first is not None
    assert [(one.name, one.reading) for one in first.workers] == [("w", READING)]
    assert (first.run, first.limit_s, first.estimated_s) == ("r", 1800.0, None)
    beat(run, "p", 1002.0, PREPARES)
    pilot = replace(REPORT, hours=Interval(1.0, 2.0, 3.0))
    run.storage.put("pilot.json", orjson.dumps(pilot.as_json()))
    assert watched.look() is first
    clock.seconds += 31.0
    later = watched.look()
    assert later is not None
    assert sorted(one.name for one in later.workers) == ["p", "w"]
    assert later.estimated_s == 7200.0


def test_a_worker_without_a_leader_tells_of_itself_only(run: SmallRun) -> None:
    clock = ManualClock()
    for name in ("w", "w-prepare", "other"):
        beat(run, name, 1001.0)
    watched = RunLook(("w", "w-prepare"), clock.monotonic, clock.now)
    watched.watch(told(run))
    look = watched.look()
    assert look is not None
    assert sorted(one.name for one in look.workers) == ["w", "w-prepare"]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_metrics_are_served_while_the_block_runs(run: SmallRun, port: int) -> None:
    seen: list[Progress] = []
    with serving(port, seen.append) as watch:
        address = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b"batchwright" not in answer.read()
        watch(told(run))
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b'batchwright_rows{fate="ok",run="r"} 90.0' in answer.read()
    assert seen == [told(run)]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def test_a_port_that_is_taken_is_told_before_any_work(port: int) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()
        with (
            pytest.raises(JobError, match=f"port {port}: Address already in use") as error,
            serving(port, lambda _progress: None),
        ):
            pytest.fail("it began")
    assert "--metrics-port" in error.value.hint


def test_without_a_port_nothing_is_served() -> None:
    def watch(_progress: Progress) -> None:
        pass

    with serving(None, watch) as told_to:
        assert told_to is watch
