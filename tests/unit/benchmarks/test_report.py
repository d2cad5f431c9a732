"""The table shows medians and ranges, hides nothing that failed, and knows what it does not know."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.throughput.answers import Answer, check_answers, of_batchwright, of_openai_batch
from benchmarks.throughput.limits import kv_bytes, limit_s
from benchmarks.throughput.records import Measured, Record, Row, RunProblem, Segment
from benchmarks.throughput.report import table
from benchmarks.throughput.run_batch import flag
from benchmarks.throughput.schedule import Budget, Turn, by_system, rotated
from benchmarks.throughput.usage import at, difference, role_of
from benchmarks.throughput.workloads import GPU, make_workload

from batchwright.plan.gpus import find_gpu
from batchwright.plan.model_facts import model_facts


def record(
    system: str, repeat: int, work_s: float | None, problem: str = "", **more: Any
) -> Record:
    measured = None
    if work_s is not None:
        measured = Measured(10.0, work_s, 12.0 + work_s, 30.0, 2 << 30, **more)
    return Record("W1", system, repeat, 100, 12_800, 3_200, problem, measured)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_rate_is_the_median_with_its_range() -> None:
    lines = table([record("llm-tuned", n, s) for n, s in enumerate([10.0, 4.0, 5.0])])
    assert cells(lines[2])[:7] == ["W1", "llm-tuned", "3", "20.0", "10.0–25.0", "2,560", "640"]


def test_systems_are_compared_with_the_tuned_llm_of_the_same_workload() -> None:
    lines = table([record("batchwright", 0, 8.0), record("llm-tuned", 0, 10.0)])
    assert cells(lines[2])[-1] == "1.25x"
    assert cells(lines[3])[-1] == "1.00x"


def test_a_run_with_a_problem_stands_below_and_in_no_median() -> None:
    lines = table([record("ray", 0, 1.0, "r7: 3 output tokens, not 4"), record("ray", 1, 5.0)])
    assert cells(lines[2])[2:4] == ["1", "20.0"]
    assert lines[-1] == "- W1, ray, run 1: r7: 3 output tokens, not 4"


def test_a_system_that_is_not_installed_is_in_the_table() -> None:
    lines = table([record("ray", 0, None, "not installed: ray")])
    assert cells(lines[2])[:4] == ["W1", "ray", "0", "not installed: ray"]
    assert len(cells(lines[2])) == len(cells(lines[0]))


def test_what_a_system_does_not_tell_is_a_dash() -> None:
    lines = table([record("run-batch", 0, None), record("llm-tuned", 0, 5.0, cached_tokens=6_400)])
    head, line = cells(lines[0]), cells(lines[3])
    assert line[head.index("hit rate")] == "0.500"
    assert line[head.index("preempt")] == "–"
    assert line[head.index("% of L1")] == "–"


def test_turns_rotate_so_that_every_system_is_first_once() -> None:
    turns = rotated(["W1"], ["a", "b", "c"], 3)
    assert [turn.system for turn in turns] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert [turn.repeat for turn in turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_the_first_repeat_of_each_workload_begins_with_the_system_that_others_are_set_up_like() -> (
    None
):
    turns = rotated(["W1", "W3"], ["batchwright", "llm-tuned"], 2)
    assert [turn.system for turn in turns[:4]] == ["batchwright", "llm-tuned"] * 2
    assert [turn.system for turn in turns[4:]] == ["llm-tuned", "batchwright"] * 2


def test_turns_by_system_hold_each_run_once() -> None:
    turns = by_system(["W1", "W3"], ["a", "b"], 2)
    assert turns[:4] == [
        Turn("W1", "a", 0),
        Turn("W3", "a", 0),
        Turn("W1", "a", 1),
        Turn("W3", "a", 1),
    ]
    assert set(turns) == set(rotated(["W1", "W3"], ["a", "b"], 2))


def test_a_budget_refuses_what_would_not_fit_and_says_how_much_is_left() -> None:
    budget = Budget(200.0)
    turn = Turn("W1", "a", 0)
    assert budget.refusal(turn, 0.0) == ""
    budget.took(turn, 120.0)
    assert budget.refusal(Turn("W1", "a", 1), 120.0) == (
        "skipped: about 120 s needed, 80 s of the budget left"
    )
    assert budget.refusal(Turn("W1", "b", 0), 120.0).startswith("skipped: about 120 s")
    assert Budget(None).refusal(turn, 1e9) == ""


def test_a_block_gets_an_equal_share_of_what_is_left() -> None:
    budget = Budget(300.0, blocks=3)
    budget.took(Turn("W1", "a", 0), 80.0)
    assert budget.refusal(Turn("W1", "a", 1), 30.0) != ""
    budget.begin_block(100.0)
    assert budget.refusal(Turn("W1", "b", 0), 100.0) == ""
    assert budget.refusal(Turn("W1", "b", 1), 130.0) != ""


ROWS = [Row("a", (Segment(0, 10),), 3), Row("b", (Segment(1, 12),), 4)]


def test_right_answers_give_the_cached_tokens() -> None:
    assert check_answers(ROWS, [Answer("b", 12, 4, 8), Answer("a", 10, 3, 0)], "generate") == 8
    assert (
        check_answers(ROWS, [Answer("b", 12, 4, 8), Answer("a", 10, 3, None)], "generate") is None
    )


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([Answer("a", 10, 3, 0)], "1 rows have no answer, b for one"),
        ([Answer("a", 10, 3, 0), Answer("a", 10, 3, 0)], "a was not asked for, or is there twice"),
        ([Answer("a", 10, 2, 0)], "a: 2 output tokens, not 3"),
        ([Answer("a", 11, 3, 0)], "a: 11 prompt tokens, not 10"),
    ],
)
def test_wrong_answers_are_named(answers: list[Answer], complaint: str) -> None:
    with pytest.raises(RunProblem, match=complaint):
        check_answers(ROWS, answers, "generate")


def test_a_failed_row_of_ours_or_of_a_batch_is_a_problem() -> None:
    with pytest.raises(RunProblem, match="a is failed: too long"):
        of_batchwright({"id": "a", "status": "failed", "error": "too long"})
    with pytest.raises(RunProblem, match="a failed"):
        of_openai_batch({"custom_id": "a", "error": None, "response": {"status_code": 400}})


def test_options_become_flags_as_vllm_spells_them() -> None:
    assert flag("enforce_eager", True) == ["--enforce-eager"]
    assert flag("enable_prefix_caching", False) == ["--no-enable-prefix-caching"]
    assert flag("max_num_seqs", 64) == ["--max-num-seqs", "64"]
    assert flag("cudagraph_capture_sizes", [1, 2]) == ["--cudagraph-capture-sizes", "1", "2"]
    assert flag("quantization", None) == []


def test_counters_between_two_looks_lie_on_a_line() -> None:
    samples = [(10.0, {"main": 1.0}), (12.0, {"main": 3.0, "engine": 4.0})]
    assert at(samples, 11.0) == {"main": 2.0, "engine": 2.0}
    assert at(samples, 99.0) == {"main": 3.0, "engine": 4.0}
    assert difference(at(samples, 12.0), at(samples, 11.0)) == {"main": 1.0, "engine": 2.0}


def test_processes_are_told_apart_by_their_command_lines() -> None:
    assert role_of("python -m batchwright worker RUN --role infer --name x") == "worker"
    assert (
        role_of("python -P -c from batchwright.engines.child import main; main() 7 9") == "engine"
    )
    assert role_of("VLLM::EngineCore") == "engine core"
    assert role_of("python -m batchwright run rows.jsonl") == "main"


QWEN_7B = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584,
    "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "max_position_embeddings": 32768,
}  # fmt: skip


def test_the_limit_counts_shared_prefixes_once() -> None:
    facts, gpu = model_facts(QWEN_7B, weight_bytes=None), find_gpu("H200")
    assert kv_bytes(facts, 1000) == 57_344_000
    documents = make_workload("W3-1.2", GPU)
    # All prompt tokens at 2 FLOPs a parameter would alone take longer than the limit.
    unshared_s = documents.prompt_tokens * 2 * 6.5e9 / 989e12
    assert 0 < limit_s(facts, gpu, documents, 4096) < unshared_s


def test_the_limit_of_uniform_rows_is_near_the_published_arithmetic() -> None:
    """15,269 output tokens/s were measured as 45 % of L1 on 8,000 rows of 128/128."""
    facts, gpu = model_facts(QWEN_7B, weight_bytes=None), find_gpu("H200")
    workload = make_workload("W1-short", GPU)
    rate = workload.output_tokens / limit_s(facts, gpu, workload, 256)
    assert 15_269 / rate == pytest.approx(0.45, abs=0.06)
