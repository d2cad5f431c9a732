"""Lines of an engine's log that tell of memory, disks, cards and what is between them.

Spellings were read in the sources of vLLM 0.32 and torch 2.11; those of the driver, NCCL and Linux
in public issue threads. A line that no source has is not here.
"""

from __future__ import annotations

from batchwright.core.faults import KnownLine, Rank

_OOM = (
    r"CUDA out of memory|HIP out of memory|OutOfMemoryError: .*out of memory"
    r"|CUDA (?:driver )?error: out of memory|CUDNN_STATUS_ALLOC_FAILED"
)
_LESS = "engine.options.gpu_memory_utilization"
_MORE = f"{_LESS} (kv_cache_memory_bytes where that is set)"
_SEQS = "engine.options.max_num_seqs"
_LEN = "engine.options.max_model_len"
_TP = "engine.options.tensor_parallel_size"
_SPREAD = f"spread the model over more cards ({_TP})"

_MEMORY = (
    KnownLine(
        "memory_at_warm_up",
        r"CUDA out of memory occurred when warming up \w+.* with (?P<rows>\d+) dummy requests",
        "the card's memory ran out when the sampler was tried with {rows} rows",
        f"Lower {_SEQS}, or {_LESS} by 0.05.",
    ),
    KnownLine(
        "memory_in_graphs", _OOM,
        "the card's memory ran out while CUDA graphs were captured",
        f"Lower {_LESS} by 0.05, or {_SEQS}; engine.options.enforce_eager: true needs no graphs.",
        above=r"capture_model|_capture_cudagraphs|warmup_and_capture",
    ),
    KnownLine(
        "memory_at_load", _OOM,
        "the model's weights do not fit the card's memory",
        f"S{_SPREAD[1:]}, or take a quantised model; `batchwright plan` says what fits.",
        above=r"load_model|initialize_model|create_weights|process_weights_after_loading",
    ),
    KnownLine(
        "memory_at_profile", _OOM,
        "the card's memory ran out in the trial step before the first row",
        f"Lower engine.options.max_num_batched_tokens, {_SEQS} or {_LEN}.",
        above=r"profile_run|determine_available_memory|_dummy_(?:run|sampler_run|pooler_run)",
    ),
    KnownLine(
        "memory_at_kv_cache", _OOM,
        "the card's memory ran out when the KV cache was laid out: another process took some",
        f"End the other process (nvidia-smi names it), or lower {_LESS}.",
        above=r"_allocate_kv_cache|initialize_kv_cache",
    ),
    KnownLine(
        "memory_in_run", _OOM,
        "the card's memory ran out while rows were running",
        f"Lower {_LESS} by 0.05: it is what vLLM takes, and the rest is for what it does not count.",
        above=r"execute_model|run_busy_loop|_process_engine_step",
    ),
    KnownLine(
        "memory", _OOM,
        "the card's memory ran out",
        f"Lower {_SEQS}, {_LEN} or {_LESS}, or {_SPREAD}.",
    ),
    KnownLine(
        "no_kv_cache", r"No available memory for the cache blocks",
        "weights and trial step leave no memory for the KV cache",
        f"Raise {_LESS} if the card is yours alone, lower {_LEN} and "
        f"engine.options.max_num_batched_tokens, or {_SPREAD}.",
    ),
    KnownLine(
        "kv_cache_too_small",
        r"max seq len \((?P<length>\d+)\).*larger than the available KV cache memory"
        r".*estimated maximum model length is (?P<most>\d+)",
        "the KV cache has no room for one row of max_model_len {length}; at most {most} fit",
        f"Set {_LEN}: {{most}} or less, raise {_MORE}, or {_SPREAD}.",
    ),
    KnownLine(
        "kv_cache_too_small",
        r"larger than the available KV cache memory"
        r"|larger than the maximum number of tokens that can be stored in KV cache",
        "the KV cache has no room for one row of max_model_len",
        f"Lower {_LEN}, raise {_MORE}, or {_SPREAD}.",
    ),
    KnownLine(
        "memory_taken",
        r"Free memory on device.* \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less "
        r"than desired GPU memory utilization \((?P<share>[\d.]+)",
        "only {free} of the card's {total} GiB are free, and gpu_memory_utilization is {share}: "
        "another process has the rest",
        f"End the other process (nvidia-smi names it), or lower {_LESS}.",
    ),
    KnownLine(
        "memory_taken", r"less than desired (?:CPU|GPU) memory utilization",
        "less memory is free than gpu_memory_utilization asks for",
        f"Lower {_LESS}, or end what else takes memory.",
    ),
    KnownLine(
        "memory_moved", r"Error in memory profiling\. Initial free memory",
        "another process gave memory of the card back while vLLM measured it",
        "Start again; keep other processes off the card while an engine starts.",
    ),
    KnownLine(
        "host_memory",
        r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|^MemoryError\b"
        r"|Out of memory: Killed process|oom-kill:|oom_kill_process"
        r"|died unexpectedly \(exit code: -9\)|engine process was killed by SIGKILL",
        "the machine's memory ran out, or somebody killed the engine",
        "Give the machine (or the pod) more memory, or run fewer engines (run.replicas, "
        "run.engines_per_gpu); on a CPU lower engine.options.kv_cache_memory_bytes.",
    ),
)  # fmt: skip

