from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.errors import EXIT_MANY_FAILED, InputError, JobError
from batchwright.equip.equipment import engine_settings, job_tokenizer
from batchwright.rundir import layout
from batchwright.rundir.ledger import Ledger, read_heartbeat
from batchwright.rundir.storage import Storage
from batchwright.running.roles import attend
from batchwright.tokens.byte_level import ByteTokenizer
from tests.unit.rundir.small_runs import ManualClock, SmallRun, prompts, small_run, write_rows


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    # No engine comes up beside these preparers: they need not wait for one as long as a run does.
    monkeypatch.setattr("batchwright.ordering.watching.PATIENCE_S", 0.3)
    files = {"a.jsonl": prompts(4), "b.jsonl": ["{bad", *prompts(3, 4)], "c.jsonl": [""]}
    return small_run(tmp_path, files, run__chunk_rows=3)


def prepare(run: SmallRun, name: str = "prepare-1") -> None:
    attend(run.storage.root, "prepare", name, threading.Event())


def test_a_preparer_prepares_and_orders_all(run: SmallRun) -> None:
    prepare(run)
    assert run.chunk_rows() == [[0, 1, 2], [3, 5, 6], [7]]
    assert run.state().ordered
    state = read_heartbeat(run.storage, "prepare-1")
    assert state["role"] == "prepare"
    assert state["splits"] == 3
    assert state["ended"] is True


def test_a_second_preparer_finds_nothing_to_do(run: SmallRun) -> None:
    prepare(run)
    before = run.storage.names(layout.CLAIMS)
    prepare(run, "prepare-2")
    assert run.storage.names(layout.CLAIMS) == before


def test_two_preparers_at_once_leave_one_order(run: SmallRun) -> None:
    threads = [threading.Thread(target=prepare, args=(run, f"prepare-{n}")) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.chunk_rows() == [[0, 1, 2], [3, 5, 6], [7]]


def test_the_work_of_a_preparer_that_ended_is_taken_over(run: SmallRun) -> None:
    gone = Ledger(run.storage, "gone", ManualClock(), 60)
    for unit in (layout.ORDER_UNIT, layout.split_unit(0), layout.split_unit(1)):
        assert gone.claim(unit)
    gone.heartbeat({}, ended=True)
    prepare(run)
    assert run.state().ordered


def test_a_preparer_that_is_told_to_stop_does(run: SmallRun) -> None:
    stop = threading.Event()
    stop.set()
    attend(run.storage.root, "prepare", "prepare-1", stop)
    assert run.storage.names(layout.PREPARED) == []
    assert read_heartbeat(run.storage, "prepare-1")["ended"] is True


def test_an_error_stands_in_the_heartbeat(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": str(i) * 40} for i in range(3000)])
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(rows.read_bytes())[:-50])
    run = small_run(tmp_path, tmp_path / "cut.jsonl.gz")
    with pytest.raises(InputError):
        prepare(run)
    state = read_heartbeat(run.storage, "prepare-1")
    assert state["ended"] is True
    assert state["error"]["kind"] == "InputError"
    assert "cut.jsonl.gz" in state["error"]["message"]


def test_a_role_that_is_none(run: SmallRun) -> None:
    with pytest.raises(JobError, match="--role lead: there are infer, pilot, prepare, both"):
        attend(run.storage.root, "lead", "x", threading.Event())


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is not a run directory"):
        attend(tmp_path, "infer", "x", threading.Event())


def test_a_worker_does_not_make_the_folder_it_was_wrongly_given(tmp_path: Path) -> None:
    with pytest.raises(JobError):
        attend(tmp_path / "typo", "infer", "x", threading.Event())
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("kind", ["vllm", "fake"])
def test_the_engine_is_told_what_the_job_says(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"max_num_seqs": 7, "max_model_len": 100, "seed": 3, "dtype": "half"}
    run = small_run(tmp_path, prompts(1), engine__options=options, model__revision="v2")
    job = run.job.model_copy(update={"engine": run.job.engine.model_copy(update={"kind": kind})})
    settings = engine_settings(run.manifest, job, ByteTokenizer())
    assert (settings.max_num_seqs, settings.max_model_len, settings.vocab_size) == (7, 100, 256)
    wanted: dict[str, Any] = {"seed": 3, "dtype": "half"}
    if kind == "vllm":
        wanted |= {"revision": "v2", "trust_remote_code": False}
        config = {"backend": "guidance", "disable_any_whitespace": True}
        wanted |= {"structured_outputs_config": config}
    assert settings.options == wanted
    assert job.engine.options == options


def test_the_users_own_config_of_structured_outputs_is_left_as_it_is(tmp_path: Path) -> None:
    options = {"structured_outputs_config": {"backend": "auto"}}
    run = small_run(tmp_path, prompts(1), engine__options=options)
    job = run.job.model_copy(update={"engine": run.job.engine.model_copy(update={"kind": "vllm"})})
    settings = engine_settings(run.manifest, job, ByteTokenizer())
    assert settings.options["structured_outputs_config"] == {"backend": "auto"}


def test_no_model_means_bytes(run: SmallRun) -> None:
    assert isinstance(job_tokenizer(run.job), ByteTokenizer)


def worker(root: Path, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "batchwright", "worker", str(root), *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=timeout,
    )  # fmt: skip


def test_a_worker_without_a_terminal_or_a_parent_does_the_whole_run(run: SmallRun) -> None:
    """What a pod, a Slurm task or a service runs has /dev/null for its standard input."""
    ended = worker(run.storage.root, timeout=60)
    assert ended.returncode == EXIT_MANY_FAILED, ended.stderr  # a row in eight is rejected
    counts = run.state().counts()
    assert counts.complete
    assert (counts.ok, counts.rejected) == (7, 1)


def test_a_worker_of_both_roles_ends_when_its_preparer_fails(tmp_path: Path) -> None:
    """Otherwise a pod with a damaged input waits for rows for ever."""
    run = small_run(tmp_path, prompts(1))
    (tmp_path / "data" / "rows.jsonl").unlink()
    command = [sys.executable, "-m", "batchwright", "worker", str(run.storage.root)]
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        both = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
    try:
        exit_code = both.wait(60)
    except subprocess.TimeoutExpired:
        exit_code = None
    finally:
        both.terminate()
        try:
            both.wait(60)
        except subprocess.TimeoutExpired:
            both.kill()
            both.wait()
    assert exit_code == 3, log.read_text()
    assert "rows.jsonl" in log.read_text()


def test_the_storage_is_what_a_worker_goes_by(run: SmallRun) -> None:
    """Nothing but the run directory and the input is needed: a copy elsewhere works the same."""
    import shutil

    copy = run.storage.root.parent / "copy"
    shutil.copytree(run.storage.root, copy)
    attend(copy, "prepare", "p", threading.Event())
    assert Storage(copy).names(layout.ORDER)
    assert run.storage.names(layout.ORDER) == []
