"""An engine without a model: deterministic answers, and every fault on request."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from batchwright.core.errors import JobError
from batchwright.core.extras import adapter_of
from batchwright.core.outcomes import Outcome
from batchwright.core.pieces import pieces_of
from batchwright.core.ports import EngineGauges, EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.fake_answers import (
    BYTE_VOCABULARY,
    AnswerMaker,
    Sampling,
    parse_sampling,
)
from batchwright.engines.options import refuse_unknown
from batchwright.engines.pooled import made_up_scores
from batchwright.engines.vectors import made_up_vectors, vector_outcomes

ROW_SETS = ("refuse_rows", "abort_rows", "hang_rows", "hang_engine_rows", "kill_rows")


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """What `engine.options` may hold for the fake engine.

    Attributes:
        startup_s: how long `start` takes.
        seconds_per_step: how long a step takes.
        rows_per_step: running rows that finish in a step; 0 for all of them.
        longest_answer: answers have 8 to this many tokens.
        text: every answer's text, in place of one made from the prompt.
        row_texts: a row's number to the texts of its answers, in the order in which it is asked;
            the last one stays.
        kv_tokens: tokens that fit the pretended KV pool; 0 for no limit.
        refuse_rows: rows refused on arrival.
        abort_rows: rows that end without an answer.
        hang_rows: rows that never finish, while others do.
        hang_engine_rows: rows with which a step never returns.
        kill_rows: rows with which the process kills itself.
        die_after_rows: the process kills itself after so many finished rows; 0 for never.
        die_marker: file that is made at that death and prevents a second one.
    """

    startup_s: float = 0.0
    seconds_per_step: float = 0.0
    rows_per_step: int = 0
    longest_answer: int = 24
    text: str | None = None
    row_texts: Mapping[Any, Sequence[str]] = field(default_factory=dict)
    kv_tokens: int = 0
    refuse_rows: frozenset[int] = frozenset()
    abort_rows: frozenset[int] = frozenset()
    hang_rows: frozenset[int] = frozenset()
    hang_engine_rows: frozenset[int] = frozenset()
    kill_rows: frozenset[int] = frozenset()
    die_after_rows: int = 0
    die_marker: str | None = None


def parse_options(options: dict[str, Any]) -> FakeOptions:
    """Options as given, to options as used; `*_rows` may be any list of row numbers."""
    refuse_unknown(options, {field.name for field in fields(FakeOptions)}, "fake")
    try:
        rows = {name: frozenset(options[name]) for name in ROW_SETS if name in options}
    except TypeError as error:
        raise JobError(f"engine.options of the fake engine: {error}") from None
    return FakeOptions(**{**options, **rows})


class FakeEngine:
    """Makes an answer from a hash of the prompt and the sampling fields, and of nothing else.

    A row's answer thus never depends on its neighbours, the order or a restart.
    """

    def __init__(self) -> None:
        self._settings = EngineSettings("fake", "", max_num_seqs=1, max_model_len=1)
        self._options = FakeOptions()
        self._answers = AnswerMaker(BYTE_VOCABULARY, self._options.longest_answer, None)
        # Rows in order of arrival; the first `max_num_seqs` of them are running. An OrderedDict,
        # because taking the first item of a dict gets slower with each item taken.
        self._queue: OrderedDict[int, Request] = OrderedDict()
        self._refused: list[Outcome] = []
        self._texts: dict[int, Sequence[str]] = {}
        self._asked: Counter[int] = Counter()
        self._sampling: dict[str, Sampling] = {}
        self._steps = 0
        self._finished = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._preemptions = 0
        self._resident_tokens = 0
        self._num_fitting = 0

    def preload(self, settings: EngineSettings) -> None:
        """Nothing has to be loaded."""

    def start(self, settings: EngineSettings) -> EngineInfo:
        """Check the options and pretend to load a model."""
        self._options = parse_options(settings.options)
        self._settings = settings
        # JSON has no numbers for keys.
        self._texts = {int(row): texts for row, texts in self._options.row_texts.items()}
        self._answers = AnswerMaker(
            settings.vocab_size or BYTE_VOCABULARY,
            self._options.longest_answer,
            self._options.text,
        )
        time.sleep(self._options.startup_s)
        return EngineInfo("fake", "1", "none", self._options.kv_tokens, os.getpid())

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; refuse what a real engine would refuse."""
        for request in requests:
            reason = self._reason_to_refuse(request)
            if reason is None:
                self._queue[request.row] = request
            else:
                self._refused.append(
                    Outcome(request.row, [], error_code="engine_refused", error=reason)
                )

    def abort(self, rows: Iterable[int]) -> None:
        """Forget these rows."""
        for row in rows:
            self._queue.pop(row, None)

    def step(self, timeout_s: float) -> list[Outcome]:
        """Step until something has finished or the time is up."""
        deadline = time.monotonic() + timeout_s
        outcomes, self._refused = self._refused, []
        while self._queue:
            outcomes += self._step_once()
            if outcomes or time.monotonic() >= deadline:
                break
        return outcomes

    def gauges(self) -> EngineGauges:
        """Read the pretended engine."""
        running = min(len(self._queue), self._settings.max_num_seqs)
        kv_tokens = self._options.kv_tokens
        if kv_tokens:
            running = min(running, self._num_fitting)
        return EngineGauges(
            running=running,
            waiting=len(self._queue) - running,
            kv_use=min(1.0, self._resident_tokens / kv_tokens) if kv_tokens else 0.0,
            preemptions=self._preemptions,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
        )

    def stop(self) -> None:
        """Forget everything."""
        self._queue.clear()
        self._refused.clear()

    def _reason_to_refuse(self, request: Request) -> str | None:
        ids = request.token_ids
        vocab_size = self._settings.vocab_size or BYTE_VOCABULARY
        if request.row in self._options.refuse_rows:
            return "refused on request"
        if not ids:
            return "the prompt is empty"
        if max(ids) >= vocab_size or min(ids) < 0:
            return f"a token id lies outside the vocabulary of {vocab_size}"
        adapter = adapter_of(request.extras)
        if adapter is not None and adapter not in self._settings.adapters:
            return f"there is no adapter {adapter}"
        task = self._settings.task
        length = max(pieces_of(request).lengths) if task.makes_scores else len(ids)
        if length + (1 if task.makes_text else 0) > self._settings.max_model_len:
            return f"the prompt has {length} tokens of {self._settings.max_model_len} allowed"
        if request.sampling not in self._sampling:
            try:
                self._sampling[request.sampling] = parse_sampling(request.sampling)
            except ValueError as error:
                return str(error)
        return None

    def _step_once(self) -> list[Outcome]:
        options = self._options
        self._steps += 1
        if options.seconds_per_step:
            time.sleep(options.seconds_per_step)
        running = list(islice(self._queue.values(), self._settings.max_num_seqs))
        self._suffer(running)
        if options.kv_tokens:
            running = self._fitting(running)
        ready = [request for request in running if request.row not in options.hang_rows]
        if not ready:
            time.sleep(0.001)  # only hanging rows are left: a real engine would not spin either
        ready = ready[: options.rows_per_step or None]
        outcomes = self._pool(ready) or [self._answer(request) for request in ready]
        for outcome in outcomes:
            self._prompt_tokens += len(self._queue.pop(outcome.row).token_ids)
            self._output_tokens += outcome.num_output_tokens
        self._finished += len(outcomes)
        self._die_once()
        return outcomes

    def _suffer(self, running: list[Request]) -> None:
        options = self._options
        if not (options.kill_rows or options.hang_engine_rows):
            return
        for request in running:
            if request.row in options.kill_rows:
                kill_this_process()
            while request.row in options.hang_engine_rows:
                time.sleep(3600)

    def _die_once(self) -> None:
        options = self._options
        if not options.die_after_rows or self._finished < options.die_after_rows:
            return
        if options.die_marker is not None:
            marker = Path(options.die_marker)
            if marker.exists():
                return
            marker.touch()
        kill_this_process()

    def _fitting(self, running: list[Request]) -> list[Request]:
        """The rows whose prompt and answer fit; rows let in for their prompt alone go out again."""
        capacity = self._options.kv_tokens
        prompts = whole = admitted = 0
        fitting: list[Request] = []
        for request in running:
            prompts += len(request.token_ids)
            if prompts > capacity and admitted:
                break
            admitted += 1
            needed = len(request.token_ids) + self._answers.wanted(
                request, self._sampling[request.sampling]
            )
            if not fitting or whole + needed <= capacity:
                whole += needed
                fitting.append(request)
        self._preemptions += admitted - len(fitting)
        self._num_fitting = len(fitting)
        self._resident_tokens = whole
        return fitting

    def _pool(self, requests: list[Request]) -> list[Outcome]:
        """Vectors or scores made up from the prompts; nothing where text is wanted."""
        task = self._settings.task
        if task.makes_scores:
            return made_up_scores(requests, task)
        embedding = task.vectors
        if embedding is None or not requests:
            return []
        vectors = made_up_vectors([request.token_ids for request in requests], embedding)
        return vector_outcomes([request.row for request in requests], vectors)

    def _answer(self, request: Request) -> Outcome:
        if request.row in self._options.abort_rows:
            return Outcome(request.row, [], error_code="aborted", error="aborted on request")
        texts = self._texts.get(request.row)
        text = texts[min(self._asked[request.row], len(texts) - 1)] if texts else None
        self._asked[request.row] += 1 if texts else 0
        return self._answers.answer(request, self._sampling[request.sampling], text)


def kill_this_process() -> NoReturn:
    """Die as from the kernel's out-of-memory killer: nothing is flushed or cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(137)
