"""vLLM as an engine: token ids in, token ids out, one step at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from batchwright.core.errors import EngineDied, EngineError, JobError, MissingExtra, RowError
from batchwright.core.outcomes import More, Outcome, Sample
from batchwright.core.plan import default_batched_tokens
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.options import refuse_unknown
from batchwright.engines.vllm_lora import LoraAdapters
from batchwright.engines.vllm_media import MediaRenderer, fitted
from batchwright.engines.vllm_params import read_logprobs, sampling_params, with_config_objects
from batchwright.engines.vllm_readings import Readings
from batchwright.engines.vllm_setup import (
    CPU_BATCHED_TOKENS,
    OWN_OPTIONS,
    check_model,
    engine_arguments,
    import_problem,
    is_cpu_build,
    prepare_environment,
)

CORE_CHECK_S = 0.5
MEDIA_WAIT_S = 0.01  # where there is nothing to step, wait for rows whose media are not ready


class VllmEngine:
    """Drives vLLM's LLMEngine. One per process, and best in a process of its own.

    `Outcome.token_ids` are vLLM's own, complete: the token that ended the answer is the last of
    them, so their number is the number of generated tokens. `stop_reason` names that token's id
    as text, for the worker to drop it before decoding; `text` is set only for rows with stop
    strings, which vLLM can find in text alone, and for rows that keep special tokens in it.
    """

    def __init__(self) -> None:
        self._engine: Any = None
        self._settings = EngineSettings("vllm", "", max_num_seqs=1, max_model_len=1)
        self._readings = Readings()
        self._adapters = LoraAdapters({})
        self._rows: dict[int, Any] = {}  # row in flight -> its SamplingParams
        self._refused: list[Outcome] = []
        self._steps = 0
        self._expanded: dict[int, int] = {}  # row with media -> tokens of its prompt
        self._media = MediaRenderer(None)
        self._stopped = threading.Event()

    def preload(self, settings: EngineSettings) -> None:
        """Import vLLM."""
        load_vllm(settings)

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Import vLLM and load the model."""
        check_model(settings.model, settings.options)
        on_cpu = is_cpu_build()
        version = load_vllm(settings)
        self._settings = settings
        self._adapters = LoraAdapters(settings.adapters)
        self._engine = build_engine(settings, self._readings, on_cpu=on_cpu)
        self._adapters.load(self._engine)
        self._media = MediaRenderer(self._engine.renderer)
        self._stopped = threading.Event()
        watch_core(self._engine, self._stopped)
        self._make_params = lru_cache(maxsize=4096)(
            partial(
                sampling_params,
                eos_token_ids=settings.eos_token_ids,
                without_tokenizer=bool(settings.options.get("skip_tokenizer_init")),
            )
        )
        return self._describe(version)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that vLLM refuses becomes a failed outcome of the next step."""
        from vllm.inputs import tokens_input

        refusals = refusal_types()
        for request in requests:
            if request.media:
                self._media.submit(request)
                continue
            try:
                prompt = tokens_input(list(request.token_ids))
                self._add(request, prompt, request.max_tokens)
            except refusals as error:
                self._refused.append(refused(request.row, error))

    def _add(self, request: Request, prompt: Any, max_tokens: int) -> None:
        # vLLM makes a copy for the row, so equal parameters may be the same object.
        params, priority = self._make_params(request.sampling, max_tokens)
        lora = self._adapters.of_request(request.extras)
        self._engine.add_request(
            str(request.row), prompt, params, lora_request=lora, priority=priority
        )
        self._rows[request.row] = params

    def _add_rendered(self, timeout_s: float) -> None:
        """Queue the requests whose media are ready; wait for the first where told to."""
        refusals = refusal_types()
        for one in self._media.collect(timeout_s):
            row = one.request.row
            try:
                if one.problem is not None:
                    raise one.problem
                self._add(one.request, one.prompt, fitted(one, self._settings.max_model_len))
                self._expanded[row] = one.num_tokens
            except RowError as problem:
                self._refused.append(failed(row, problem))
                self._media.discard(one)
            except refusals as error:
                self._refused.append(refused(row, error))
                self._media.discard(one)

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows."""
        rows = list(rows)
        self._media.abort(rows)
        known = [row for row in rows if self._rows.pop(row, None) is not None]
        self._readings.first_tokens.forget(known)
        self._engine.abort_request([str(row) for row in known])

    def step(self, timeout_s: float) -> list[Outcome]:
        """Make at least one step, and more until a row finishes or the time is up."""
        deadline = time.monotonic() + timeout_s
        self._add_rendered(0.0 if self._rows or self._refused else MEDIA_WAIT_S)
        outcomes, self._refused = self._refused, []
        # With no row in flight, a step of an engine core in another process would never return.
        while self._rows:
            outcomes += self._step_once()
            if outcomes or time.monotonic() >= deadline:
                break
        return outcomes

    def gauges(self) -> EngineGauges:
        """The readings of the last step."""
        readings = self._readings
        return EngineGauges(
            running=readings.running,
            waiting=readings.waiting,
            kv_use=readings.kv_use,
            preemptions=readings.preemptions,
            steps=self._steps,
            prompt_tokens=readings.prompt_tokens,
            output_tokens=readings.output_tokens,
            drafted_tokens=readings.drafted_tokens,
            accepted_tokens=readings.accepted_tokens,
            prefix_tokens=readings.prefix_tokens,
            prefix_hit_tokens=readings.prefix_hit_tokens,
        )

    def stop(self) -> None:
        """Free the model and the engine core."""
        self._stopped.set()
        self._media.stop()
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
        return [
            self._outcome(int(output.request_id), output)
            for output in outputs
            if output.finished and int(output.request_id) in self._rows
        ]

    def _outcome(self, row: int, output: Any) -> Outcome:
        params = self._rows.pop(row)
        expanded = self._expanded.pop(row, None)
        generating_s = self._readings.first_tokens.end(row)
        for answer in output.outputs:
            reason = answer.finish_reason
            if reason in (None, "abort", "error"):
                code = "engine_error" if reason == "error" else "aborted"
                return Outcome(row, [], error_code=code, error="vLLM ended the request")
        first, *others = [self._sample(answer, params) for answer in output.outputs]
        token_ids, text, reason, stop_reason, more = first
        if others:
            more = (more or More())._replace(samples=tuple(others))
        if expanded is not None:
            more = (more or More())._replace(prompt_tokens=expanded)
        return Outcome(
            row,
            token_ids,
            text=text,
            finish_reason=reason,
            stop_reason=stop_reason,
            cached_tokens=output.num_cached_tokens or 0,
            more=more,
            generating_s=generating_s,
        )

    def _sample(self, answer: Any, params: Any) -> Sample:
        token_ids = list(answer.token_ids)
        more = None
        if answer.logprobs is not None:
            more = More(logprobs=read_logprobs(token_ids, answer.logprobs, params.logprobs))
        return Sample(
            token_ids,
            answer.text if params.detokenize else None,
            answer.finish_reason,
            self._stop_reason(answer.finish_reason, answer.stop_reason, token_ids),
            more,
        )

    def _stop_reason(self, reason: str, given: Any, token_ids: list[int]) -> str | None:
        """The stop string, or the id of the stop token; vLLM names none for the main EOS."""
        if given is not None:
            return str(given)
        ended_by_eos = (
            reason == "stop" and token_ids and token_ids[-1] in self._settings.eos_token_ids
        )
        return str(token_ids[-1]) if ended_by_eos else None

    def _describe(self, version: str) -> EngineInfo:
        from vllm.platforms import current_platform

        cache = self._engine.vllm_config.cache_config
        kv_tokens = getattr(cache, "kv_cache_size_tokens", None)
        if kv_tokens is None:  # older versions
            kv_tokens = (cache.num_gpu_blocks or 0) * cache.block_size
        return EngineInfo(
            "vllm", version, str(current_platform.get_device_name()), int(kv_tokens), os.getpid()
        )


