"""vLLM as an engine for embeddings: token ids in, pooled vectors out, one step at a time."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from batchwright.core.errors import JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.vectors import finished, vector_outcomes
from batchwright.engines.vllm import (
    build_engine,
    import_vllm,
    refusal_types,
    refused,
    shut_down,
    step,
    watch_core,
)
from batchwright.engines.vllm_readings import Readings
from batchwright.engines.vllm_setup import (
    CPU_BATCHED_TOKENS,
    GPU_BATCHED_TOKENS,
    check_model,
    is_cpu_build,
    prepare_environment,
)


class VllmPoolingEngine:
    """Drives vLLM's LLMEngine with a pooling model. One per process.

    vLLM pools; cutting and normalising is done here, the same for every model and version: vLLM
    itself cuts only the vectors of models that say in their config that they may be cut.
    """

    def __init__(self) -> None:
        self._engine: Any = None
        self._embedding: EmbeddingSettings | None = None
        self._params: Any = None
        self._readings = Readings()
        self._rows: dict[int, int] = {}  # row in flight -> its tokens
        self._refused: list[Outcome] = []
        self._steps = 0
        self._prompt_tokens = 0
        self._stopped = threading.Event()

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Import vLLM and load the model."""
        assert settings.embedding is not None, "this engine makes embeddings only"
        check_model(settings.model, settings.options)
        on_cpu = is_cpu_build()
        prepare_environment(settings.options, on_cpu=on_cpu)
        version = import_vllm()
        self._embedding = settings.embedding
        options = pooling_options(settings, on_cpu=on_cpu)
        settings = dataclasses.replace(settings, options=options)
        self._engine = build_engine(settings, self._readings, on_cpu=on_cpu)
        self._params = _raw_vectors()
        self._stopped = threading.Event()
        watch_core(self._engine, self._stopped)
        from vllm.platforms import current_platform

        device = str(current_platform.get_device_name())
        return EngineInfo("vllm", version, device, 0, os.getpid())

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that vLLM refuses becomes a failed outcome of the next step."""
        refusals = refusal_types()
        for request in requests:
            ids = list(request.token_ids)
            try:
                self._engine.add_request(str(request.row), {"prompt_token_ids": ids}, self._params)
            except refusals as error:
                self._refused.append(refused(request.row, error))
            else:
                self._rows[request.row] = len(ids)

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows."""
        known = [row for row in rows if self._rows.pop(row, None) is not None]
        self._engine.abort_request([str(row) for row in known])

    def step(self, timeout_s: float) -> list[Outcome]:
        """Make at least one step, and more until a row finishes or the time is up."""
        deadline = time.monotonic() + timeout_s
        outcomes, self._refused = self._refused, []
        while self._rows:
            outcomes += self._step_once()
            if outcomes or time.monotonic() >= deadline:
                break
        return outcomes

    def gauges(self) -> EngineGauges:
        """The readings of the last step."""
        return EngineGauges(
            running=self._readings.running,
            waiting=self._readings.waiting,
            kv_use=self._readings.kv_use,
            preemptions=self._readings.preemptions,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
        )

    def stop(self) -> None:
        """Free the model and the engine core."""
        self._stopped.set()
        engine, self._engine = self._engine, None
        self._rows.clear()
        self._refused.clear()
        if engine is not None:
            shut_down(engine)
            del engine
            gc.unfreeze()
            gc.collect()

    def _step_once(self) -> list[Outcome]:
        outputs = step(self._engine)
        self._steps += 1
        rows, vectors = [], []
        for output in outputs:
            row = int(output.request_id)
            if output.finished and row in self._rows:
                self._prompt_tokens += self._rows.pop(row)
                rows.append(row)
                vectors.append(output.outputs.data)
        return self._outcomes(rows, vectors) if rows else []

    def _outcomes(self, rows: list[int], vectors: list[Any]) -> list[Outcome]:
        assert self._embedding is not None, "started"
        stacked = np.stack([vector.float().cpu().numpy() for vector in vectors])
        if stacked.shape[1] < self._embedding.dimensions:
            raise JobError(
                f"embedding.dimensions is {self._embedding.dimensions}, but the model makes "
                f"{stacked.shape[1]}"
            )
        return vector_outcomes(rows, finished(stacked, self._embedding))


def pooling_options(settings: EngineSettings, *, on_cpu: bool) -> dict[str, Any]:
    """Engine options with what makes vLLM pool; the user's own win."""
    assert settings.embedding is not None, "this engine makes embeddings only"
    from vllm.config import PoolerConfig

    how: dict[str, Any] = {}
    names = {field.name for field in dataclasses.fields(PoolerConfig)}
    name = "seq_pooling_type" if "seq_pooling_type" in names else "pooling_type"
    how[name] = settings.embedding.pooling.upper()
    # An encoder reads an input as a whole: one that is longer than a step would wait for ever.
    budget = CPU_BATCHED_TOKENS if on_cpu else GPU_BATCHED_TOKENS
    return {
        "runner": "pooling",
        "pooler_config": PoolerConfig(**how),
        "max_num_batched_tokens": max(budget, settings.max_model_len, settings.max_num_seqs),
        **settings.options,
    }


def _raw_vectors() -> Any:
    """Parameters that ask for the pooled vector as it is; their names changed over the versions."""
    from vllm import PoolingParams

    fields = PoolingParams.__struct_fields__
    raw: dict[str, Any] = {"normalize" if "normalize" in fields else "use_activation": False}
    return PoolingParams(task="embed", **raw)
