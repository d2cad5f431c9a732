"""vLLM as an engine for vectors, labels and scores: token ids in, pooled numbers out."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchwright.core.errors import JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.pieces import Pieces, cut, pieces_of
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.core.tasks import TaskSettings
from batchwright.engines.pooled import Numbers, check_width, score_outcome
from batchwright.engines.vectors import finished, vector_outcomes
from batchwright.engines.vllm import (
    build_engine,
    load_vllm,
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
)

_TASKS = {"head": "classify", "vectors": "embed", "tokens": "token_classify", "steps": "token_classify"}  # fmt: skip


@dataclass(slots=True)
class _Flight:
    """A row in the engine.

    Attributes:
        pieces: which it is read in.
        outputs: of each piece, once it is there.
        waiting: the engine's names of those that are not.
    """

    pieces: Pieces
    outputs: list[Numbers | None]
    waiting: set[str]


class VllmPoolingEngine:
    """Drives vLLM's LLMEngine with a pooling model. One per process.

    A row of several texts is several requests of vLLM's, and one outcome. vLLM pools and applies
    the head; vectors are cut and normalised here, the same for every model and version: vLLM itself
    cuts only the vectors of models that say in their config that they may be cut.
    """

    def __init__(self) -> None:
        self._engine: Any = None
        self._task = TaskSettings()
        self._readings = Readings()
        self._reads_types = False
        self._rows: dict[int, _Flight] = {}
        self._refused: list[Outcome] = []
        self._steps = 0
        self._prompt_tokens = 0
        self._stopped = threading.Event()

    def preload(self, settings: EngineSettings) -> None:
        """Import vLLM."""
        load_vllm(settings)

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Import vLLM and load the model."""
        assert not settings.task.makes_text, "this engine makes no text"
        check_model(settings.model, settings.options)
        on_cpu = is_cpu_build()
        version = load_vllm(settings)
        self._task = settings.task
        options = pooling_options(settings, on_cpu=on_cpu)
        settings = dataclasses.replace(settings, options=options)
        self._engine = build_engine(settings, self._readings, on_cpu=on_cpu)
        _check_supported(self._engine, settings)
        self._reads_types = _reads_types(self._engine)
        self._stopped = threading.Event()
        watch_core(self._engine, self._stopped)
        from vllm.platforms import current_platform

        device = str(current_platform.get_device_name())
        return EngineInfo("vllm", version, device, 0, os.getpid())

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that vLLM refuses becomes a failed outcome of the next step."""
        refusals = refusal_types()
        for request in requests:
            flight = self._rows[request.row] = _new_flight(request)
            try:
                self._add(request, flight)
            except refusals as error:
                self.abort([request.row])
                self._refused.append(refused(request.row, error))

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows."""
        known = [self._rows.pop(row) for row in rows if row in self._rows]
        self._engine.abort_request([name for flight in known for name in flight.waiting])

    def step(self, timeout_s: float) -> list[Outcome]:
        """Make at least one step, and more until a row finishes or the time is up."""
        deadline = time.monotonic() + timeout_s
        outcomes, self._refused = self._refused, []
        while self._rows:
            outcomes += self._step_once()
            outcomes, self._refused = [*outcomes, *self._refused], []
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

    def _add(self, request: Request, flight: _Flight) -> None:
        """Queue the pieces of a row."""
        pieces = flight.pieces
        if pieces.second_at and not self._reads_types:
            raise ValueError("vLLM cannot tell this model where the second text of a pair begins")
        for index, ids in enumerate(cut(request.token_ids, pieces.lengths)):
            if not ids and len(pieces.lengths) > 1:
                continue  # a document that is skipped
            name = f"{request.row}.{index}"
            params = pooling_params(self._task, pieces.second_at[index:])
            self._engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
            flight.waiting.add(name)

    def _step_once(self) -> list[Outcome]:
        outputs = step(self._engine)
        self._steps += 1
        done: list[int] = []
        for output in outputs:
            row, index = map(int, output.request_id.split("."))
            flight = self._rows.get(row)
            if flight is None or not output.finished:
                continue
            flight.waiting.discard(output.request_id)
            error = getattr(output, "error", None)  # older versions have none
            if error is not None:
                self.abort([row])
                self._refused.append(_failed(row, error))
                continue
            flight.outputs[index] = output.outputs.data.float().cpu().numpy()
            self._prompt_tokens += flight.pieces.lengths[index]
            if not flight.waiting:
                done.append(row)
        return self._outcomes(done) if done else []

    def _outcomes(self, rows: list[int]) -> list[Outcome]:
        flights = [self._rows.pop(row) for row in rows]
        task = self._task
        if task.vectors is None:
            pairs = zip(rows, flights, strict=True)
            return [score_outcome(row, task, one.pieces, one.outputs) for row, one in pairs]
        stacked = np.stack([one for flight in flights for one in flight.outputs if one is not None])
        check_width(stacked, task)
        return vector_outcomes(rows, finished(stacked, task.vectors))