def load_vllm(settings: EngineSettings) -> str:
    """Import vLLM, which takes seconds, in the environment that it wants; return its version."""
    prepare_environment(settings.options, on_cpu=is_cpu_build())
    try:
        importlib.import_module("vllm.v1.engine.llm_engine")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"the vllm engine needs vLLM ({error})", "pip install 'batchwright[vllm]'"
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        raise import_problem(error) from error
    return str(importlib.import_module("vllm").__version__)


def build_engine(settings: EngineSettings, readings: Readings, *, on_cpu: bool) -> Any:
    """Make the LLMEngine: wrong options are the job's fault, the rest is the machine's."""
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    names = {field.name for field in dataclasses.fields(EngineArgs)}
    refuse_unknown(settings.options, {*names, *OWN_OPTIONS}, "vllm")
    try:
        tokens = CPU_BATCHED_TOKENS if on_cpu else default_batched_tokens(*card())
        given = engine_arguments(settings, on_cpu=on_cpu, batched_tokens=tokens, known=names)
        arguments = EngineArgs(**with_config_objects(given))
        config = arguments.create_engine_config()
    except (ValueError, TypeError, OSError, NotImplementedError, ImportError) as error:
        raise JobError(f"vLLM cannot run {settings.model}: {error}") from error
    try:
        engine = LLMEngine.from_vllm_config(config, disable_log_stats=arguments.disable_log_stats)
    except ValueError as error:
        raise JobError(f"vLLM cannot run {settings.model}: {error}") from error
    except (RuntimeError, OSError, MemoryError) as error:
        raise EngineError(f"vLLM did not start with {settings.model}: {error}") from error
    readings.watch(engine)
    return engine


