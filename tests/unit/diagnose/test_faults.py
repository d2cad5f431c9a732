"""The lines with which engines say why they cannot go on, amid what else stands in their logs."""

from __future__ import annotations

import pytest

from batchwright.diagnose.faults import KNOWN, LONGEST_LINE, own_words, read_fault

HEAD = "(EngineCore_DP0 pid=71) ERROR 11-30 03:21:07 [core.py:780] "

LINES = [
    ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."),
    ("out_of_memory", "ValueError: No available memory for the cache blocks. Try increasing "
     "`gpu_memory_utilization` when initializing the engine."),
    ("model_len", "ValueError: To serve at least one request with the models's max seq len (131072), "
     "(16.00 GiB KV cache is needed, which is larger than the available KV cache memory (5.19 GiB). "
     "Based on the available memory, the estimated maximum model length is 42560."),
    ("model_len", "The model's max seq len (8192) is larger than the maximum number of tokens that "
     "can be stored in KV cache (5136)."),
    ("card_taken", "ValueError: Free memory on device cuda:0 (11.2/79.1 GiB) on startup is less than "
     "desired GPU memory utilization (0.92, 72.8 GiB)."),
    ("shared_memory", "OSError: [Errno 28] No space left on device: '/dev/shm/psm_3f21'"),
    ("shared_memory", "Bus error (core dumped)"),
    ("unknown_model", "ValueError: Model architectures ['NewForCausalLM'] are not supported for "
     "now. Supported architectures: dict_keys(['Qwen2ForCausalLM'])"),
    ("graph_capture", "torch.AcceleratorError: CUDA error: operation not permitted when stream is "
     "capturing"),
    ("host_memory", "the engine process was killed by SIGKILL (out of memory?)"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line"), LINES)
def test_a_known_line_is_found_among_others(code: str, line: str) -> None:
    log = f"INFO 11-30 03:20:59 [config.py:1] all is well\n{HEAD}{line}\n{HEAD}Engine core failed\n"
    found = read_fault(log, worker="w", at_start=False)
    assert found is not None
    assert (found.code, found.worker, found.at_start) == (code, "w", False)
    assert line.startswith(found.line.removesuffix("…"))


def test_every_known_code_has_a_line() -> None:
    assert {code for code, _ in LINES} == set(KNOWN)


def test_lengths_that_would_do_are_read() -> None:
    lines = [line for code, line in LINES if code == "model_len"]
    faults = [read_fault(line) for line in lines]
    assert [one.figures for one in faults if one] == [("42560",), ("5136",)]


def test_memory_that_ends_while_graphs_are_captured() -> None:
    log = f"{HEAD}  File gpu_model_runner.py, in capture_model\n{HEAD}{LINES[0][1]}\n"
    found = read_fault(log)
    assert found is not None
    assert found.code == "graph_capture"
    assert "out of memory" in found.line


@pytest.mark.parametrize("log", ["", "INFO all is well", "WARNING: GPU memory is nearly full"])
def test_other_lines_are_no_faults(log: str) -> None:
    assert read_fault(log) is None


def test_a_line_is_shown_without_what_stands_ahead_of_it() -> None:
    assert own_words(f"  | {HEAD}it broke") == "it broke"
    assert len(own_words("x" * 1_000)) == LONGEST_LINE
