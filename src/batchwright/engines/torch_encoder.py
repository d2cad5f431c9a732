"""Embeddings by a small encoder, straight through torch: large batches, two on their way at once."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.length_batches import MAX_ROWS, LengthBatches
from batchwright.engines.torch_batches import Queue, as_array
from batchwright.engines.torch_model import (
    CPU_BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    Encoder,
    import_torch,
    load_encoder,
    parse_options,
)
from batchwright.engines.vectors import vector_outcomes


@dataclass(slots=True)
class _Slot:
    """Memory of the host that a batch uses on its way in and out.

    Attributes:
        packed: int32 tensor for lengths and token ids; pinned where there is a GPU.
        vectors: tensor [MAX_ROWS, dimensions] for the results, likewise; None on a CPU.
    """

    packed: Any
    vectors: Any


@dataclass(slots=True)
class _Flight:
    """A batch on the device.

    Attributes:
        rows: its row numbers, in order.
        tokens: real tokens in it.
        vectors: tensor [rows, dimensions] on the host, filled once `arrived` has happened.
        arrived: event of the device; None where the work is done at once.
    """

    slot: _Slot
    rows: list[int]
    tokens: int
    vectors: Any
    arrived: Any


class TorchEncoder:
    """The Engine protocol over a transformers encoder, for embeddings.

    On a GPU the next batch is packed and launched while the last one is computed, and read while
    the next one is: the host's work is hidden behind the device's.
    """

    def __init__(self) -> None:
        self._encoder: Encoder | None = None
        self._max_model_len = 1
        self._batches: Queue = LengthBatches(1)
        self._free: list[_Slot] = []
        self._flights: deque[_Flight] = deque()
        self._live: set[int] = set()
        self._refused: list[Outcome] = []
        self._steps = 0
        self._prompt_tokens = 0

    def preload(self, settings: EngineSettings) -> None:
        """Import torch and transformers."""
        import_torch(parse_options(settings.options))

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Load the model. Raises JobError or EngineError."""
        options = parse_options(settings.options)
        encoder = load_encoder(settings, options)
        import torch

        default = GPU_BATCH_TOKENS if encoder.on_gpu else CPU_BATCH_TOKENS
        self._batches = encoder.layout.queue(options.max_batch_tokens or default)
        self._max_model_len = settings.max_model_len
        room = MAX_ROWS + max(self._batches.max_tokens, settings.max_model_len)
        for _ in range(2 if encoder.on_gpu else 1):
            self._free.append(_new_slot(torch, encoder, settings, room))
        self._encoder = encoder
        if encoder.on_gpu:
            self._warm_up()
        device = torch.cuda.get_device_name(encoder.device) if encoder.on_gpu else "cpu"
        return EngineInfo("torch", str(torch.__version__), device, 0, os.getpid())

    def _warm_up(self) -> None:
        """Let the device load its kernels and find its memory before rows wait for it."""
        for tokens in (64, self._batches.max_tokens):
            length = min(128, self._max_model_len, tokens)
            rows = [Request(row, [0] * length, 0, "") for row in range(tokens // length)]
            self._batches.add(rows)
            while len(self._batches):
                self._launch(self._batches.take())
                while self._flights:
                    self._land(self._flights.popleft())
        self._steps = self._prompt_tokens = 0

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; refuse what the model cannot read."""
        assert self._encoder is not None, "started"
        good = []
        limit, vocab_size = self._max_model_len, self._encoder.vocab_size
        suspect = _any_outside(requests, vocab_size)
        for request in requests:
            reason = _reason_to_refuse(request, limit, vocab_size if suspect else None)
            if reason is None:
                good.append(request)
            else:
                refusal = Outcome(request.row, [], error_code="engine_refused", error=reason)
                self._refused.append(refusal)
        self._live.update([request.row for request in good])
        self._batches.add(good)

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows."""
        gone = self._live.intersection(rows)
        self._live -= gone
        self._batches.remove(gone)

    def step(self, timeout_s: float) -> list[Outcome]:
        """Launch what there is room for, then wait for the oldest batch."""
        deadline = time.monotonic() + timeout_s
        outcomes, self._refused = self._refused, []
        while self._flights or len(self._batches):
            while self._free and len(self._batches):
                outcomes += self._launch(self._batches.take())
            if self._flights:
                outcomes += self._land(self._flights.popleft())
            if outcomes or time.monotonic() >= deadline:
                break
        return outcomes

    def gauges(self) -> EngineGauges:
        """Rows on the device and in the queue."""
        return EngineGauges(
            running=sum(len(flight.rows) for flight in self._flights),
            waiting=len(self._batches),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
        )

    def stop(self) -> None:
        """Free the model."""
        self._encoder = None
        self._flights.clear()
        self._free.clear()
        self._live.clear()
        self._refused.clear()
        self._batches = LengthBatches(1)
        gc.unfreeze()
        gc.collect()

    def _launch(self, batch: list[Request]) -> list[Outcome]:
        """Send a batch to the device. Returns outcomes only where it cannot be computed at all."""
        import torch

        assert self._encoder is not None, "started"
        slot = self._free.pop()
        shape = self._encoder.layout.pack(slot.packed.numpy(), batch)
        try:
            vectors = self._encoder.encode(slot.packed[: shape.size], shape)
        except torch.OutOfMemoryError as error:
            self._free.append(slot)
            return self._out_of_memory(batch, str(error))
        arrived = None
        if slot.vectors is not None:
            host = slot.vectors[: len(batch)]
            host.copy_(vectors, non_blocking=True)
            cuda: Any = torch.cuda
            arrived = cuda.Event()
            arrived.record()
            vectors = host
        rows = [request.row for request in batch]
        tokens = sum(len(request.token_ids) for request in batch)
        self._flights.append(_Flight(slot, rows, tokens, vectors, arrived))
        return []

    def _land(self, flight: _Flight) -> list[Outcome]:
        """Wait for a batch and take its vectors."""
        if flight.arrived is not None:
            flight.arrived.synchronize()
        outcomes = vector_outcomes(flight.rows, flight.vectors.numpy())
        self._free.append(flight.slot)
        self._steps += 1
        self._prompt_tokens += flight.tokens
        live = self._live
        if not live.issuperset(flight.rows):
            outcomes = [outcome for outcome in outcomes if outcome.row in live]
        live.difference_update(flight.rows)
        return outcomes

    def _out_of_memory(self, batch: list[Request], why: str) -> list[Outcome]:
        """Try again in halves; what does not fit alone fails alone."""
        import torch

        self._steps += 1
        torch.cuda.empty_cache()
        if len(batch) > 1:
            self._batches.max_tokens = max(1, self._batches.max_tokens // 2)
            self._batches.add(batch)
            return []
        self._live.discard(batch[0].row)
        return [Outcome(batch[0].row, [], error_code="engine_error", error=why.partition("\n")[0])]


def _new_slot(torch: Any, encoder: Encoder, settings: EngineSettings, room: int) -> _Slot:
    assert settings.embedding is not None, "checked when the model was loaded"
    packed = torch.empty(room, dtype=torch.int32, pin_memory=encoder.on_gpu)
    if not encoder.on_gpu:
        return _Slot(packed, None)
    dtype = getattr(torch, settings.embedding.dtype)
    shape = (MAX_ROWS, settings.embedding.dimensions)
    return _Slot(packed, torch.empty(shape, dtype=dtype, pin_memory=True))


def _any_outside(requests: Sequence[Request], vocab_size: int) -> bool:
    """Whether any token id is unknown to the model: looked at all together, for it is rare."""
    try:
        flat = np.frombuffer(b"".join(as_array(one.token_ids) for one in requests), np.int32)
    except OverflowError:
        return True
    return bool(len(flat)) and (int(flat.max()) >= vocab_size or int(flat.min()) < 0)


def _reason_to_refuse(request: Request, limit: int, vocab_size: int | None) -> str | None:
    ids = request.token_ids
    if not ids:
        return "the prompt is empty"
    if len(ids) > limit:
        return f"the input has {len(ids)} tokens of {limit} allowed"
    if vocab_size is not None and (max(ids) >= vocab_size or min(ids) < 0):
        return f"a token id lies outside the vocabulary of {vocab_size}"
    return None
