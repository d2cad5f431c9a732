"""datatrove and Daft get the same rows and options as the others, and their answers are checked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmarks.throughput.answers import Totals, check_totals, of_datatrove
from benchmarks.throughput.daft_child import announced, counted
from benchmarks.throughput.datatrove_child import found, name_vllm
from benchmarks.throughput.peers import (
    KINDS,
    MARK,
    Peer,
    answer_files,
    as_flags,
    is_there,
    refuse,
)
from benchmarks.throughput.records import Case, Row, RunProblem, Segment, Workload
from benchmarks.throughput.run_batch import keep_log
from benchmarks.throughput.usage import Usage, still

ROWS = (Row("a", (Segment(0, 10),), 4), Row("b", (Segment(1, 12),), 4))


def case(tmp_path: Path, rows: tuple[Row, ...] = ROWS, task: str = "generate") -> Case:
    return Case(
        Workload("W1-short", rows, None, task, ""), tmp_path / "model", tmp_path / "rows.jsonl",
        {"max_model_len": 64, "enforce_eager": True}, {}, tmp_path, True,
    )  # fmt: skip


def answers(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "answers").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "answers" / "00000.json").write_text(text)


def document(name: str, prompt_tokens: int, cached: int) -> dict[str, Any]:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"id": name, "metadata": {"rollout_results": [{"text": "x", "usage": usage}]}}


def test_options_become_what_datatrove_writes_behind_two_dashes() -> None:
    options = {
        "max_model_len": 64, "omp_num_threads": 1, "quantization": None, "enforce_eager": True,
        "max_num_seqs": 32, "logits_processors": ["a:B"],
        "structured_outputs_config": {"backend": "guidance"},
    }  # fmt: skip
    assert as_flags(options) == {
        "enforce-eager": True,
        "max-num-seqs": 32,
        "logits-processors": "a:B",
        "structured-outputs-config": '{"backend": "guidance"}',
    }


def test_a_list_that_datatrove_cannot_pass_is_a_problem_and_not_left_out() -> None:
    with pytest.raises(RunProblem, match="cudagraph_capture_sizes"):
        as_flags({"cudagraph_capture_sizes": [1, 2]})


def test_datatrove_has_at_least_twice_as_many_requests_as_the_engine_runs(tmp_path: Path) -> None:
    options = {"max_model_len": 64, "max_num_seqs": 1024}
    request = KINDS["datatrove"].request(case(tmp_path), options, tmp_path)
    assert request["in_flight"] == 2048
    assert request["engine"]["enable-prompt-tokens-details"] is True
    small = KINDS["datatrove"].request(case(tmp_path), {"max_model_len": 64}, tmp_path)
    assert small["in_flight"] == 500


def test_daft_gets_engine_arguments_as_they_are_and_one_cap_for_all(tmp_path: Path) -> None:
    options = {"max_model_len": 64, "watermark": 0.05, "omp_num_threads": 1}
    request = KINDS["daft"].request(case(tmp_path), options, tmp_path)
    assert request["engine"] == {"max_model_len": 64, "watermark": 0.05}
    assert (request["max_tokens"], request["ignore_eos"]) == (4, True)


def test_daft_is_not_run_on_answers_of_several_lengths(tmp_path: Path) -> None:
    rows = (*ROWS, Row("c", (Segment(2, 10),), 5))
    assert refuse(KINDS["daft"], case(tmp_path)) == ""
    assert refuse(KINDS["daft"], case(tmp_path, rows)) == "daft has one max_tokens for all rows"
    assert refuse(KINDS["datatrove"], case(tmp_path, rows)) == ""
    assert "not measured" in refuse(KINDS["daft"], case(tmp_path, task="embed"))


def test_a_document_with_its_answer_counts_and_one_without_does_not() -> None:
    assert of_datatrove(document("a", 10, 8)) == ("a", 10, 4, 8)
    with pytest.raises(RunProblem, match="a has 0 answers"):
        of_datatrove({"id": "a", "metadata": {"rollout_results": []}})


def test_datatroves_answers_are_checked_row_by_row(tmp_path: Path) -> None:
    answers(tmp_path, [document("a", 10, 8), document("b", 12, 0)])
    assert KINDS["datatrove"].check(case(tmp_path), tmp_path) == (8, None, None)


def test_dafts_answers_are_checked_by_the_engines_sums(tmp_path: Path) -> None:
    answers(tmp_path, [{"id": "b", "text": "x"}, {"id": "a", "text": "y"}])
    counts = {
        "requests": 2,
        "prompt_tokens": 22,
        "output_tokens": 8,
        "cached_tokens": 16,
        "preemptions": 1,
        "engine_steps": 9,
    }
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    assert KINDS["daft"].check(case(tmp_path), tmp_path) == (16, 1, 9)
    assert [path.name for path in answer_files(tmp_path)] == ["00000.json"]


@pytest.mark.parametrize(
    ("ids", "totals", "complaint"),
    [
        (["a"], Totals(2, 22, 8), "1 rows have no answer, b for one"),
        (["a", "b", "b"], Totals(2, 22, 8), "b was not asked for, or is there twice"),
        (["a", "b"], Totals(2, 22, 7), "output_tokens=7"),
        (["a", "b"], Totals(3, 22, 8), "requests=3"),
    ],
)
def test_a_sum_or_a_row_that_is_wrong_is_named(
    ids: list[str], totals: Totals, complaint: str
) -> None:
    with pytest.raises(RunProblem, match=complaint):
        check_totals(ROWS, ids, totals)


def test_counters_are_added_up_over_their_labels() -> None:
    samples = [
        ("vllm:request_success_total", 3.0),
        ("vllm:request_success_total", 1.0),
        ("vllm:generation_tokens_total", 64.0),
        ("vllm:generation_tokens_created", 1e9),
    ]
    assert counted(samples) == {
        "requests": 4, "prompt_tokens": 0, "output_tokens": 64, "cached_tokens": 0, "preemptions": 0,
        "engine_steps": 0,
    }  # fmt: skip


def test_an_engine_is_announced_after_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    announced(lambda: print("starting"), MARK)()
    assert capsys.readouterr().out == f"starting\n{MARK}\n"


def test_a_log_is_kept_and_its_mark_noted(tmp_path: Path) -> None:
    ready: list[float] = []
    before = time.time()
    lines = (tmp_path / "in", tmp_path / "out")
    lines[0].write_bytes(b"one\nVLLMServer server is ready.\ntwo\n")
    with lines[0].open("rb") as file:
        keep_log(file, lines[1], KINDS["datatrove"].mark.encode(), ready)
    assert len(ready) == 1
    assert ready[0] >= before
    assert lines[1].read_bytes() == lines[0].read_bytes()


def test_a_tuned_peer_has_as_many_threads_as_ours_and_finds_vllm_by_name(tmp_path: Path) -> None:
    tuned, plain = Peer("daft-tuned", "/p/bin/python"), Peer("daft", "/p/bin/python")
    environment = tuned.environment(case(tmp_path), {"PATH": "/usr/bin"})
    assert environment["PATH"] == f"/p/bin:{Path(sys.executable).parent}:/usr/bin"
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "OMP_NUM_THREADS" not in plain.environment(case(tmp_path), {})


def test_a_peer_that_is_missing_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "daft", KINDS["daft"].__class__(
        "no_such_package", MARK, KINDS["daft"].refuse, KINDS["daft"].request, KINDS["daft"].check
    ))  # fmt: skip
    assert "no_such_package" in is_there("daft-tuned", sys.executable)
    assert is_there("daft", "/no/such/python") == "no Python at /no/such/python"


def test_the_cpu_build_is_given_the_name_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.throughput import datatrove_child

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setattr(datatrove_child, "found", lambda _: False)
    monkeypatch.setattr(datatrove_child.metadata, "version", lambda _: "0.32.0")
    name_vllm(tmp_path)
    code = "from importlib import metadata; print(metadata.version('vllm'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "0.32.0+cpu"
    assert sys.path[0] == str(tmp_path)


def test_a_distribution_is_found_by_its_name() -> None:
    assert found("psutil")
    assert not found("no-such-distribution")


def test_what_outlives_its_parent_is_ended_and_nothing_else() -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], "
        "stdin=0, stdout=-3, start_new_session=True); print(p.pid, flush=True); sys.stdin.readline()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    orphan = psutil.Process(int(parent.stdout.readline()))
    began = orphan.create_time()
    with Usage(parent.pid) as usage:
        usage.look()
        parent.kill()
        parent.wait()
    assert still(orphan.pid, began)
    assert still(orphan.pid, began - 1.0) is None
    assert usage.end_rest() == 1
    assert still(orphan.pid, began) is None
    assert usage.end_rest() == 0
    parent.communicate()