def card() -> tuple[str, int]:
    """Name and memory in bytes of the first card, asked without touching it."""
    from vllm.platforms import current_platform

    return str(current_platform.get_device_name()), int(current_platform.get_device_total_memory())


def step(engine: Any) -> list[Any]:
    """One step of vLLM's engine. Raises EngineDied when its core is dead."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        outputs: list[Any] = engine.step()
    except EngineDeadError as error:
        raise EngineDied(f"vLLM's engine core died: {error}") from error
    return outputs


def shut_down(engine: Any) -> None:
    """End the engine core, which may be dead already."""
    with contextlib.suppress(RuntimeError, OSError):
        engine.engine_core.shutdown()


def watch_core(engine: Any, stopped: threading.Event) -> None:
    """Wake a step that waits for an engine core that is gone.

    On GPUs the core is a process of its own. When it is killed, vLLM's client notices and sets a
    flag, but a `step` that is already waiting for output waits for ever (seen with 0.32.0).
    """
    client = engine.engine_core
    resources: Any = getattr(client, "resources", None)
    outputs = getattr(client, "outputs_queue", None)
    if outputs is None or not hasattr(resources, "engine_dead"):
        return  # the core runs in this process

    def watch() -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        while not stopped.wait(CORE_CHECK_S):
            if resources.engine_dead:
                outputs.put_nowait(EngineDeadError())
                return

    threading.Thread(target=watch, name="watch-core", daemon=True).start()


def refusal_types() -> tuple[type[Exception], ...]:
    """What `add_request` raises for a bad request; older versions lack some of the classes."""
    from vllm import exceptions
    from vllm.v1.engine.exceptions import EngineGenerateError

    client_error = getattr(exceptions, "VLLMClientError", exceptions.VLLMValidationError)
    return (client_error, EngineGenerateError, ValueError, TypeError, OverflowError)


def failed(row: int, problem: RowError) -> Outcome:
    """The failed outcome of a row whose media the model does not take."""
    return Outcome(row, [], error_code=problem.code, error=problem.message)


def refused(row: int, error: Exception) -> Outcome:
    """The failed outcome of a request that vLLM did not take."""
    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error
    message = str(cause) or type(cause).__name__
    return Outcome(row, [], error_code="engine_refused", error=message)
