"""Logs of engines that ended, with the lines that vLLM, torch, CUDA and NCCL really print."""

from __future__ import annotations

import re
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.core.remedies import REMEDIES
from batchwright.engines.fatal_lines import KNOWN, find_fault, last_words

CORE = "(EngineCore pid=104) ERROR 05-05 12:36:59 [core.py:1510] "


def traceback_of(*frames: str, error: str) -> str:
    """A traceback as vLLM's core logs it: its head before each line."""
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):"]
    for frame in frames:
        lines += [
            f'  File "/opt/vllm/{frame}.py", line 12, in {frame}',
            f"    self.{frame}()",
            "    ^^^^",
        ]
    ending = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    return "\n".join([*(CORE + line for line in [*lines, error]), "Traceback (most recent call last):", ending])  # fmt: skip


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total "
    "capacity of 23.56 GiB of which 56.88 MiB is free."
)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (("load_model", "initialize_model"), "memory_at_load"),
        (("compile_or_warm_up_model", "capture_model"), "memory_in_graphs"),
        (("determine_available_memory", "profile_run"), "memory_at_profile"),
        (("initialize_kv_cache", "_allocate_kv_cache_tensors"), "memory_at_kv_cache"),
        (("run_busy_loop", "execute_model"), "memory_in_run"),
        (("something",), "memory"),
    ],
)
def test_the_traceback_says_when_memory_ran_out(frames: tuple[str, ...], code: str) -> None:
    fault = find_fault(traceback_of(*frames, error=OOM))
    assert fault is not None
    assert fault.code == code
    assert fault.line == OOM[:240]
    assert not fault.of_job


def test_only_the_traceback_of_the_line_itself_counts() -> None:
    earlier = traceback_of("load_model", error="ValueError: harmless, and caught")
    fault = find_fault(
        f"{earlier.partition('RuntimeError')[0]}\n{traceback_of('execute_model', error=OOM)}"
    )
    assert fault is not None
    assert fault.code == "memory_in_run"


