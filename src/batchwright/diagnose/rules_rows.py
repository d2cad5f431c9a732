"""Rules about rows and answers: repeated, sharing a beginning, badly prompted, failed."""

from __future__ import annotations

from batchwright.core.findings import Change, Finding, Weight
from batchwright.diagnose.evidence import LEAST_ROWS, Evidence
from batchwright.diagnose.figures import percent
from batchwright.diagnose.window import OUTPUT_WEIGHT

# Caps this low are meant to cut: a label, a yes or no, a number.
CUT_ON_PURPOSE = 4
# Nearly all answers run into the cap: they never end.
NEVER_ENDS = 0.9

# Copies and shared beginnings below this share of the time are not worth a setting: see `plan.gate`.
LEAST_GAIN = 0.05

# A written-out turn now and then may be quoted; more of them are a prompt that is not understood.
LEAST_MARKED = 0.02
# Answers that end in the same words over and over.
LEAST_LOOPING = 0.05

# Beyond these, text falls apart or repeats itself (the usual ranges are 0 to 1 and 1 to 1.2).
HOT = 1.5
STRONG_PENALTY = 1.5
WEAK_PENALTY = 0.95


def duplicates(evidence: Evidence) -> Finding | None:
    """Many rows ask exactly what a row before them asks."""
    data, settings = evidence.data, evidence.settings
    if settings.repeat_once or data.rows_seen < LEAST_ROWS:
        return None
    gain = data.repeated * _not_cached(evidence)
    if gain < LEAST_GAIN:
        return None
    return Finding(
        code="duplicates",
        title="Many rows ask the same again",
        weight=Weight.LOSS,
        evidence=(
            ("repeats", f"{percent(data.repeated)} of {data.rows_seen:,} rows looked at"),
            ("sampling", "greedy, so the answers are the same"),
        ),
        cause="Rows with the same prompt and the same greedy sampling are computed each time.",
        remedy="Compute each once and copy the answer; copies are found within a chunk, so sort the "
        "input by prompt if they lie far apart.",
        changes=(Change("run.repeat_once", "false", "true"),),
        gain=gain,
    )


def _not_cached(evidence: Evidence) -> float:
    """What a copy costs of what the row costs: its prompt may come from the prefix cache."""
    data, answers = evidence.data, evidence.answers
    if not answers.rows:
        return 1.0
    made = OUTPUT_WEIGHT * answers.output_tokens
    if evidence.settings.engine == "fake":  # it caches nothing
        return 1.0
    prompts = answers.prompt_tokens
    saved = min(1.0, data.hit_rate_file / data.repeated if data.repeated else 0.0) * prompts
    whole = made + prompts
    return (whole - saved) / whole if whole else 1.0


def unshared_prefixes(evidence: Evidence) -> Finding | None:
    """Rows that share a beginning lie far apart, and ran in file order."""
    data, answers = evidence.data, evidence.answers
    if evidence.settings.asked_order != "file" or not answers.rows or data.rows_seen < LEAST_ROWS:
        return None
    made = OUTPUT_WEIGHT * answers.output_tokens
    as_is = answers.prompt_tokens * (1 - data.hit_rate_file) + made
    at_best = answers.prompt_tokens * (1 - data.hit_rate_best) + made
    gain = 1 - at_best / as_is if as_is else 0.0
    if gain < LEAST_GAIN or evidence.settings.engine == "fake":
        return None
    return Finding(
        code="unshared_prefixes",
        title="Rows that share a beginning run far apart",
        weight=Weight.LOSS,
        evidence=(
            ("prompt tokens saved in file order", percent(data.hit_rate_file)),
            ("with such rows together", percent(data.hit_rate_best)),
        ),
        cause="By the time the next row with the same beginning comes, the cache has given its "
        "place to others.",
        remedy="Let batchwright group rows by what they share; results stay in input order.",
        changes=(Change("run.order", "file", "auto"),),
        gain=gain,
    )


