"""What `status` and `verify` show: where a run stands, and whether it adds up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchwright.cli.render import duration, fates, print_line, show_json, waste_words
from batchwright.cli.tables import failure_lines, load_lines

if TYPE_CHECKING:
    from batchwright.rundir.locations import Location
    from batchwright.views.looking import Standing
    from batchwright.write.verify import Verification

# A row that has been in the engine for less is nothing to look at.
LONG_S = 30.0

_LOST = {
    "gone": "its process is gone",
    "silent": "gives no sign of life",
}


def show_status(run_dir: Location, standing: Standing, *, as_json: bool) -> None:
    """Where a run stands."""
    if as_json:
        show_json(_as_json(run_dir, standing))
        return
    from batchwright.rundir.waste import wasted

    counts = standing.counts
    waste = wasted(standing.workers, complete=counts.complete)
    about = "" if counts.ordered else " so far"
    print_line(f"{run_dir}: {_state(standing)}")
    print_line(f"  rows     {counts.rows:,} in{about}: {fates(counts)}")
    print_line(f"  chunks   {counts.chunks_done:,} of {counts.chunks:,} committed")
    for line in failure_lines(run_dir, counts):
        print_line(f"  {line}")
    if waste.rows:
        print_line(f"  wasted   {waste_words(waste)}")
    for load in standing.loads:
        for line in load_lines(run_dir, load):
            print_line(f"  {line}")
    _print_workers(standing)
    if not (standing.is_finished or standing.is_running):
        print_line(f"  go on    batchwright run {run_dir}")


def _state(standing: Standing) -> str:
    """In words; who reads nothing else knows whether there is something to do."""
    if standing.counts.complete:
        if standing.is_finished:
            return "complete"
        return "complete, but its results are not written yet"
    return "not complete" if standing.is_running else "not complete, and nobody works on it"


def _print_workers(standing: Standing) -> None:
    """Those that work on it; those that were lost by name only where nobody is left."""
    lost = [one for one in standing.workers if one["presence"] in _LOST]
    running = [one for one in standing.workers if one["presence"] == "running"]
    if standing.is_finished:
        return
    for worker in running or lost:
        _print_worker(worker)
    if running and lost:
        print_line(f"  lost     {len(lost):,} workers, of this start or of earlier ones")


def _print_worker(worker: Mapping[str, Any]) -> None:
    age_s = max(0.0, time.time() - float(worker.get("at", 0)))
    doing = _LOST.get(worker["presence"])
    print_line(
        f"  worker   {worker['name']}: {doing or worker.get('phase', 'preparing')}, "
        f"last sign of life {duration(age_s)} ago"
    )
    for row, row_age_s in [] if doing else worker.get("oldest", [])[:3]:
        if row_age_s >= LONG_S:
            print_line(f"           row {row} has been in the engine for {duration(row_age_s)}")


def _as_json(run_dir: Location, standing: Standing) -> dict[str, Any]:
    from batchwright.rundir.waste import wasted

    counts = standing.counts
    return {
        "run_dir": str(run_dir),
        **counts.as_json(),
        "ordered": counts.ordered,
        "complete": counts.complete,
        "running": standing.is_running,
        "finished": standing.is_finished,
        "chunks": counts.chunks,
        "chunks_done": counts.chunks_done,
        "failures": counts.failures,
        **wasted(standing.workers, complete=counts.complete).as_json(),
        "workers": [worker for worker in standing.workers if not worker.get("ended")],
        "loads": [load.as_json() for load in standing.loads],
    }


def show_verification(verification: Verification, *, as_json: bool) -> None:
    """Whether rows in and rows out add up."""
    counts = {
        name: getattr(verification, name)
        for name in ("rows_in", "ok", "failed", "rejected", "missing", "duplicates", "parts")
    }
    if as_json:
        told = {"problems": verification.problems, "unfinished": verification.unfinished}
        show_json({**counts, "passed": verification.passed, **told})
        return
    print_line("  ".join(f"{name} {value:,}" for name, value in counts.items()))
    for problem in verification.problems:
        print_line(f"  problem: {problem}")
    if verification.unfinished:
        print_line(f"NOT FINISHED: {verification.unfinished}")
    if not verification.adds_up:
        print_line("DOES NOT ADD UP")
    elif verification.unfinished:
        print_line("what is committed adds up; `batchwright run` with the same job goes on")
    else:
        print_line("every row has exactly one fate")
