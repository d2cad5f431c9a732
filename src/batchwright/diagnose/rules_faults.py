"""Rules about engines that could not start, or died."""

from __future__ import annotations

from batchwright.core.findings import Change, Finding, Weight
from batchwright.diagnose.evidence import EngineFault, Evidence
from batchwright.diagnose.faults import (
    EXPLAINED,
    GRAPHS,
    HOST_MEMORY,
    MODEL,
    OUT_OF_MEMORY,
    UNKNOWN,
    faults_of,
)
from batchwright.diagnose.rules_host import memory_figures

# Weights that fill the card to this share leave nothing to run with.
WEIGHTS_FILL = 0.85


def out_of_memory(evidence: Evidence) -> list[Finding]:
    """The card's memory was not enough, at the start or during the run."""
    found = []
    for at_start in (True, False):
        faults = [one for one in faults_of(evidence, OUT_OF_MEMORY) if one.at_start == at_start]
        if faults:
            found.append(_out_of_memory(evidence, faults, at_start=at_start))
    return found


def _out_of_memory(evidence: Evidence, faults: list[EngineFault], *, at_start: bool) -> Finding:
    plan = evidence.plan
    too_large = plan is not None and (
        plan.weight_bytes / plan.cards > WEIGHTS_FILL * plan.memory_bytes
    )
    if at_start and too_large:
        wide = evidence.settings.tensor_parallel
        changes: tuple[Change, ...] = (
            Change("engine.options.tensor_parallel_size", f"{wide}", f"{2 * wide}"),
        )
        remedy = "Spread the weights over more cards, or take quantised ones."
    else:
        changes = _smaller_steps(evidence)
        remedy = (
            "Let a step take fewer tokens, and leave more of the card free for what is not planned."
        )
    when = "starts" if at_start else "runs"
    return Finding(
        code="out_of_memory",
        title=f"The card runs out of memory while the engine {when}",
        weight=Weight.BROKEN,
        evidence=(
            *(memory_figures(plan) if plan else ()),
            *((("deaths", f"{len(faults)}"),) if len(faults) > 1 else ()),
            ("the engine says", faults[0].line),
        ),
        cause="The weights alone fill the card."
        if at_start and too_large
        else "Weights, cache and what a step needs besides are more than the card has; images, long "
        "prompts and log probabilities need more than the engine measured at its start.",
        remedy=remedy,
        changes=changes,
        worker=faults[0].worker or None,
    )


def _smaller_steps(evidence: Evidence) -> tuple[Change, ...]:
    settings = evidence.settings
    share = 0.92 if settings.gpu_memory_utilization is None else settings.gpu_memory_utilization
    changes = [Change("engine.options.gpu_memory_utilization", f"{share:g}", f"{share - 0.07:.2g}")]
    tokens = settings.max_num_batched_tokens
    if tokens is not None and tokens > 2048:
        changes.append(
            Change(
                "engine.options.max_num_batched_tokens", f"{tokens}", f"{max(2048, tokens // 2)}"
            )
        )
    return tuple(changes)


def host_memory(evidence: Evidence) -> Finding | None:
    """The machine's own memory was not enough, and the kernel killed the engine."""
    faults = faults_of(evidence, HOST_MEMORY)
    if not faults:
        return None
    return Finding(
        code="host_memory",
        title="The engine was killed, probably for want of memory of the host",
        weight=Weight.BROKEN,
        evidence=(("deaths", f"{len(faults)}"), ("last words", faults[-1].line)),
        cause="Something sent SIGKILL: as a rule the kernel, when a machine or container is out of "
        "memory.",
        remedy="Give the machine or the pod more memory, or run fewer engines and preparers on it; "
        "`dmesg` or the pod's status (OOMKilled) says whether it was that.",
        worker=faults[-1].worker or None,
    )