_DISK = (
    KnownLine(
        "shared_memory",
        r"[Bb]us error|SIGBUS|died unexpectedly \(exit code: -7\)"
        r"|Error while creating shared memory segment|/dev/shm.*No space left"
        r"|No space left.*/dev/shm|insufficient shared memory",
        "/dev/shm is too small for an engine over several cards",  # noqa: S108
        "With Docker use --shm-size=8g or --ipc=host; in a pod mount an emptyDir with medium: "
        "Memory there (`batchwright k8s render` does).",
    ),
    KnownLine(
        "disk_full", r"No space left on device|Disk quota exceeded",
        "a disk is full",
        "Free some space, or put model cache and scratch elsewhere: HF_HOME, VLLM_CACHE_ROOT, "
        "TMPDIR.",
    ),
    KnownLine(
        "files_open", r"Too many open files",
        "the limit of open files is reached",
        "Raise it: ulimit -n 65535.",
    ),
)  # fmt: skip

_CARD = (
    KnownLine(
        "driver_too_old",
        r"CUDA driver version is insufficient|driver on your system is too old"
        r"|unsupported display driver / cuda driver combination|forward compatibility was attempted",
        "the NVIDIA driver is older than this build of vLLM needs",
        "Update the driver, or install a vLLM that was built for an older CUDA.",
    ),
    KnownLine(
        "card_unsupported",
        r"no kernel image is available for execution|is not compatible with the current PyTorch"
        r"|PTX was compiled with an unsupported toolchain|ptxas fatal",
        "this build of vLLM has no kernels for this kind of card",
        "Install a vLLM (and torch) whose CUDA knows the card; very old cards have none any more.",
    ),
    KnownLine(
        "no_card",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Failed to infer device type"
        r"|Found no NVIDIA driver",
        "the engine sees no card",
        "Look at nvidia-smi and CUDA_VISIBLE_DEVICES; in containers, at --gpus all or the pod's "
        "nvidia.com/gpu. Without a card install batchwright[cpu].",
    ),
    KnownLine(
        "card_lost",
        r"NVRM: Xid|GPU has fallen off the bus|uncorrectable ECC error|GPU is lost"
        r"|CUDA error: (?:unspecified launch failure|hardware stack error)",
        "the card failed",
        "Look at dmesg for its Xid, reset or replace the card; run again, it goes on.",
    ),
    KnownLine(
        "illegal_access",
        r"an illegal memory access was encountered|misaligned address|device-side assert triggered",
        "a kernel of the engine went wrong on the card",
        "Run again, it goes on. If it comes back: engine.options.enforce_eager: true, another "
        "engine.options.attention_backend, or a newer vLLM.",
    ),
    KnownLine(
        "no_compiler",
        r"Failed to find C compiler|Could not find nvcc|nvcc: not found|[Nn]inja is required",
        "the engine compiles kernels, and there is no compiler",
        "Install one: apt-get install build-essential (for nvcc, the CUDA toolkit); "
        "engine.options.enforce_eager: true needs less of it.",
    ),
    KnownLine(
        "no_python_headers", r"Python\.h: No such file",
        "the engine compiles kernels, and Python's headers are missing",
        "Install them: apt-get install python3-dev.",
    ),
)  # fmt: skip

_BETWEEN_CARDS = (
    KnownLine(
        "nccl_multicast",
        r"transport/nvls\.cc.*NCCL WARN|\(NVLS\) Multicast memory|cuMulticast\w+ .*fail",
        "the cards' NVLink multicast does not work on this machine",
        "Set NCCL_NVLS_ENABLE=0 in the environment; or mend the fabric manager.",
    ),
    KnownLine(
        "nccl", r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError"
        r"|ncclRemoteError|DistBackendError|Watchdog caught collective operation timeout",
        "the cards of one engine cannot talk to each other",
        "Look at /dev/shm and at NCCL_DEBUG=INFO; try NCCL_P2P_DISABLE=1, or an engine on one "
        f"card ({_TP}: 1).",
        rank=Rank.EFFECT,
    ),
    KnownLine(
        "worker_died",
        r"Worker proc \S+ died unexpectedly|ActorDiedError|WorkerProc initialization failed"
        r"|RayWorkerProc rank=\S+ died|Connection closed by peer",
        "a process of the engine ended without a word",
        "Look at dmesg: memory, a card, or somebody who killed it.",
        rank=Rank.EFFECT,
    ),
    KnownLine(
        "core_died",
        r"Engine core initialization failed|EngineCore encountered an issue|EngineDeadError",
        "the engine's core ended, and the log does not say why in words that are known here",
        "Read the log from its first traceback on.",
        rank=Rank.ENVELOPE,
    ),
)  # fmt: skip

OF_THE_MACHINE: tuple[KnownLine, ...] = (*_MEMORY, *_DISK, *_CARD, *_BETWEEN_CARDS)
