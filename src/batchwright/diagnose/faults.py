"""What ends engines, gathered by what has to be done about it.

The names are those of the fatal lines that engines are known for; a line of which none is known
is `unknown`.
"""

from __future__ import annotations

import re

from batchwright.diagnose.evidence import EngineFault, Evidence

UNKNOWN = "unknown"

OUT_OF_MEMORY = frozenset(
    {"memory", "memory_at_load", "memory_at_profile", "memory_at_kv_cache", "memory_at_warm_up",
     "memory_in_run", "no_kv_cache"}
)  # fmt: skip
GRAPHS = frozenset({"memory_in_graphs", "graph_capture"})
LENGTH = frozenset({"kv_cache_too_small"})
TAKEN = frozenset({"memory_taken", "memory_moved"})
SHARED_MEMORY = frozenset({"shared_memory"})
HOST_MEMORY = frozenset({"host_memory"})
MODEL = frozenset({"model_unsupported", "remote_code"})

# Rules of their own explain these, with the run's figures; the others are told as they are.
EXPLAINED = OUT_OF_MEMORY | GRAPHS | LENGTH | TAKEN | SHARED_MEMORY | HOST_MEMORY | MODEL

# A capture that fails without a word of memory: a kernel that does what graphs cannot hold.
_CAPTURE = re.compile(
    r"when stream is capturing|STREAM_CAPTURE|cudaErrorStreamCapture|graph captur\w* failed",
    re.IGNORECASE,
)

LONGEST_LINE = 300


def faults_of(evidence: Evidence, codes: frozenset[str]) -> list[EngineFault]:
    """The run's faults of one kind."""
    return [one for one in evidence.faults if one.code in codes]


def capture_line(text: str) -> str | None:
    """The line of a log that says that a graph could not be captured; None if there is none."""
    return next((shown(one) for one in text.splitlines() if _CAPTURE.search(one)), None)


def shown(line: str) -> str:
    """A line of a length that can be shown."""
    words = line.strip().removeprefix("|").lstrip()
    return words if len(words) <= LONGEST_LINE else words[: LONGEST_LINE - 1] + "…"
