"""Rules about lengths: answers that are cut, caps and contexts far above the data."""

from __future__ import annotations

import re

from batchwright.core.findings import Change, Finding, Weight
from batchwright.diagnose.evidence import LEAST_ROWS, AnswerEvidence, Evidence
from batchwright.diagnose.faults import LENGTH, faults_of
from batchwright.diagnose.figures import over_time, percent
from batchwright.diagnose.rules_batch import HALF_EMPTY
from batchwright.diagnose.rules_host import MOSTLY_FULL, more_memory
from batchwright.diagnose.rules_rows import (
    CUT_ON_PURPOSE,
    LEAST_LOOPING,
    chat_template,
    is_text,
)

# One answer in a hundred may be a runaway; more of them, and the cap is too low.
LEAST_CUT = 0.02

# A cap this far above what 99 of 100 answers need is a guess.
CAP_FAR_ABOVE = 8
LEAST_CAP = 1024


def answers_cut(evidence: Evidence) -> Finding | None:
    """Answers are ended by `max_tokens`."""
    answers, settings = evidence.answers, evidence.settings
    if not is_text(evidence) or answers.rows < LEAST_ROWS or answers.cut < LEAST_CUT:
        return None
    deliberate = settings.ignore_eos or settings.max_tokens <= CUT_ON_PURPOSE
    if deliberate or chat_template(evidence) is not None or answers.looping >= LEAST_LOOPING:
        return None
    to = _longer_cap(settings.max_tokens, answers.cut)
    room = settings.max_model_len - evidence.data.longest_prompt
    return Finding(
        code="answers_cut",
        title="Answers are cut by max_tokens",
        weight=Weight.BROKEN,
        evidence=(
            ("cut", f"{percent(answers.cut)} of {answers.rows:,} answers"),
            ("max_tokens", f"{settings.max_tokens:,}"),
            *(
                (("answers that end by themselves", f"{_ended(answers):,} tokens in the median"),)
                if answers.outputs.rows
                else ()
            ),
        ),
        cause="They had more to say when the cap ended them; their finish_reason is length.",
        remedy="Raise the cap and run the job again, or ask for shorter answers in the prompt."
        + (" The context leaves no room for more: raise max_model_len too." if room < to else ""),
        changes=(Change("sampling.max_tokens", f"{settings.max_tokens}", f"{to}"),),
    )


def _ended(answers: AnswerEvidence) -> int:
    return answers.outputs.quantile(0.5 * (1 - answers.cut))


def _longer_cap(now: int, cut: float) -> int:
    """Lengths fall off by a constant factor per token as a rule: to get from `cut` to 1 %."""
    factor = 2
    while factor < 8 and cut**factor > 0.01:
        factor *= 2
    return now * factor


def long_cap(evidence: Evidence) -> Finding | None:
    """`max_tokens` is far above the answers, and the plan keeps memory free for them."""
    answers, settings = evidence.answers, evidence.settings
    if not is_text(evidence) or answers.outputs.rows < LEAST_ROWS or settings.ignore_eos:
        return None
    longest = max(1, answers.outputs.quantile(0.99))
    planned = evidence.plan is not None and "max_num_seqs" not in settings.user_options
    held = [
        one for one in evidence.reliable if one.full >= MOSTLY_FULL and 0 < one.kv_use < HALF_EMPTY
    ]
    if settings.max_tokens < max(LEAST_CAP, CAP_FAR_ABOVE * longest) or not (planned and held):
        return None
    to = -(-4 * longest // 64) * 64
    return Finding(
        code="long_cap",
        title="max_tokens is far above the answers",
        weight=Weight.HINT,
        evidence=(
            ("max_tokens", f"{settings.max_tokens:,}"),
            ("99 of 100 answers need", f"{longest:,} tokens at most"),
            ("KV cache in use", percent(over_time(held, lambda one: one.kv_use))),
        ),
        cause="Before the first answers are known, the plan keeps room for long ones, and lets fewer "
        "rows run at the same time.",
        remedy="Lower the cap; it still leaves four times what the longest answers take.",
        changes=(Change("sampling.max_tokens", f"{settings.max_tokens}", f"{to}"),),
    )


# What the engine could do, in the line with which it refuses.
_POSSIBLE = re.compile(r"estimated maximum model length is (\d+)")

# A pool that holds fewer rows of the longest allowed length than this makes the limit matter.
LONGEST_ROWS_IN_POOL = 2.0
# The limit is far above the data from this factor on.
FAR_ABOVE = 4.0


def model_len(evidence: Evidence) -> Finding | None:
    """`max_model_len` is far above the data, and the cache hardly holds one such row."""
    longest = evidence.data.longest_prompt + evidence.answers.outputs.longest
    limit = evidence.settings.max_model_len
    fault = next(iter(faults_of(evidence, LENGTH)), None)
    if fault is not None:
        return _model_len_refused(evidence, fault.line)
    pools = [one.kv_tokens for one in evidence.workers if one.kv_tokens]
    if not pools or not evidence.data.rows_seen or not evidence.answers.outputs.rows:
        return None
    if limit < FAR_ABOVE * longest or min(pools) >= LONGEST_ROWS_IN_POOL * limit:
        return None
    return Finding(
        code="model_len",
        title="max_model_len is far above the data",
        weight=Weight.HINT,
        evidence=(
            ("max_model_len", f"{limit:,}"),
            ("longest row seen", f"{longest:,} tokens"),
            ("the cache holds", f"{min(pools):,} tokens"),
        ),
        cause="The engine must be able to hold one row of the longest allowed length, and the cache "
        "is hardly larger than that.",
        remedy="Set it to what the rows need: less memory, or fewer cards, will do then.",
        changes=(_shorter(limit, longest),),
    )


def _model_len_refused(evidence: Evidence, line: str) -> Finding:
    limit = evidence.settings.max_model_len
    found = _POSSIBLE.search(line)
    possible = int(found[1]) if found else limit - 1
    known = evidence.data.rows_seen > 0
    needed = evidence.data.longest_prompt + evidence.settings.max_tokens
    fits = known and needed <= possible
    remedy = "Lower max_model_len to what the rows need, or give the cache more memory."
    if known and not fits:
        remedy = "Give the cache more memory, or lower sampling.max_tokens: the rows need more."
    return Finding(
        code="model_len",
        title="The KV cache does not hold one row of max_model_len tokens",
        weight=Weight.BROKEN,
        evidence=(
            ("max_model_len", f"{limit:,}"),
            *((("longest prompt and max_tokens", f"{needed:,} tokens"),) if known else ()),
            *((("possible", f"{possible:,} tokens"),) if found else ()),
            ("the engine says", line),
        ),
        cause="The engine refuses to start unless its cache holds one row of that length.",
        remedy=remedy,
        changes=((_shorter(limit, needed, possible),) if fits else ()) + more_memory(evidence),
    )


def _shorter(limit: int, longest: int, possible: int | None = None) -> Change:
    """Half as much again as the longest row seen, in steps of 256, if so much is possible."""
    wanted = -(-round(1.5 * longest) // 256) * 256
    to = min(limit, wanted, limit if possible is None else possible)
    return Change("engine.options.max_model_len", f"{limit}", f"{to}")
