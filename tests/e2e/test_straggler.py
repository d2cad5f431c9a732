"""One row that never ends: the others are on disk long before it is given up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.e2e.command import call, kill_all, start


def test_finished_rows_do_not_wait_for_a_slow_one(tmp_path: Path) -> None:
    data, run_dir = tmp_path / "rows.jsonl", tmp_path / "run"
    data.write_text("".join(f'{{"id": "h{row}", "prompt": "count"}}\n' for row in range(8)))
    options = [
        "run", data, "--engine", "fake", "--dir", run_dir,
        "--set", "engine.options.hang_rows=[5]", "--set", "run.max_failed=1",
        "--set", "run.row_timeout_s=8", "--set", "run.stop_at_failed=1",
    ]  # fmt: skip
    process = start(*options)
    status = wait_until_committed(run_dir, 7)
    assert (status["ok"], status["complete"]) == (7, False)
    assert status["workers"][0]["oldest"][0][0] == 5, "status names the row that is waited for"
    kill_all(process)

    summary = call(*options)
    assert (summary["ok"], summary["failed"]) == (7, 1)
    assert summary["failures"] == {"timeout": 1}
    assert summary["rows_before"] == 7, "only the slow row ran again"
    assert call("verify", run_dir)["passed"]
    results = call("export", run_dir, "--format", "jsonl", "-o", tmp_path / "out")["results"]
    rows = [json.loads(line) for line in Path(results[0]).read_text().splitlines()]
    assert [row["id"] for row in rows if row["status"] == "failed"] == ["h5"]


def wait_until_committed(run_dir: Path, rows: int) -> dict[str, Any]:
    """The status that shows so many rows: a second look may come too late on a busy machine."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if (run_dir / "receipts").is_dir():
            status: dict[str, Any] = call("status", run_dir)
            if status["ok"] == rows:
                return status
        time.sleep(0.2)
    raise AssertionError("the finished rows were not committed")
