"""What a worker sees of its machine and its own processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from batchwright.machine.host import Family, Host, keyed_numbers
from tests.unit.rundir.small_runs import ManualClock


def in_cgroup(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


def test_a_container_is_measured_by_its_own_limits(tmp_path: Path) -> None:
    clock = ManualClock()
    cgroup = in_cgroup(
        tmp_path, cpu_max="400000 100000\n", cpu_stat="usage_usec 5000000\nuser_usec 1\n",
        memory_max=f"{1 << 20}\n", memory_current="900000\n",
        memory_stat="anon 1\ninactive_file 100000\n",
    )  # fmt: skip
    host = Host(4, tmp_path, cgroup, clock.monotonic)
    first = host.read()
    assert (first.memory_bytes, first.memory_total_bytes) == (800_000, 1 << 20)
    assert first.cpu_use is None  # a share needs two looks
    in_cgroup(tmp_path, cpu_stat="usage_usec 11000000\n")
    clock.seconds += 2.0
    assert host.read().cpu_use == 0.75  # 6 core seconds of 8


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    reading = Host(2, None, tmp_path).read()
    assert reading.memory_total_bytes == psutil.virtual_memory().total
    assert reading.run_disk_free_bytes is None
    unlimited = in_cgroup(tmp_path, cpu_max="max 100000\n", memory_max="max\n")
    reading = Host(2, tmp_path, unlimited).read()
    assert reading.memory_total_bytes == psutil.virtual_memory().total
    assert reading.run_disk_total_bytes is not None
    assert 0 <= (reading.run_disk_free_bytes or -1) <= reading.run_disk_total_bytes


def test_lines_of_a_cgroup_are_names_and_numbers() -> None:
    assert keyed_numbers("usage_usec 5\nsome avg10=0.00 total=3\n\nmax 7\n") == {
        "usage_usec": 5, "max": 7,
    }  # fmt: skip


# Works for a moment, says so, and waits for the end of its input. It looks at the clock that the
# reader looks at, in whole ticks: a finer one says 0.05 s where the system's table says 0.04.
ENGINE = """
import os, sys  # batchwright.engines.child
while sum(os.times()[:2]) < 0.05: pass
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def engine():
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.communicate()


def test_an_engine_is_part_of_the_family_and_what_it_used_stays_known(engine) -> None:
    clock = ManualClock()
    family = Family(clock.monotonic)
    alive = family.read()
    assert engine.pid in family.pids
    assert alive.engine_cpu_s == alive.busiest_engine_cpu_s >= 0.05
    assert (alive.memory_bytes or 0) > psutil.Process(engine.pid).memory_info().rss
    engine.kill()
    engine.wait()
    clock.seconds += 60
    after = family.read()
    assert engine.pid not in family.pids
    assert after.engine_cpu_s >= alive.engine_cpu_s
    assert after.busiest_engine_cpu_s == after.engine_cpu_s