def chat_template(evidence: Evidence) -> Finding | None:
    """Answers write out the turns of a chat, or never end, as with a prompt of the wrong form."""
    answers, settings = evidence.answers, evidence.settings
    if not is_text(evidence) or answers.texts < LEAST_ROWS:
        return None
    marked = answers.marked >= LEAST_MARKED
    endless = answers.cut >= NEVER_ENDS and settings.raw_to_chat_model and not settings.ignore_eos
    if not marked and not (endless and settings.max_tokens > CUT_ON_PURPOSE):
        return None
    raw = not settings.chat
    return Finding(
        code="chat_template",
        title="The prompts do not have the form that the model knows",
        weight=Weight.BROKEN,
        evidence=(
            ("answers with written-out turns", percent(answers.marked)),
            ("answers that never end", percent(answers.cut)),
            ("prompts", "plain text" if raw else "through a chat template"),
        ),
        cause="The model was tuned for chat and gets plain text."
        if raw
        else "The chat template is not the model's own, or its end of turn is no end token, so the "
        "model goes on with the other side's turn.",
        remedy="Send the prompts as chat messages."
        if raw
        else "Take out model.chat_template, or give the one of this very model; if the end of turn "
        "is not among the end tokens, name it: sampling.stop_token_ids.",
        changes=(Change("prompt.chat", "false", "true"),) if raw else (),
    )


def unstable_sampling(evidence: Evidence) -> Finding | None:
    """Sampling settings with which text falls apart or repeats itself."""
    answers, settings = evidence.answers, evidence.settings
    if not is_text(evidence):
        return None
    # What is made after the end of an answer, with ignore_eos, may be anything.
    enough = answers.texts >= LEAST_ROWS and not settings.ignore_eos
    looping = enough and answers.looping >= LEAST_LOOPING
    odd = _odd_settings(evidence)
    if (not looping and not odd) or chat_template(evidence) is not None:
        return None
    changes = odd
    if looping and not odd and settings.repetition_penalty in (None, 1.0):
        changes = (Change("sampling.repetition_penalty", "1", "1.1"),)
    return Finding(
        code="unstable_sampling",
        title="Answers repeat themselves" if looping else "The sampling settings are extreme",
        weight=Weight.BROKEN if looping else Weight.HINT,
        evidence=(
            ("answers that end in a loop", percent(answers.looping)),
            ("temperature", "model's own" if settings.temperature is None
             else f"{settings.temperature:g}"),
            ("repetition_penalty", f"{settings.repetition_penalty or 1:g}"),
        ),
        cause="Small models, and greedy sampling, fall into loops; a penalty below 1 asks for them."
        if looping
        else "So high a temperature, or so strong a penalty, makes unlikely words likely.",
        remedy="Weaken what is extreme, or add a mild penalty; try it on a hundred rows "
        "(--limit 100).",
        changes=changes,
    )  # fmt: skip


def _odd_settings(evidence: Evidence) -> tuple[Change, ...]:
    settings = evidence.settings
    found = []
    guarded = (settings.top_p or 1.0) < 1 or (settings.min_p or 0.0) > 0
    if settings.temperature is not None and settings.temperature >= HOT and not guarded:
        found.append(Change("sampling.temperature", f"{settings.temperature:g}", "1"))
    penalty = settings.repetition_penalty
    if penalty is not None and (penalty >= STRONG_PENALTY or penalty < WEAK_PENALTY):
        found.append(Change("sampling.repetition_penalty", f"{penalty:g}", "1.1"))
    return tuple(found)


def rows_failed(evidence: Evidence) -> Finding | None:
    """More rows are without an answer than the job allows."""
    failed = sum(evidence.failed.values())
    settled = evidence.answers.rows + failed + evidence.rejected
    share = (failed + evidence.rejected) / settled if settled else 0.0
    if not settled or share <= evidence.settings.max_failed:
        return None
    ranked = sorted(evidence.failed.items(), key=lambda one: -one[1])[:3]
    return Finding(
        code="rows_failed",
        title="Many rows have no answer",
        weight=Weight.BROKEN,
        evidence=(
            ("without an answer", f"{percent(share)} of {settled:,} rows"),
            ("run.max_failed", percent(evidence.settings.max_failed)),
            *((code, f"{number:,} failed") for code, number in ranked),
            *((("rejected", f"{evidence.rejected:,}"),) if evidence.rejected else ()),
        ),
        cause="The engine had no answer for them, or they did not pass the checks before it.",
        remedy="Mend the commonest cause first; `batchwright retry RUN` runs failed rows again.",
    )


def is_text(evidence: Evidence) -> bool:
    """Whether the answers are texts."""
    return evidence.settings.task == "generate"
