"""Whether a run's answers are right: every row once, each with exactly its number of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.throughput.records import Row, RunProblem


class Answer(NamedTuple):
    """What came back for a row. `output_tokens` counts a vector's numbers for embeddings."""

    id: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


def check_answers(rows: Iterable[Row], answers: Iterable[Answer], task: str) -> int | None:
    """Compare answers with what was asked for.

    Returns:
        Prompt tokens that came from the prefix cache; None if some answer does not tell.

    Raises:
        RunProblem: naming the first row that is missing, double, or of another length.
    """
    wanted = {row.id: row for row in rows}
    cached: int | None = 0
    for answer in answers:
        row = wanted.pop(answer.id, None)
        if row is None:
            raise RunProblem(f"{answer.id} was not asked for, or is there twice")
        if answer.prompt_tokens != row.prompt_tokens:
            raise RunProblem(
                f"{row.id}: {answer.prompt_tokens} prompt tokens, not {row.prompt_tokens}"
            )
        if task == "generate" and answer.output_tokens != row.max_tokens:
            raise RunProblem(
                f"{row.id}: {answer.output_tokens} output tokens, not {row.max_tokens}"
            )
        if task == "embed" and answer.output_tokens < 1:
            raise RunProblem(f"{row.id} has no vector")
        known = cached is not None and answer.cached_tokens is not None
        cached = (cached or 0) + (answer.cached_tokens or 0) if known else None
    if wanted:
        raise RunProblem(f"{len(wanted)} rows have no answer, {next(iter(wanted))} for one")
    return cached


class Totals(NamedTuple):
    """What an engine counted over a whole run, for a system that keeps no row's tokens."""

    requests: int
    prompt_tokens: int
    output_tokens: int


def check_totals(rows: Iterable[Row], ids: Iterable[str], totals: Totals) -> None:
    """The same by sums: no row can have more than its cap, so a right sum means right rows.

    Raises:
        RunProblem: a row is missing or double, or a sum is another.
    """
    wanted = {row.id: row for row in rows}
    expected = Totals(
        len(wanted),
        sum(row.prompt_tokens for row in wanted.values()),
        sum(row.max_tokens for row in wanted.values()),
    )
    for name in ids:
        if wanted.pop(name, None) is None:
            raise RunProblem(f"{name} was not asked for, or is there twice")
    if wanted:
        raise RunProblem(f"{len(wanted)} rows have no answer, {next(iter(wanted))} for one")
    if totals != expected:
        raise RunProblem(f"the engine counted {totals}, not {expected}")


def read_answers(
    paths: Iterable[Path], parse: Callable[[dict[str, Any]], Answer]
) -> Iterator[Answer]:
    """Answers from JSONL files."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield parse(json.loads(line))


def of_batchwright(line: dict[str, Any]) -> Answer:
    """A line of batchwright's results."""
    if line["status"] != "ok":
        raise RunProblem(f"{line['id']} is {line['status']}: {line['error']}")
    vector = line.get("embedding")
    return Answer(
        line["id"],
        line["prompt_tokens"],
        len(vector) if vector else line["completion_tokens"],
        line.get("cached_tokens"),
    )


def of_harness(line: dict[str, Any]) -> Answer:
    """A line of our own harness around vLLM's LLM class."""
    return Answer(line["id"], line["prompt_tokens"], line["output_tokens"], line["cached_tokens"])


def of_openai_batch(line: dict[str, Any]) -> Answer:
    """A line of the OpenAI batch format."""
    if line["error"] is not None or line["response"]["status_code"] != 200:
        raise RunProblem(f"{line['custom_id']} failed: {line['error'] or line['response']}")
    usage = line["response"]["body"]["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        line["custom_id"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
        details.get("cached_tokens"),
    )


def of_datatrove(line: dict[str, Any]) -> Answer:
    """A document that datatrove wrote."""
    results = line["metadata"]["rollout_results"]
    if len(results) != 1:
        raise RunProblem(f"{line['id']} has {len(results)} answers")
    usage = results[0]["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        line["id"], usage["prompt_tokens"], usage["completion_tokens"], details.get("cached_tokens")
    )
