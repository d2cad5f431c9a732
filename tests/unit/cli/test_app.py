"""The commands as a person or a script meets them: exit codes, JSON, files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from batchwright import __version__
from batchwright.cli.app import app, main
from batchwright.ordering.retry import order_failed_rows
from batchwright.rundir.manifest import read_manifest
from batchwright.rundir.state import read_state
from batchwright.rundir.storage import Storage
from tests.unit.rundir.small_runs import SmallRun, prompts, small_run, write_rows

ROWS: list[Any] = [
    *prompts(14), "{bad", {"id": "r3", "prompt": "again"}, {"id": "é", "prompt": " "},
]  # fmt: skip


class Answer(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object and nothing else."""
        assert self.stdout.count("\n") == 1, self.stdout
        body = json.loads(self.stdout)
        assert isinstance(body, dict)
        return body


def batchwright(*arguments: str | Path) -> Answer:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def read_results(files: Sequence[str]) -> list[dict[str, Any]]:
    return [row for file in files for row in pq.read_table(file).to_pylist()]


class Finished(NamedTuple):
    run_dir: Path
    data: Path
    first: Answer


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of plain options with two rejected rows and one that the engine refused."""
    folder = tmp_path_factory.mktemp("finished")
    data = write_rows(folder / "rows.jsonl", ROWS)
    run_dir = folder / "run"
    first = batchwright(
        "run", data, "--engine", "fake", "--max-tokens", "12", "--dir", run_dir, "--json",
        "--set", "run.chunk_rows=5", "--set", "engine.options={refuse_rows: [2]}",
    )  # fmt: skip
    return Finished(run_dir, data, first)


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """The finished run, to do with as one likes."""
    shutil.copytree(finished.run_dir, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_run_says_what_came_of_every_row(finished: Finished) -> None:
    body = finished.first.json
    names = ("rows_in", "ok", "failed", "rejected")
    assert [body[name] for name in names] == [17, 14, 1, 2]
    assert body["failures"] == {"engine_refused": 1}
    assert body["rows_before"] == 0
    assert body["run_dir"] == str(finished.run_dir)
    assert "run directory" in finished.first.stderr


def test_more_failures_than_allowed_are_exit_code_4(finished: Finished) -> None:
    assert finished.first.exit_code == 4


def test_the_results_hold_every_row_once_in_input_order(finished: Finished) -> None:
    rows = read_results(finished.first.json["results"])
    assert [row["row"] for row in rows] == list(range(17))
    status = {row["row"]: row["status"] for row in rows if row["status"] != "ok"}
    assert status == {2: "failed", 14: "rejected", 15: "rejected"}
    assert rows[16]["id"] == "é"
    assert rows[16]["warnings"] == ["blank_prompt"]
    assert all(row["completion_tokens"] <= 12 for row in rows if row["status"] == "ok")


def test_a_finished_run_may_be_named_again_and_does_nothing_twice(finished: Finished) -> None:
    before = sorted(path.name for path in (finished.run_dir / "output").iterdir())
    again = batchwright("run", finished.run_dir, "--json")
    assert again.exit_code == 4
    assert again.json["rows_before"] == 17
    assert again.json["rows_in"] == 17
    assert sorted(path.name for path in (finished.run_dir / "output").iterdir()) == before


def test_the_same_options_resume_too_and_other_limits_give_another_code(copy: Path) -> None:
    again = batchwright("run", copy, "--json", "--set", "run.max_failed=0.5")
    assert again.exit_code == 0
    assert again.json["rows_before"] == 17


def test_status(finished: Finished) -> None:
    body = batchwright("status", finished.run_dir, "--json").json
    assert body["complete"] is True
    assert (body["rows_in"], body["ok"], body["chunks"], body["chunks_done"]) == (17, 14, 3, 3)
    assert body["workers"] == []
    shown = batchwright("status", finished.run_dir)
    assert shown.exit_code == 0
    assert "complete" in shown.stdout


def test_verify(finished: Finished) -> None:
    answer = batchwright("verify", finished.run_dir, "--json")
    assert answer.exit_code == 0
    assert answer.json["passed"] is True
    assert answer.json["rows_in"] == 17
    assert "every row has exactly one fate" in batchwright("verify", finished.run_dir).stdout


def test_verify_finds_a_part_that_is_gone(copy: Path) -> None:
    next((copy / "output").iterdir()).unlink()
    answer = batchwright("verify", copy, "--json")
    assert answer.exit_code == 1
    assert answer.json["passed"] is False
    assert answer.json["problems"]
    assert batchwright("verify", copy).exit_code == 1


def test_export_to_another_format_and_place(finished: Finished, tmp_path: Path) -> None:
    answer = batchwright(
        "export", finished.run_dir, "-o", tmp_path / "out", "--format", "jsonl", "--json"
    )
    assert answer.exit_code == 0
    (file,) = answer.json["results"]
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(17))


def test_a_retry_answers_the_failed_row_and_nothing_else(copy: Path) -> None:
    assert batchwright("run", copy, "--set", "engine.options={}").exit_code == 4
    answer = batchwright("retry", copy, "--code", "engine_refused", "--json")
    assert answer.exit_code == 4
    body = answer.json
    assert (body["ok"], body["failed"], body["rejected"]) == (15, 0, 2)
    rows = read_results(body["results"])
    assert rows[2]["status"] == "ok"
    assert [row["row"] for row in rows] == list(range(17))
    assert batchwright("verify", copy, "--json").json["passed"] is True
    assert sum(body["failures"].values()) == 0


def test_a_retry_of_a_code_that_there_is_not_is_refused(copy: Path) -> None:
    """Else a slip of the pen looks like a retry that found nothing to do."""
    answer = batchwright("retry", copy, "--code", "engine_refuse", "--json")
    assert answer.exit_code == 2
    assert "engine_refused" in answer.stderr


@pytest.mark.parametrize("torn", [b"", bytes(400), b'{\n  "version": 1,\n  "gener'])
def test_a_receipt_torn_by_a_power_cut_is_redone(copy: Path, torn: bytes) -> None:
    """As a torn last line of a results file is: see case 45."""
    (copy / "receipts" / "chunk-0-000001.json").write_bytes(torn)
    (copy / "_SUCCESS").unlink()
    answer = batchwright("run", copy, "--json")
    assert answer.exit_code == 4, answer.stdout
    assert answer.json["ok"] == 14
    assert batchwright("verify", copy, "--json").json["passed"] is True


def torn_receipt(copy: Path) -> None:
    (copy / "prepared" / "part-000000-0000.json").write_bytes(bytes(300))


def lost_receipt(copy: Path) -> None:
    (copy / "prepared" / "part-000000-0000.json").unlink()


def lost_part(copy: Path) -> None:
    (copy / "prepared" / "part-000000-0000.arrow").unlink()


@pytest.mark.parametrize("damage", [torn_receipt, lost_receipt, lost_part])
@pytest.mark.parametrize("command", ["run", "retry"])
def test_a_lost_prepared_part_is_made_again_though_its_rows_are_in_the_order(
    copy: Path, damage: Callable[[Path], None], command: str
) -> None:
    """Else all answers are there, and no results can be written of them."""
    before = read_results(batchwright("export", copy, "--json").json["results"])
    part = (copy / "prepared" / "part-000000-0000.arrow").read_bytes()
    damage(copy)
    (copy / "_SUCCESS").unlink()
    answer = batchwright(command, copy, "--json")
    assert answer.exit_code == 4, answer.stdout
    assert (copy / "prepared" / "part-000000-0000.arrow").read_bytes() == part
    assert batchwright("verify", copy, "--json").json["passed"] is True
    if command == "run":
        assert read_results(answer.json["results"]) == before


def test_a_damaged_prepared_part_says_that_it_can_be_made_again(copy: Path) -> None:
    part = copy / "prepared" / "part-000000-0000.arrow"
    part.write_bytes(bytes(300))
    for receipt in (copy / "receipts").iterdir():
        receipt.unlink()
    answer = batchwright("run", copy, "--json")
    assert answer.exit_code == 75
    assert "part-000000-0000.arrow is damaged" in answer.json["error"]["message"]
    assert answer.json["error"]["hint"].startswith("Delete that file and run the same command")
    part.unlink()
    assert batchwright("run", copy, "--json").exit_code == 4
    assert batchwright("verify", copy, "--json").json["passed"] is True


@pytest.mark.parametrize("data", [b"bad", None], ids=["damaged", "gone"])
@pytest.mark.parametrize("command", ["retry", "export", "rows"])
def test_a_damaged_output_part_is_named_with_what_runs_its_rows_again(
    copy: Path, command: str, data: bytes | None
) -> None:
    receipt = copy / "receipts" / "chunk-0-000000.json"
    part = copy / json.loads(receipt.read_text())["file"]
    part.write_bytes(data) if data else part.unlink()
    arguments = ["--status", "ok"] if command == "rows" else []
    answer = batchwright(command, copy, *arguments, "--json")
    assert answer.exit_code == 75, answer.stdout
    assert part.name in answer.stderr
    assert "Delete receipts/chunk-0-000000.json" in answer.stderr
    receipt.unlink()
    assert batchwright("run", copy, "--json").exit_code in (0, 4)
    assert batchwright("verify", copy, "--json").json["passed"] is True


def test_answers_without_their_manifest_are_not_taken_for_those_of_another_job(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    rows = copy.parent / "rows.jsonl"
    rows.write_text('{"q": "something else"}\n')
    answer = batchwright("run", rows, "--engine", "fake", "--column", "q", "--dir", copy, "--json")
    assert answer.exit_code == 2
    assert "its manifest.json is gone" in answer.json["error"]["message"]


def test_a_receipt_that_is_damaged_otherwise_is_reported(copy: Path) -> None:
    path = copy / "receipts" / "chunk-0-000001.json"
    path.write_bytes(path.read_bytes().replace(b'"rows": 5', b'"rows": "five"'))
    answer = batchwright("run", copy, "--json")
    assert answer.exit_code == 75
    assert "chunk-0-000001.json is damaged" in answer.json["error"]["message"]


def test_a_job_file_run_beside_its_data(tmp_path: Path) -> None:
    write_rows(tmp_path / "data" / "rows.jsonl", [{"id": 7, "q": "why?"}, {"id": "007", "q": "so"}])
    job = tmp_path / "ask.yaml"
    job.write_text(
        "input: {path: data/rows.jsonl}\nprompt: {template: 'Q: {{ q }}', system: Be brief.}\n"
        "engine: {kind: fake}\noutput: {path: out, format: jsonl}\nrun: {dir: 'runs/{name}'}\n"
    )
    answer = batchwright("run", job, "--json")
    assert answer.exit_code == 0
    assert answer.json["run_dir"] == str(tmp_path / "runs" / "ask")
    (file,) = answer.json["results"]
    assert Path(file).parent == tmp_path / "out"
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    assert [(row["id"], row["q"], row["status"]) for row in rows] == [
        ("7", "why?", "ok"), ("007", "so", "ok"),
    ]  # fmt: skip
    assert (tmp_path / "runs" / "ask" / "_SUCCESS").exists()


def test_a_run_may_be_resumed_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write_rows(here / "rows.jsonl", prompts(3))
    there.mkdir()
    monkeypatch.chdir(here)
    assert batchwright("run", "rows.jsonl", "--engine", "fake", "-o", "out").exit_code == 0
    monkeypatch.chdir(there)
    answer = batchwright("run", here / "runs" / "rows", "--json")
    assert answer.exit_code == 0, answer.stdout
    (file,) = answer.json["results"]
    assert (there / file).resolve().parent == here / "out"
    assert list(there.iterdir()) == []


SLOW = "{rows_per_step: 1, seconds_per_step: 0.03, max_num_seqs: 2}"


def test_sigterm_stops_cleanly_and_the_run_goes_on_later(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", prompts(60))
    run_dir = tmp_path / "run"
    options = ["--engine", "fake", "--dir", str(run_dir), "--set", "run.chunk_rows=3", "--json"]
    command = [sys.executable, "-m", "batchwright", "run", str(data), *options,
               "--set", f"engine.options={SLOW}", "--set", "run.grace_s=5"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while not list(run_dir.glob("receipts/*.json")):
            assert process.poll() is None
            time.sleep(0.02)  # another process: there is no clock to turn
        process.send_signal(signal.SIGTERM)
        stdout = process.communicate(timeout=20)[0]
    assert process.returncode == 75
    assert json.loads(stdout)["exit_code"] == 75
    done = len(list(run_dir.glob("receipts/*.json")))
    assert 0 < done < 20
    status = batchwright("status", run_dir, "--json").json
    assert status["complete"] is False
    assert status["workers"] == []
    answer = batchwright("run", data, *options)
    assert answer.exit_code == 0
    assert 3 <= answer.json["rows_before"] < 60
    rows = read_results(answer.json["results"])
    assert [row["row"] for row in rows] == list(range(60))


def test_a_job_that_is_wrong_as_a_whole_is_exit_code_3(tmp_path: Path) -> None:
    rows = [{"id": i, "prompt": "x" if i < 40 else ""} for i in range(300)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    answer = batchwright(
        "run", data, "--engine", "fake", "--dir", tmp_path / "run", "--json",
        "--set", "engine.options={startup_s: 1}",
    )  # fmt: skip
    assert answer.exit_code == 3
    error = answer.json["error"]
    assert error["kind"] == "TooManyFailures"
    assert "empty_prompt" in error["message"] + error["hint"]  # the commonest reasons


def test_a_tenth_of_bad_rows_does_not_stop_a_run_before_it_began(tmp_path: Path) -> None:
    rows = [{"id": i, "prompt": "x" if i % 10 else ""} for i in range(1200)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    answer = batchwright(
        "run", data, "--engine", "fake", "--dir", tmp_path / "run", "--json",
        "--set", "engine.options={startup_s: 1}",
    )  # fmt: skip
    assert answer.exit_code == 4, answer.stdout
    assert (answer.json["ok"], answer.json["rejected"]) == (1080, 120)


def test_a_resume_with_another_prompt_is_refused_by_name(finished: Finished) -> None:
    answer = batchwright("run", finished.run_dir, "--prompt", "{{ prompt }}!", "--json")
    assert answer.exit_code == 2
    assert answer.json["error"]["kind"] == "ResumeRefused"
    assert "prompt.template: nothing -> {{ prompt }}!" in answer.json["error"]["message"]


def wrong(tmp_path: Path) -> dict[str, tuple[int, str, list[Any]]]:
    """Name to exit code, kind of error and command."""
    data = write_rows(tmp_path / "rows.jsonl", prompts(2))
    (tmp_path / "bad.yaml").write_text("inptu: {path: x}\n")
    (tmp_path / "empty.jsonl").touch()
    fake = ["--engine", "fake", "--dir", tmp_path / "run"]
    return {
        "no job file": (2, "JobError", ["run", tmp_path / "nope.yaml"]),
        "unknown key": (2, "JobError", ["run", tmp_path / "bad.yaml"]),
        "unknown setting": (2, "JobError", ["run", data, *fake, "--set", "run.replica=2"]),
        "no setting": (2, "JobError", ["run", data, *fake, "--set", "run.replicas"]),
        "other format": (2, "JobError", ["run", data, *fake, "--format", "xlsx"]),
        "other engine": (2, "JobError", ["run", data, "--engine", "vlm"]),
        "no model": (2, "JobError", ["run", data, "--dir", tmp_path / "run"]),
        "no such column": (2, "JobError", ["run", data, *fake, "--column", "text"]),
        "bad template": (2, "JobError", ["run", data, *fake, "--prompt", "{{ prompt"]),
        "no folder of that name": (2, "JobError", ["run", data, "--engine", "fake", "--set",
                                                   "run.dir=runs/{date}"]),
        "no data": (3, "InputError", ["run", tmp_path / "nope.jsonl", *fake]),
        "empty data": (3, "InputError", ["run", tmp_path / "empty.jsonl", *fake]),
        "empty data to validate": (3, "InputError", ["validate", tmp_path / "empty.jsonl"]),
        "run below a file": (2, "NotAllowed", ["run", data, "--engine", "fake", "--dir",
                                                  data / "run"]),
        "status of no run": (2, "JobError", ["status", tmp_path]),
        "verify of no run": (2, "JobError", ["verify", tmp_path]),
        "retry of no run": (2, "JobError", ["retry", tmp_path]),
        "export of no run": (2, "JobError", ["export", tmp_path]),
    }  # fmt: skip


@pytest.mark.parametrize("name", [
    "no job file", "unknown key", "unknown setting", "no setting", "other format", "other engine",
    "no model", "no such column", "bad template", "no folder of that name", "no data", "empty data",
    "empty data to validate", "run below a file", "status of no run", "verify of no run",
    "retry of no run", "export of no run",
])  # fmt: skip
def test_an_error_is_one_json_object_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    exit_code, kind, command = wrong(tmp_path)[name]
    answer = batchwright(*command, "--json")
    assert answer.exit_code == exit_code
    assert answer.json["exit_code"] == exit_code
    error = answer.json["error"]
    assert error["kind"] == kind
    assert error["message"]
    assert error["message"].splitlines()[0] in answer.stderr
    assert batchwright(*command).stdout == ""


@pytest.mark.parametrize("command", [["run"], ["status"], ["verify"], ["export"], ["retry"]])
def test_a_torn_manifest_is_named(copy: Path, command: list[str]) -> None:
    (copy / "manifest.json").write_bytes(bytes(100))
    answer = batchwright(*command, copy, "--json")
    assert answer.exit_code == 2, "to try again changes nothing"
    assert "manifest.json is damaged" in answer.json["error"]["message"]


@pytest.mark.parametrize("arguments", [["run"], ["frobnicate"], ["run", "x", "--bogus"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert batchwright(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["run", "x", "--bogus"], 2, "--bogus"),
        (["run"], 2, "SOURCE"),
        (["frobnicate"], 2, "frobnicate"),
        (["run", "x", "--limit", "many"], 2, "--limit"),
    ],
)
def test_wrong_usage_is_one_json_object_too(
    arguments: list[str], exit_code: int, said: str
) -> None:
    command = [sys.executable, "-m", "batchwright", *arguments, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    body = Answer(ended.returncode, ended.stdout, ended.stderr).json
    assert (ended.returncode, body["exit_code"]) == (exit_code, exit_code)
    assert said in body["error"]["message"]
    assert said in ended.stderr


def test_a_fault_of_our_own_is_one_json_object_and_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("batchwright.pipeline.status", broken)
    monkeypatch.setattr("batchwright.cli.app.leave_torch_out", lambda: None)
    monkeypatch.setattr(sys, "argv", ["batchwright", "status", "run", "--json"])
    with pytest.raises(ZeroDivisionError):
        main()
    body = Answer(1, capsys.readouterr().out, "").json
    assert (body["exit_code"], body["error"]["kind"]) == (1, "ZeroDivisionError")


@pytest.fixture
def begun(tmp_path: Path) -> SmallRun:
    run = small_run(tmp_path, ROWS)
    run.prepare()
    run.order()
    return run


def test_status_of_a_run_that_is_not_finished(begun: SmallRun) -> None:
    body = batchwright("status", begun.storage.root, "--json").json
    assert (body["complete"], body["ordered"], body["rejected"]) == (False, True, 2)
    shown = batchwright("status", begun.storage.root).stdout
    assert f"{begun.storage.root}: not complete, and nobody works on it" in shown
    assert f"go on    batchwright run {begun.storage.root}" in shown


def test_every_worker_of_a_run_with_many_bad_rows_ends_with_4(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", ROWS)
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({"input": {"path": str(data)}, "engine": {"kind": "fake"}}))
    for _ in range(2):  # the one that writes the results, and one that finds them written
        answer = batchwright("worker", job, "--dir", tmp_path / "run", "--json")
        assert answer.exit_code == 4
        assert answer.json["rejected"] == 2


def test_a_killed_worker_of_this_machine_is_gone_at_once(begun: SmallRun) -> None:
    """Its heartbeat is fresh: who looks must not be told for a minute that it runs."""
    code = (
        "import sys, os; from batchwright.rundir.ledger import Ledger; "
        "from batchwright.rundir.clock import SystemClock; "
        "from batchwright.rundir.storage import Storage; "
        "state = {'role': 'infer', 'phase': 'running', 'oldest': [[7, 90.0]]}; "
        "Ledger(Storage(sys.argv[1]), 'infer-x', SystemClock(), 60).heartbeat(state); "
        "print('there', flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, begun.storage.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    shown = batchwright("status", begun.storage.root).stdout
    assert "not complete\n" in shown
    assert "infer-x: running" in shown
    assert "row 7 has been in the engine for 90 s" in shown
    assert batchwright("top", begun.storage.root, "--json").json["phase"] == "running"

    worker.kill()
    worker.communicate()
    shown = batchwright("status", begun.storage.root).stdout
    assert "nobody works on it" in shown
    assert "infer-x: its process is gone" in shown
    assert "row 7" not in shown
    body = batchwright("status", begun.storage.root, "--json").json
    assert (body["running"], body["workers"][0]["presence"]) == (False, "gone")
    top = batchwright("top", begun.storage.root, "--json").json
    assert (top["phase"], top["workers"][0]["phase"]) == ("nobody works on it", "gone")


def test_a_run_of_which_no_row_is_numbered_is_not_proved(tmp_path: Path) -> None:
    """No rows in and no rows out add up: that says nothing of an input that nobody has read."""
    run = small_run(tmp_path, ROWS)
    answer = batchwright("verify", run.storage.root)
    assert answer.exit_code == 1
    assert "NOT FINISHED: not all rows of the input are numbered yet" in answer.stdout
    assert "exactly one fate" not in answer.stdout


def test_a_run_that_is_not_finished_is_neither_exported_nor_retried_nor_proved(
    begun: SmallRun,
) -> None:
    for command in ("export", "retry"):
        answer = batchwright(command, begun.storage.root, "--json")
        assert answer.exit_code == 2
        assert "is not finished" in answer.json["error"]["message"]
    answer = batchwright("verify", begun.storage.root, "--json")
    assert answer.exit_code == 1
    assert (answer.json["missing"], answer.json["problems"]) == (15, [])
    assert answer.json["unfinished"] == "0 of 1 chunks are committed"
    shown = batchwright("verify", begun.storage.root).stdout
    assert "NOT FINISHED" in shown
    assert "DOES NOT ADD UP" not in shown


def test_a_retry_that_was_stopped_goes_on(copy: Path) -> None:
    """Its chunks are ordered and none is run: as after Ctrl-C, or a kill."""
    storage = Storage(copy)
    assert order_failed_rows(storage, read_state(storage), None, []) == 1
    assert batchwright("export", copy, "--json").exit_code == 2
    answer = batchwright("retry", copy, "--json")
    assert answer.json["failed"] == 1, "the engine still refuses it"
    assert read_state(storage).generations == 2, "the rows of the first one, and no others"
    assert (copy / "_SUCCESS").is_file()


def test_a_lost_receipt_of_a_finished_run_does_not_add_up(copy: Path) -> None:
    next((copy / "receipts").iterdir()).unlink()
    shown = batchwright("verify", copy)
    assert shown.exit_code == 1
    assert "rows have no outcome" in shown.stdout
    assert "DOES NOT ADD UP" in shown.stdout


def test_validate_needs_no_engine_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_rows(tmp_path / "rows.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    answer = batchwright("validate", data, "--json")
    assert answer.exit_code == 4
    body = answer.json
    assert (body["rows_in"], body["valid"], body["rejected"]) == (17, 15, 2)
    assert body["rejections"].keys() == {"bad_json", "duplicate_id"}
    assert body["rejections"]["bad_json"]["first"].startswith(f"{data}:15: ")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    shown = batchwright("validate", data)
    assert "17 rows: 15 valid, 2 rejected" in shown.stdout


def test_validate_of_good_rows_is_exit_code_0(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", prompts(3))
    assert batchwright("validate", data, "--prompt", "Say {{ prompt }}").exit_code == 0


def test_validate_takes_a_run_folder_and_a_model(begun: SmallRun, tiny_model: Path) -> None:
    answer = batchwright("validate", begun.storage.root, "--model", tiny_model, "--json")
    assert answer.exit_code == 4
    assert answer.json["valid"] == 15


def test_plain_options_end_up_in_the_job(begun: SmallRun, finished: Finished) -> None:
    manifest = read_manifest(Storage(finished.run_dir))
    assert manifest.job["sampling"]["max_tokens"] == 12
    assert manifest.job["run"]["chunk_rows"] == 5
    assert manifest.job["name"] == "rows"
    assert (finished.run_dir / "job.yaml").read_text().startswith("name: rows\n")


def test_version_and_help() -> None:
    assert batchwright("--version").stdout.strip() == __version__
    shown = batchwright("--help")
    assert shown.exit_code == 0
    for command in ("run", "validate", "retry", "status", "verify", "export", "worker"):
        assert command in shown.stdout


def test_the_events_tell_the_story(finished: Finished) -> None:
    lines = (finished.run_dir / "events.jsonl").read_bytes().splitlines()
    events = [orjson.loads(line) for line in lines]
    names = [event["event"] for event in events]
    assert names[0] == "run_started"
    assert {"engine_up", "run_finished"} <= set(names)
    assert all({"at", "worker", "event"} <= event.keys() for event in events)


def test_nothing_is_left_running(finished: Finished) -> None:
    import psutil

    children = [child for child in psutil.Process(os.getpid()).children(recursive=True)
                if str(finished.run_dir) in " ".join(child.cmdline())]  # fmt: skip
    assert children == []
