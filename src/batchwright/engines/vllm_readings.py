"""What vLLM says of each of its steps, added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
            if output.events:
                self.preemptions += sum(event.type.name == "PREEMPTED" for event in output.events)
