"""What a sweep measured, as proposals for a plan and as reasons in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchwright.core.errors import JobError
from batchwright.core.plan import Plan
from batchwright.core.sweep import RememberedSweep

SETS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "engines_per_gpu")


def with_sweep(
    plan: Plan,
    sweep: RememberedSweep | None,
    problems: Sequence[str],
    user: Mapping[str, Any],
    remake: Callable[[dict[str, Any]], Plan],
) -> Plan:
    """The plan with what an earlier sweep of the same work measured.

    Args:
        plan: made without it.
        sweep: None if there is none.
        problems: for the notes.
        user: the user's own settings, `engines_per_gpu` among them if it is set: they win.
        remake: makes the plan again with some settings given, `engines_per_gpu` perhaps among
            them; raises JobError if they cannot work.
    """
    notes = [*problems]
    if sweep is not None:
        measured = proposals(sweep, plan, user)
        try:
            plan = explained(remake(measured), sweep, measured) if measured else plan
        except JobError as error:
            notes.append(f"A sweep's settings are not taken: {error.message}.")
    return replace(plan, notes=(*plan.notes, *notes))


def proposals(sweep: RememberedSweep, plan: Plan, user: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the sweep that a plan for the same work should take; none if it does not fit.

    Graphs and the memory of engines that share a card are left to the plan, which follows them.

    Args:
        sweep: measured for the same model, card and shape of work.
        plan: made without it.
        user: the user's own settings: they win.
    """
    settings = sweep.settings
    engines = settings.get("engines_per_gpu", 1)
    planned = plan.settings.get("engines_per_gpu")
    cards = plan.value("tensor_parallel_size") * plan.value("pipeline_parallel_size")
    # What was measured with a card to share does not hold for one that is not, and the reverse.
    if cards != sweep.gpus or user.get("engines_per_gpu", engines) != engines:
        return {}
    if (planned is None and engines > 1) or (planned and planned.value > 1 and engines == 1):
        return {}
    return {name: settings[name] for name in SETS if name in settings and name not in user}


def explained(plan: Plan, sweep: RememberedSweep, names: Mapping[str, Any]) -> Plan:
    """The plan with the measurement as the reason for these settings."""
    settings = dict(plan.settings)
    for name in names:
        settings[name] = replace(settings[name], why=sweep.why(name))
    return replace(plan, settings=settings)