LINES = {
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. "
    "Please try lowering `max_num_seqs`": ("memory_at_warm_up", "256 rows"),
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization`": ("no_kv_cache", "no memory for the KV cache"),
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (9.1 GiB). Based on the "
    "available memory, the estimated maximum model length is 74544. Try": (
        "kv_cache_too_small", "at most 74544 fit"),
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that "
    "can be stored in KV cache (18192).": ("kv_cache_too_small", "no room for one row"),
    "ValueError: Free memory on device cuda:0 (3.22/4.0 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 3.6 GiB). Decrease": ("memory_taken", "3.22 of the card's 4.0 GiB"),
    "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory "
    "22.4 GiB.": ("memory_moved", "another process"),
    "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 8589934592 bytes.": ("host_memory", "machine's memory"),
    "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.": (
        "host_memory", "machine's memory"),
    "Fatal Python error: Bus error": ("shared_memory", "/dev/shm"),
    "node1:12:34 [0] misc/shmutils.cc:87 NCCL WARN Error while creating shared memory segment "
    "/dev/shm/nccl-AbC (size 7340384)": ("shared_memory", "/dev/shm"),
    "OSError: [Errno 28] No space left on device": ("disk_full", "disk is full"),
    "Value error, Model architectures ['NewForCausalLM'] are not supported for now. Supported "
    "architectures: dict_keys(['AfmoeForCausalLM'])": ("model_unsupported", "NewForCausalLM"),
    "ValueError: The checkpoint you are trying to load has model type `new9` but Transformers does "
    "not recognize this architecture.": ("model_unsupported", "does not know"),
    "ValueError: The repository org/model contains custom code which must be executed to correctly "
    "load the model.": ("remote_code", "Python code"),
    "OSError: You are trying to access a gated repo.": ("model_gated", "gated"),
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/x": (
        "hub_refused", "token"),
    "OSError: nobody/none is not a local folder and is not a valid model identifier listed on "
    "'https://huggingface.co/models'": ("model_not_found", "no such model"),
    "safetensors_rust.SafetensorError: Error while deserializing header: header too large": (
        "weights_damaged", "damaged"),
    "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must "
    "provide a chat template": ("chat_template", "no chat template"),
    "Value error, User-specified max_model_len (1048576) is greater than the derived max_model_len "
    "(max_position_embeddings=4096.0 or model_max_length=None in model's config.json).": (
        "max_model_len", "more than the model's 4096"),
    "Value error, Total number of attention heads (28) must be divisible by tensor parallel size "
    "(8).": ("tensor_parallel", "8 cards cannot share the model's 28"),
    "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum "
    "capability: 89. Current capability: 80.": ("quantization", "capability 89; this one has 80"),
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
    "Tesla T4 GPU has compute capability 7.5.": ("dtype", "bfloat16"),
    "ValueError: LoRA rank 64 is greater than max_lora_rank 16.": ("lora_rank", "rank 64"),
    "ValueError: Connector 'NixlConnektor' is not registered.": ("kv_transfer", "KV connector"),
    "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version": (
        "driver_too_old", "driver"),
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).": (
        "driver_too_old", "driver"),
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": (
        "card_unsupported", "no kernels"),
    "RuntimeError: No CUDA GPUs are available": ("no_card", "no card"),
    "[1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.": (
        "card_lost", "the card failed"),
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered": (
        "illegal_access", "kernel"),
    "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.": (
        "no_compiler", "no compiler"),
    "/tmp/tmpx/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory": (
        "no_python_headers", "headers"),
    "ncclUnhandledCudaError: Call to CUDA function failed.": ("nccl", "cannot talk"),
    "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401": (
        "nccl_multicast", "multicast"),
    "OSError: [Errno 24] Too many open files: '/dev/null'": ("files_open", "open files"),
    "ValueError: Model architectures ['OddForCausalLM'] failed to be inspected. Please check": (
        "model_broken", "OddForCausalLM"),
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files": (
        "hub_unreachable", "cannot be reached"),
    "ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}": (
        "weights_missing", "do not belong"),
    "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(": (
        "attention", "no attention kernel"),
    "ValueError: Cannot provide a placement group requiring 8 GPUs (placement_group_specs=": (
        "too_few_cards", "more cards than there are"),
    "Worker proc VllmWorker-1 died unexpectedly (exit code: 1), shutting down executor.": (
        "worker_died", "without a word"),
    "the engine process was killed by SIGKILL": ("host_memory", "somebody killed"),
    "the engine process was killed by SIGBUS": ("shared_memory", "/dev/shm"),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=lambda line: LINES[line][0])
def test_a_known_line_is_found_in_a_traceback(line: str) -> None:
    code, told = LINES[line]
    fault = find_fault(traceback_of("some_frame", error=line))
    assert fault is not None
    assert fault.code == code
    assert told in fault.summary
    assert fault.remedy
    assert fault.number == 6
    assert line.removeprefix("Value error, ").startswith(fault.line)


def test_every_code_is_tried_here() -> None:
    tried = {code for code, _ in LINES.values()}
    by_traceback = {
        "memory", "memory_at_load", "memory_in_graphs", "memory_at_profile", "memory_at_kv_cache",
        "memory_in_run", "core_died",
    }  # fmt: skip
    assert {known.code for known in KNOWN} == tried | by_traceback


def test_the_cause_beats_what_follows_from_it_whichever_comes_first() -> None:
    log = "\n".join(
        [
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, "
            "unhandled system error, NCCL version 2.21.5",
            traceback_of("execute_model", error=OOM),
        ]
    )
    fault = find_fault(log)
    assert fault is not None
    assert fault.code == "memory_in_run"


def test_of_several_causes_the_first_counts() -> None:
    fabric = "n:1 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be'"
    fault = find_fault(f"{fabric}\nRuntimeError: NCCL error: unhandled cuda error\n{OOM}")
    assert fault is not None
    assert fault.code == "nccl_multicast"
    assert "NCCL_NVLS_ENABLE=0" in fault.remedy


def test_what_is_told_below_error_is_no_cause() -> None:
    info = "INFO 05-05 12:36:59 [core.py:1] Free memory: No space left on device would be bad"
    warning = "(EngineCore pid=7) WARNING 05-05 12:36:59 [x.py:1] CUDA out of memory, trying less"
    assert find_fault(f"{info}\n{warning}\nall is well") is None


def test_a_log_that_only_points_elsewhere_says_so() -> None:
    fault = find_fault(traceback_of("odd", error="KeyError: 'never seen before'"))
    assert fault is not None
    assert fault.code == "core_died"


def test_a_line_without_the_estimate_leaves_it_out() -> None:
    line = "x max seq len (9), (1 GiB KV cache is needed, which is larger than the available KV cache memory (0.5 GiB). "
    fault = find_fault(line)
    assert fault is not None
    assert "{" not in fault.summary + fault.remedy


def test_last_words_leave_frames_out() -> None:
    log = traceback_of("first", "second", error="KeyError: 'never seen before'")
    words = last_words(f"starting\n\n{log}", 20)
    assert words[0] == "starting"
    assert "KeyError: 'never seen before'" in words
    assert not [word for word in words if "File" in word or "^^^" in word or "self." in word]


def test_a_long_log_is_searched_at_its_end_and_lines_keep_their_numbers() -> None:
    noise = "nothing to see\n" * 300_000
    fault = find_fault(f"{OOM}\n{noise}OSError: [Errno 28] No space left on device")
    assert fault is not None
    assert (fault.code, fault.number) == ("disk_full", 300_002)


SETTING = re.compile(
    r"\b(prompt|model|input|media|sampling|run|plan|engine|embedding|scoring)"
    r"\.([a-z_]+)(?:\.([a-z_]+))?"
)


def setting_exists(section: str, key: str) -> bool:
    schema = Job.model_json_schema()
    reference: Any = schema["properties"][section]["$ref"]
    return key in schema["$defs"][reference.rpartition("/")[2]]["properties"]


@pytest.mark.parametrize(
    "remedy", [*(known.remedy for known in KNOWN), *REMEDIES.values()], ids=lambda text: text[:40]
)
def test_a_remedy_names_settings_that_there_are(remedy: str) -> None:
    for section, key, _ in SETTING.findall(remedy):
        assert setting_exists(section, key), f"{section}.{key}"
