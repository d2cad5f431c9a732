"""Who looks at a run from outside sees how far it is, how fast, and what has failed."""

from __future__ import annotations

import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.cli.dashboard import cards_line, dashboard
from batchwright.core.readings import CardReading
from batchwright.rundir import layout
from batchwright.rundir.readings import plain_reading
from batchwright.views.looking import FailureLook, Look, Onlooker
from tests.unit.rundir.small_runs import SmallRun
from tests.unit.small_reports import answered_run, commit, reading


def living(run: SmallRun, worker: str, started: float, seconds: float, role: str = "infer") -> None:
    """A worker's sign of life, so many seconds after its start."""
    now = reading(worker, started, seconds)
    beat = {
        "role": role, "host": "node-1", "started": started, "at": now.at, "ended": False,
        "phase": "running", "rows": now.rows, "completion_tokens": now.completion_tokens,
        "uncommitted": 5, "reading": plain_reading(now),
    }  # fmt: skip
    run.storage.put(layout.heartbeat(worker), orjson.dumps(beat))


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return answered_run(tmp_path)


def onlooker(run: SmallRun) -> Onlooker:
    return Onlooker(run.storage, run.manifest, run.job)


def test_a_run_that_nobody_works_on(run: SmallRun) -> None:
    look = onlooker(run).look()
    assert (look.rows_done, look.rows_expected, look.workers) == (20, 40, ())
    assert (look.phase, look.is_running, look.is_finished, look.eta_s) == (
        "nobody works on it", False, False, None,
    )  # fmt: skip
    assert [one.row for one in look.failures] == [4, 3]
    assert look.failures[0].code == "engine_refused"


def test_rates_and_the_end_come_of_what_workers_tell(run: SmallRun) -> None:
    now = time.time()
    for name in ("infer-a", "infer-b"):
        living(run, name, now - 60, 40.0)
    eyes = onlooker(run)
    assert eyes.look().rows_per_s == 0.0, "one sign of life is no speed"
    for name in ("infer-a", "infer-b"):
        living(run, name, now - 60, 60.0)
    look = eyes.look()
    assert look.rows_per_s == pytest.approx(2.0)
    assert look.tokens_per_s == pytest.approx(20.0)
    assert look.rows_done == 30, "20 committed, and 5 of each finished"
    assert look.eta_s == pytest.approx(5.0)
    assert [one.number for one in look.workers] == [3, 4], "two have ended"
    assert look.workers[0].starved_share == pytest.approx(0.1)


def test_a_first_look_has_rates_by_the_telemetry(run: SmallRun) -> None:
    """The two workers that have left telemetry live again, as it were."""
    body = orjson.loads(run.storage.read(layout.heartbeat("infer-0")))
    fresh = {**body, "ended": False, "rows": 80, "completion_tokens": 800}
    run.storage.put(layout.heartbeat("infer-0"), orjson.dumps(fresh))
    (worker,) = onlooker(run).look().workers
    assert worker.rows_per_s == pytest.approx(1.0)
    assert worker.reading is not None
    assert worker.reading.engine is not None


def test_a_silent_worker_is_named_and_counts_for_nothing(run: SmallRun) -> None:
    living(run, "infer-a", time.time() - 1000, 60.0)
    look = onlooker(run).look()
    assert look.workers[0].is_silent
    assert look.phase == "nobody works on it"
    assert not look.is_running
    assert look.rows_per_s == 0.0


def test_only_new_failures_are_read(run: SmallRun) -> None:
    eyes = onlooker(run)
    assert len(eyes.look().failures) == 2
    commit(run, "infer-0", 2)
    assert len(eyes.look().failures) == 2
    run.storage.put(layout.SUCCESS, b"")
    look = eyes.look()
    assert (look.phase, look.is_finished, look.counts.ok) == ("finished", True, 28)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Look:
    """A run with 60 workers and failures with long messages."""
    run = answered_run(tmp_path_factory.mktemp("crowd"))
    now = time.time()
    for number in range(60):
        living(run, f"infer-{number:03d}", now - 60, 60.0 - number / 100)
    long = tuple(FailureLook(n, "engine_refused", "不行 " * 60) for n in range(9))
    return replace(onlooker(run).look(), failures=long)


def of(look: Look, workers: int) -> Look:
    """The same with so many workers."""
    return replace(look, workers=look.workers[:workers])


def lines_of(look: Look, width: int, height: int) -> list[str]:
    text = StringIO()
    console = Console(file=text, width=width, height=height, force_terminal=False)
    console.print(dashboard(look, height, width), highlight=False)
    return text.getvalue().splitlines()


@pytest.mark.parametrize("workers", [0, 1, 4, 60])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (60, 10)])
def test_it_fits_any_terminal(crowd: Look, workers: int, width: int, height: int) -> None:
    lines = lines_of(of(crowd, workers), width, height)
    assert len(lines) < max(height, 17)
    assert max(map(len, lines)) <= width


def test_what_a_terminal_of_80_columns_shows(crowd: Look) -> None:
    text = "\n".join(lines_of(of(crowd, 2), 80, 24))
    for wanted in (
        "40 of 40 rows", "18 ok", "2 failed", "2 of 4 chunks", "64/3/64", "50%", "GPU", "90% busy",
        "75/86 GB", "600 W", "worker 3", "engine_refused", "starved", "preempt", "seen",
    ):  # fmt: skip
        assert wanted in text, f"{wanted}\n{text}"


def test_many_workers_are_counted_where_there_is_no_room(crowd: Look) -> None:
    assert any("more workers" in line for line in lines_of(crowd, 80, 24))


def test_several_cards_are_one_line() -> None:
    cards = (
        CardReading(0, use=1.0, memory_bytes=70_000_000_000, power_w=500.0),
        CardReading(1, use=0.5, memory_bytes=71_000_000_000, power_w=510.0, throttled=("heat",)),
    )
    assert cards_line(cards) == "2 GPUs · 75% busy · 71 GB · 1,010 W · held down by heat"


def test_the_command_prints_one_view_where_there_is_no_terminal(run: SmallRun) -> None:
    place = str(run.storage.root)
    shown = CliRunner().invoke(app, ["top", place])
    assert shown.exit_code == 0
    assert "20 of 40 rows" in shown.stdout
    assert "\x1b" not in shown.stdout
    told = orjson.loads(CliRunner().invoke(app, ["top", place, "--json"]).stdout)
    assert (told["ok"], told["rows_done"], told["complete"]) == (18, 20, False)
    wrong = CliRunner().invoke(app, ["top", f"{place}-nowhere", "--once"])
    assert wrong.exit_code == 2


def test_the_command_writes_a_report(run: SmallRun, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["report", str(run.storage.root), "--page", str(page), "--json"]
    told = orjson.loads(CliRunner().invoke(app, arguments).stdout)
    assert told["page"] == str(page)
    assert (told["ok"], told["failures"]) == (18, {"engine_refused": 2})
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert CliRunner().invoke(app, ["report", str(run.storage.root)]).stdout.strip() == str(
        run.storage.root / layout.REPORT
    )
