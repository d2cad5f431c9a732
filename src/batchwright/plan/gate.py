"""Whether rows run grouped by what they share: only where that saves time."""

from __future__ import annotations

from typing import NamedTuple

# An output token costs about as much as two prompt tokens: on one H200 with a 7B model, 256 rows
# at a time, a step of about 15 ms makes 256 tokens, and a prompt token takes about 25 us.
OUTPUT_WEIGHT = 2.0

# Nothing is reordered for less than this share of the time; what is over soon needs more.
LEAST_GAIN = 0.03
SHORT_S = 300.0
LEAST_GAIN_WHEN_SHORT = 0.10

UNKNOWN_CACHE = "the size of the KV cache is not known"


class Known(NamedTuple):
    """What the engines have shown of the job so far.

    Attributes:
        kv_tokens: size of an engine's KV cache; None if nobody knows.
        mean_output: tokens of an answer; None before the first.
        tokens_per_s: of all engines, in the measure of `work`; None if not known.
    """

    kv_tokens: int | None
    mean_output: float | None = None
    tokens_per_s: float | None = None


class Outlook(NamedTuple):
    """What is known of the rows that are left.

    Attributes:
        prompt_tokens: of all of them.
        output_tokens: expected.
        hit_file: share of the prompt tokens that the cache saves in file order.
        hit_best: the same with rows that share next to each other.
        tokens_per_s: in the measure of `work`, of all engines; None if not known yet.
    """

    prompt_tokens: int
    output_tokens: int
    hit_file: float
    hit_best: float
    tokens_per_s: float | None = None


class Verdict(NamedTuple):
    """Whether to group, and the figures that it rests on."""

    group: bool
    gain: float
    seconds_left: float | None
    reason: str


def work(prompt_tokens: float, output_tokens: float) -> float:
    """Tokens of prompt and answer as one measure of work, in prompt tokens."""
    return prompt_tokens + OUTPUT_WEIGHT * output_tokens


def cache_for_prompts(kv_tokens: int, mean_prompt: float, mean_output: float) -> int:
    """Tokens of prompts that a KV cache keeps.

    Answers take room too, those of running rows and, until they grow old, those of finished ones:
    vLLM caches both alike, so each has a share of the cache by its tokens.
    """
    if mean_prompt <= 0:
        return kv_tokens
    return int(kv_tokens * mean_prompt / (mean_prompt + mean_output))


def decide(outlook: Outlook) -> Verdict:
    """Group if the predicted gain is worth it."""
    in_file_order = work(outlook.prompt_tokens * (1 - outlook.hit_file), outlook.output_tokens)
    at_best = work(outlook.prompt_tokens * (1 - outlook.hit_best), outlook.output_tokens)
    gain = 1 - at_best / in_file_order if in_file_order else 0.0
    seconds = None
    if outlook.tokens_per_s:
        # Rates are measured in whole prompts, what the cache saved included.
        whole = work(outlook.prompt_tokens, outlook.output_tokens)
        seconds = whole / outlook.tokens_per_s
    short = seconds is not None and seconds < SHORT_S
    least = LEAST_GAIN_WHEN_SHORT if short else LEAST_GAIN
    hits = f"the prefix cache saves {outlook.hit_file:.0%} of the prompt tokens in file order"
    hits += f" and {outlook.hit_best:.0%} in groups: {max(gain, 0.0):.1%} of the time"
    wanted = f"{least:.0%} is asked for" + (", for it is over soon" if short else "")
    return Verdict(gain >= least, gain, seconds, f"{hits} ({wanted})")
