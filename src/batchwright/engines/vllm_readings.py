"""What vLLM says of each of its steps, added up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class FirstTokens:
    """When each row in the engine got its first token.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._at: dict[int, float] = {}

    def note(self, request_id: str) -> None:
        """A request has a token now; the first sample of a row counts."""
        self._at.setdefault(row_of(request_id), self._monotonic())

    def forget(self, rows: Iterable[int]) -> None:
        """Rows that have no end."""
        for row in rows:
            self._at.pop(row, None)

    def end(self, row: int) -> float | None:
        """Seconds from a row's first token until now, told once; None if it had no token."""
        at = self._at.pop(row, None)
        return None if at is None else self._monotonic() - at


def row_of(request_id: str) -> int:
    """The row of a request by the name that vLLM's core has for it.

    `17` became `17-a1b2c3d4`, and with several samples `0_17-a1b2c3d4`, `1_17-a1b2c3d4` (0.32).
    """
    return int(request_id.rpartition("_")[2].partition("-")[0])


class Readings:
    """Gauges and counters, taken from what vLLM's core says of each step.

    vLLM's own statistics (`IterationStats` and the Prometheus logger that it always adds) look at
    each token several times: with 1,024 running rows they took half of the front-end's time (0.32).
    The front-end shares its thread with whatever feeds it, so they are left out.
    """

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_use = 0.0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.prefix_tokens = 0
        self.prefix_hit_tokens = 0
        self.first_tokens = FirstTokens()

    def watch(self, engine: Any) -> None:
        """Read every step of an LLMEngine from now on, in place of its own statistics."""
        client = engine.engine_core
        get_output = client.get_output

        def read_output() -> Any:
            outputs = get_output()
            self.count(outputs.scheduler_stats, outputs.outputs)
            return outputs

        client.get_output = read_output
        engine.logger_manager = None
        engine.log_stats = engine.output_processor.log_stats = False

    def count(self, scheduler: Any, outputs: Sequence[Any]) -> None:
        """Take in a step: the scheduler's state after it, and each row's new tokens."""
        if scheduler is not None:
            self.running = scheduler.num_running_reqs
            self.waiting = scheduler.num_waiting_reqs
            self.kv_use = scheduler.kv_cache_usage
            drafts = getattr(scheduler, "spec_decoding_stats", None)
            if drafts is not None:
                self.drafted_tokens += drafts.num_draft_tokens
                self.accepted_tokens += drafts.num_accepted_tokens
            prefixes = getattr(scheduler, "prefix_cache_stats", None)
            if prefixes is not None:  # of this step
                self.prefix_tokens += prefixes.queries
                self.prefix_hit_tokens += prefixes.hits
        for output in outputs:
            self.output_tokens += len(output.new_token_ids)
            if output.prefill_stats is not None:  # with the row's first token, once
                self.prompt_tokens += output.prefill_stats.num_computed_tokens
                if output.new_token_ids:  # a pooled row has none
                    self.first_tokens.note(output.request_id)
            if output.events:
                self.preemptions += sum(event.type.name == "PREEMPTED" for event in output.events)
