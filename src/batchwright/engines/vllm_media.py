"""Images and sounds for vLLM: decoded and run through the model's processor ahead of its steps."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from batchwright.core.errors import RowError
from batchwright.core.media import Media
from batchwright.core.records import Request
from batchwright.engines.decode import decode

DECODERS = 4  # decoding lets go of the interpreter, so they leave the engine's steps alone
DECODED_AHEAD = 8  # rows: decoded pictures are ten times as large as their files

# A model's processor is its own code, and raises what it likes (an assertion for a prompt without
# the placeholder): whatever it is, it is about this row.
_REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NotImplementedError,
    OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class Rendered(NamedTuple):
    """A request with what vLLM's engine takes, or why there is none."""

    request: Request
    prompt: Any = None
    problem: RowError | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt tokens, each placeholder replaced by the tokens of its item."""
        return len(self.prompt["prompt_token_ids"])


class MediaRenderer:
    """Makes vLLM's engine inputs of requests with media, in order, in a thread of its own.

    One thread, because vLLM's cache of processed items is made for one, and expects the engine
    core to see items in the same order.

    Args:
        renderer: of the engine.
    """

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self._pending: dict[int, Request] = {}
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Rendered] = queue.SimpleQueue()
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")
        self._thread: threading.Thread | None = None

    def submit(self, request: Request) -> None:
        """Queue a request."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="media", daemon=True)
            self._thread.start()
        self._pending[request.row] = request
        self._inbox.put(request)

    def collect(self, timeout_s: float) -> list[Rendered]:
        """What is ready; where nothing is, wait for the first one at most `timeout_s`."""
        found: list[Rendered] = []
        while self._pending:
            try:
                one = self._done.get(timeout=timeout_s) if timeout_s else self._done.get_nowait()
            except queue.Empty:
                break
            timeout_s = 0.0
            if self._pending.get(one.request.row) is one.request:
                del self._pending[one.request.row]
                found.append(one)
            else:
                self.discard(one)
        return found

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows, where they are here."""
        for row in rows:
            self._pending.pop(row, None)

    def discard(self, one: Rendered) -> None:
        """Let vLLM forget items that its engine core will not see: else it would not send them."""
        cache: Any = getattr(self._renderer, "mm_processor_cache", None)
        if one.prompt is None or cache is None or not hasattr(cache, "invalidate"):
            return
        for hashes in one.prompt.get("mm_hashes", {}).values():
            for item in hashes:
                cache.invalidate(item)

    def stop(self) -> None:
        """End the thread once it has finished the row that it is at."""
        self._pending.clear()
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(10.0)
        self._decoders.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        window: deque[tuple[Request, Future[dict[str, list[Any]]]]] = deque()
        while True:
            while len(window) < DECODED_AHEAD and (not window or not self._inbox.empty()):
                request = self._inbox.get()
                if request is None:
                    return
                window.append((request, self._decoders.submit(decode_all, request.media)))
            self._done.put(self._render(*window.popleft()))

    def _render(self, request: Request, decoded: Future[dict[str, list[Any]]]) -> Rendered:
        if self._pending.get(request.row) is not request:
            return Rendered(request)  # aborted meanwhile
        from vllm.exceptions import VLLMError

        try:
            prompt = {"prompt_token_ids": list(request.token_ids)}
            (made,) = self._renderer.render_cmpl([{**prompt, "multi_modal_data": decoded.result()}])
        except RowError as problem:
            return Rendered(request, problem=problem)
        except (*_REFUSALS, VLLMError) as error:
            message = f"the model's processor: {str(error) or type(error).__name__}"
            return Rendered(request, problem=RowError("engine_refused", message))
        return Rendered(request, made)


def decode_all(media: Iterable[Media]) -> dict[str, list[Any]]:
    """Items by kind, as vLLM takes them. Raises RowError."""
    found: dict[str, list[Any]] = {}
    for one in media:
        found.setdefault(one.kind, []).append(decode(one))
    return found


def fitted(one: Rendered, max_model_len: int) -> int:
    """Tokens that the answer may have now that the prompt's length is known.

    Raises:
        RowError: `prompt_too_long`.
    """
    room = max_model_len - one.num_tokens
    if room < 1:
        raise RowError(
            "prompt_too_long",
            f"with its images and sounds the prompt has {one.num_tokens} tokens; the limit is "
            f"{max_model_len} for prompt and answer together",
        )
    return min(one.request.max_tokens, room)