def _failed(row: int, error: Any) -> Outcome:
    said = f"{error.code}: {error.message}"
    return Outcome(row, [], error_code="engine_error", error=said)


def _new_flight(request: Request) -> _Flight:
    pieces = pieces_of(request)
    return _Flight(pieces, [None] * len(pieces.lengths), set())


def pooling_options(settings: EngineSettings, *, on_cpu: bool) -> dict[str, Any]:
    """Engine options with what makes vLLM pool; the user's own win."""
    from vllm.config import PoolerConfig

    task = settings.task
    how: dict[str, Any] = {}
    if settings.embedding is not None:
        names = {field.name for field in dataclasses.fields(PoolerConfig)}
        name = "seq_pooling_type" if "seq_pooling_type" in names else "pooling_type"
        how[name] = settings.embedding.pooling.upper()
    elif task.method == "steps":
        how["step_tag_id"] = task.step_token_id
    # An encoder reads an input as a whole: one that is longer than a step would wait for ever.
    budget = CPU_BATCHED_TOKENS if on_cpu else GPU_BATCHED_TOKENS
    return {
        "runner": "pooling",
        **({"pooler_config": PoolerConfig(**how)} if how else {}),
        "max_num_batched_tokens": max(budget, settings.max_model_len, settings.max_num_seqs),
        **settings.options,
    }


def pooling_params(task: TaskSettings, second_at: Sequence[int] = ()) -> Any:
    """What vLLM is asked for one text; the names changed over the versions.

    Args:
        task: vectors are asked for as they are, scores as probabilities unless the job wants none.
        second_at: first of them, where in the text the second of a pair begins; empty if nowhere.
    """
    from vllm import PoolingParams

    fields = PoolingParams.__struct_fields__
    if task.embedding is not None:
        how: dict[str, Any] = {"normalize" if "normalize" in fields else "use_activation": False}
        return PoolingParams(task="embed", **how)
    names = ("use_activation", "activation", "softmax")
    how = {next(name for name in names if name in fields): not task.raw_scores}
    wanted: Any = _TASKS[task.method]
    if second_at:
        how["extra_kwargs"] = {"compressed_token_type_ids": second_at[0]}
    return PoolingParams(task=wanted, **how)


def _check_supported(engine: Any, settings: EngineSettings) -> None:
    """Say now, and once, that the model is of another kind, and not with every row."""
    task = settings.task
    wanted = "embed" if task.embedding is not None else _TASKS[task.method]
    found = engine.get_supported_tasks()
    if wanted not in found:
        raise JobError(
            f"vLLM does not run {settings.model} for task: {task.name} ({wanted}); it runs it for "
            f"{', '.join(sorted(found)) or 'nothing'}"
        )


def _reads_types(engine: Any) -> bool:
    """Whether vLLM's class of the model can be told which text of a pair a token belongs to."""
    from vllm.model_executor.model_loader import get_model_cls

    model = get_model_cls(engine.vllm_config.model_config)
    return "token_type_ids" in inspect.signature(model.forward).parameters
