"""How many rows to be ready for: those that end early or share prefixes take less of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchwright.core.workload import SHORT_OUTPUT, LengthHistogram, Workload, guess_output
from batchwright.plan.limit import expected_outputs

# Rows with a common beginning of most of their prompt fit several times as often. vLLM lets no row in
# that does not fit, so the room costs a few graphs and nothing else. By arithmetic, a KV
# cache of 100,000 tokens holds 40 rows of eight questions to each document of 2,000 tokens, and 180
# of them in groups.
ROOM = 4
LONG_PROMPT = 512


def rows_to_plan_for(workload: Workload) -> Workload:
    """The workload that decides how many rows run: half of a long cap before a pilot."""
    if workload.outputs is not None or workload.max_tokens <= SHORT_OUTPUT:
        return workload
    caps = expected_outputs(workload)
    halves: dict[int, int] = {}
    for cap, rows in zip(caps.lengths, caps.counts, strict=True):
        half = guess_output(cap)
        halves[half] = halves.get(half, 0) + rows
    ordered = dict(sorted(halves.items()))
    return replace(workload, outputs=LengthHistogram(tuple(ordered), tuple(ordered.values())))


def room_for_sharing(
    prompts: LengthHistogram, outputs: LengthHistogram, given: Mapping[str, Any]
) -> int:
    """How many times the rows that fit by their lengths an engine should be ready to run.

    Args:
        prompts: prompt tokens of the rows.
        outputs: output tokens expected.
        given: settings of the user's own.
    """
    if given.get("enable_prefix_caching") is False or prompts.mean < LONG_PROMPT:
        return 1
    return ROOM if prompts.mean >= 2 * outputs.mean else 1