def graph_capture(evidence: Evidence) -> Finding | None:
    """The engine failed while it captured CUDA graphs."""
    fault = _first(evidence, GRAPHS)
    if fault is None:
        return None
    return Finding(
        code="graph_capture",
        title="The engine fails while it captures CUDA graphs",
        weight=Weight.BROKEN,
        evidence=(("the engine says", fault.line),),
        cause="Graphs take memory of their own, and some kernels cannot be captured.",
        remedy="Run without graphs; slower for small models, but it runs. With memory to spare, a "
        "lower gpu_memory_utilization keeps the graphs.",
        changes=(Change("engine.options.enforce_eager", "false", "true"),),
        worker=fault.worker or None,
    )


def unknown_model(evidence: Evidence) -> Finding | None:
    """The engine does not know the model's architecture."""
    fault = _first(evidence, MODEL)
    if fault is None:
        return None
    return Finding(
        code="unknown_model",
        title="The engine does not know this kind of model",
        weight=Weight.BROKEN,
        evidence=(("the engine says", fault.line),),
        cause="The model is newer than the installed engine, or its code is not part of it.",
        remedy="Install a newer vLLM (pip install -U 'batchwright[vllm]'); for a model that brings "
        "its own code, set model.trust_remote_code: true if you trust it.",
        worker=fault.worker or None,
    )


def engine_failed(evidence: Evidence) -> Finding | None:
    """An engine died or did not start, for a reason that no other rule explains."""
    others = [one for one in evidence.faults if one.code not in EXPLAINED]
    known = [one for one in others if one.code != UNKNOWN]
    # A death without a word is explained by another one that left some.
    explained = len(others) < len(evidence.faults)
    if not known and (explained or not others):
        return None
    fault = (known or others)[0]
    summary = fault.summary or f"it {'does not start' if fault.at_start else 'died'}"
    return Finding(
        code="engine_failed",
        title=f"The engine failed: {summary}",
        weight=Weight.BROKEN,
        evidence=(
            *((("kind", fault.code),) if fault.code != UNKNOWN else ()),
            *((("restarts", f"{evidence.restarts}"),) if evidence.restarts else ()),
            ("last words" if fault.code == UNKNOWN else "the engine says", fault.line),
        ),
        cause=f"{fault.summary[:1].upper()}{fault.summary[1:]}."
        if fault.summary
        else "The cause is none of those that are known.",
        remedy=fault.remedy
        or "Look into the engine's log, logs/NAME.engine.log in the run directory: the first error "
        "in it counts, not the last.",
        worker=fault.worker or None,
    )


def _first(evidence: Evidence, codes: frozenset[str]) -> EngineFault | None:
    return next(iter(faults_of(evidence, codes)), None)


def unfinished(evidence: Evidence) -> Finding | None:
    """Nobody works on the run, and it is not done; an engine's fault has a finding of its own."""
    stop = evidence.stop
    if stop is None or evidence.faults:
        return None
    done = ("chunks", f"{stop.chunks_done:,} of {stop.chunks:,} committed")
    go_on = "`batchwright run RUN` goes on where it stopped."
    if stop.message:
        return Finding(
            code="unfinished",
            title="The run stopped with an error",
            weight=Weight.BROKEN,
            evidence=(done, ("the error", stop.message.splitlines()[0])),
            cause="A worker could not go on.",
            remedy=f"{stop.hint} {go_on}".strip(),
        )
    if stop.lost:
        return Finding(
            code="unfinished",
            title="The run was killed",
            weight=Weight.BROKEN,
            evidence=(done, ("processes that left no word", f"{stop.lost}")),
            cause="SIGKILL, a host without memory left, or a machine that went down.",
            remedy=f"{go_on} If it happens again, look at the host's memory (`dmesg`).",
        )
    return Finding(
        code="unfinished",
        title="The run was stopped before its end",
        weight=Weight.HINT,
        evidence=(done,),
        cause="It was asked to stop, or ended itself: by run.stop_at_failed, or a budget.",
        remedy=go_on,
    )
