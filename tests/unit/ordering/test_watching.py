from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchwright.ordering.watching import LOOK_AT_ENGINES_S, Watcher
from batchwright.rundir import layout
from tests.unit.rundir.small_runs import CountingStorage, ManualClock, SmallRun, prompts, small_run


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    run = small_run(tmp_path, prompts(10), run__chunk_rows=2, run__order="file")
    run.prepare()
    run.order()
    engine = {"role": "infer", "at": 1.0, "engine": {"name": "fake"}}
    run.storage.put(layout.heartbeat("w"), json.dumps(engine).encode())
    return run


def test_what_engines_took_is_looked_at_now_and_then(run: SmallRun) -> None:
    storage, clock = CountingStorage(run.storage.root), ManualClock()
    watcher = Watcher(storage, 2, 0, clock)
    watcher.read_order()
    assert watcher.missing(1.0).chunks == 0
    for chunk in (0, 1):
        run.storage.create(layout.claim(f"chunk-0-{chunk:06d}", 0), b"{}")
    storage.listed.clear()
    for _ in range(50):
        assert watcher.missing(1.0).chunks == 0
    assert storage.listed == []
    clock.sleep(LOOK_AT_ENGINES_S)
    assert watcher.missing(1.0).chunks == 2, "five chunks are kept, and three are left"
    assert sorted(storage.listed) == [layout.CLAIMS, layout.RECEIPTS]


def test_where_looks_take_long_they_are_made_less_often(run: SmallRun) -> None:
    clock = ManualClock()

    class Slow(CountingStorage):
        def names(self, folder: str, after: str = "", before: str = "") -> list[str]:
            clock.sleep(0.5)
            return super().names(folder, after, before)

    storage = Slow(run.storage.root)
    watcher = Watcher(storage, 2, 0, clock)
    watcher.missing(1.0)
    storage.listed.clear()
    clock.sleep(19.0)
    watcher.missing(1.0)
    assert storage.listed == []
    clock.sleep(1.0)
    watcher.missing(1.0)
    assert len(storage.listed) == 2
