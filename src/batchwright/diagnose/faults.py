"""The lines with which engines say why they cannot start or go on."""

from __future__ import annotations

import re

from batchwright.diagnose.evidence import EngineFault

# In the order in which they are looked for: a failure while graphs are captured is also one of
# memory, and who says why the cache is too small also says that the engine failed.
KNOWN: dict[str, str] = {
    "graph_capture": r"(?:during|while) (?:CUDA |HIP )?graph captur|stream is capturing"
    r"|cudaErrorStreamCapture|CUDA ?graph captur\w* failed|STREAM_CAPTURE",
    "model_len": r"larger than the (?:available KV cache memory|maximum number of tokens that can "
    r"be stored in KV cache)",
    "card_taken": r"Free memory on device .*less than desired GPU memory utilization",
    "shared_memory": r"(?:/dev/shm).*(?:No space left|[Tt]oo small)|No space left.*/dev/shm|Bus error"
    r"|SIGBUS|unable to (?:mmap|open) shared memory|insufficient shared memory",
    "unknown_model": r"Model architectures? .*(?:are|is) not supported|does not recognize this "
    r"architecture|Unrecognized (?:configuration class|model)",
    "out_of_memory": r"(?:CUDA|HIP) out of memory|OutOfMemoryError|No available memory for the "
    r"cache blocks|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
    "host_memory": r"SIGKILL \(out of memory\?\)|Cannot allocate memory|MemoryError"
    r"|oom-?kill|OOMKilled",
}  # fmt: skip

_PATTERNS = {code: re.compile(pattern) for code, pattern in KNOWN.items()}

# What stands ahead of a line's own words: the engine's process, level, date and place.
_HEAD = re.compile(r"^(?:\s*\|\s*)?(?:\([^)]*\)\s*)*(?:(?:ERROR|WARNING|INFO|CRITICAL)\s+\S+ \S+ "
                   r"\[[^\]]*\]\s*)?")  # fmt: skip
_LENGTH = re.compile(r"estimated maximum model length is ([\d,]+)|in KV cache \(([\d,]+)\)")

LONGEST_LINE = 300


def read_fault(text: str, *, worker: str = "", at_start: bool = True) -> EngineFault | None:
    """The fault that a log, or an error's message, tells of; None if no line of it is known.

    The causes that explain the others come first, wherever in the text they stand.
    """
    # A failure while graphs are captured may be told by the line and the traceback around it.
    captured = "capture_model" in text and _PATTERNS["out_of_memory"].search(text) is not None
    lines = text.splitlines()
    for code, pattern in _PATTERNS.items():
        wanted = _PATTERNS["out_of_memory"] if captured and code == "graph_capture" else pattern
        line = next((one for one in reversed(lines) if wanted.search(one)), None)
        if line is not None:
            return EngineFault(code, own_words(line), worker, at_start, _figures(line))
    return None


def own_words(line: str) -> str:
    """A line without its date and level, cut to a length that can be shown."""
    words = _HEAD.sub("", line).strip()
    return words if len(words) <= LONGEST_LINE else words[: LONGEST_LINE - 1] + "…"


def _figures(line: str) -> tuple[str, ...]:
    found = _LENGTH.search(line)
    if found is None:
        return ()
    return tuple(one.replace(",", "") for one in found.groups() if one)
