"""The first engine on a machine compiles alone; the others start together, from its cache.

Engines that start at once on an empty cache all compile the same, and write it over each other. A
lock file beside vLLM's cache lets one go first; a mark there says that the cache is warm. Both are
as lasting as the cache itself, and machines that share a cache warm it up once.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import IO

from batchwright.core.errors import EngineError
from batchwright.core.ids import canonical_json, digest
from batchwright.core.ports import EngineSettings
from batchwright.engines.vllm_setup import is_cpu_build

LOOK_AGAIN_S = 0.2

Gate = Callable[[], AbstractContextManager[None]]


def start_gate(settings: EngineSettings, environ: Mapping[str, str], timeout_s: float) -> Gate:
    """What an engine passes through while it starts.

    Args:
        settings: of the engine; others share its compiled graphs only if all of them are equal.
        environ: which may name another cache.
        timeout_s: an engine waits no longer than this for the one that compiles.
    """
    eager = bool(settings.options.get("enforce_eager"))
    no_cache = environ.get("VLLM_DISABLE_COMPILE_CACHE", "0") not in ("", "0")
    if settings.kind != "vllm" or eager or no_cache or is_cpu_build():
        return nullcontext  # nothing is compiled, or nothing is kept
    root = environ.get("VLLM_CACHE_ROOT") or Path(
        environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vllm"
    )
    return partial(one_first, Path(root) / "batchwright", graph_key(settings), timeout_s)


def graph_key(settings: EngineSettings) -> str:
    """A name for all engines that compile the same."""
    same = {"model": settings.model, "options": settings.options, "task": settings.task.name,
            "seqs": settings.max_num_seqs, "length": settings.max_model_len,
            "adapters": sorted(settings.adapters), "vllm": metadata.version("vllm")}  # fmt: skip
    return digest(canonical_json(same))


@contextmanager
def one_first(folder: Path, key: str, timeout_s: float) -> Iterator[None]:
    """Only one process at a time is inside until one has come out well; then all may be.

    The lock is the operating system's: if the first one dies, the next takes its place.

    Raises:
        EngineError: another has been at it for longer than `timeout_s`.
    """
    mark = folder / f"{key}.warm"
    if mark.is_file():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{key}.lock").open("a") as lock:
        _acquire(lock, mark, timeout_s)
        yield
        mark.touch()


def _acquire(lock: IO[str], mark: Path, timeout_s: float) -> None:
    """Wait for the lock, or for the mark that makes it needless."""
    deadline = time.monotonic() + timeout_s
    while not mark.is_file():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"another engine has been compiling for {timeout_s:g} s, and this one waits for "
                    f"its cache ({lock.name})",
                    "Raise engine.start_timeout_s, or end that process.",
                ) from None
            time.sleep(LOOK_AGAIN_S)
        else:
            return
