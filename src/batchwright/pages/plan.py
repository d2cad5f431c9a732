"""A plan as a page: the memory of a card as a bar, each setting with its reason, the limit."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.core.plan import Plan
from batchwright.core.profile import LengthProfile
from batchwright.pages.blocks import (
    Block,
    Drawing,
    Section,
    Table,
    Tiles,
    Words,
    make_page,
    source_name,
)
from batchwright.pages.drawings import draw_shares, draw_stack
from batchwright.pages.profile import profile_sections
from batchwright.plan.explain import (
    headline,
    limit_lines,
    memory_parts,
    memory_rows,
    prediction_lines,
    setting_rows,
)
from batchwright.plan.memory import GB


def plan_page(plan: Plan, profile: LengthProfile, source: str | Sequence[str]) -> str:
    """The page of a plan.

    Args:
        plan: what was chosen.
        profile: of the rows that it is for.
        source: path or paths of the data.
    """
    sections = [
        Section("Promise", _promise(plan)),
        Section("Settings", (plan_settings(plan),)),
        Section(f"Memory of each of {plan.gpus} × {plan.gpu.name}", _memory(plan)),
        Section("Limit of the hardware for this workload", _limit(plan)),
        Section("Notes", (Words(plan.notes, listed=True),) if plan.notes else ()),
        *profile_sections(profile),
    ]
    return make_page(f"Plan for {source_name(source)}", headline(plan), sections)


def _promise(plan: Plan) -> tuple[Block, ...]:
    found = plan.prediction
    cost = "price not given" if found.usd is None else f"${found.usd:,.2f}"
    tiles = (
        ("rows", f"{found.rows_per_s:,.1f}/s", ""),
        ("time", f"{found.hours:,.2f} h", ""),
        ("GPU time", f"{found.gpu_hours:,.2f} h", f"{plan.gpus} × {plan.gpu.name}"),
        ("cost", cost, ""),
        ("replicas", f"{plan.replicas:,}", ""),
        ("rows at a time", f"{plan.max_concurrent_rows:,}", "fit the KV cache of a replica"),
    )
    rates, _, *assumed = prediction_lines(plan)
    return Tiles(tiles), Words((rates, *assumed), listed=True)


def plan_settings(plan: Plan) -> Table:
    """Each setting with its reason, what limits it and what was rejected."""
    return Table(("setting", "value", "why", "limited by", "rejected"), tuple(setting_rows(plan)))


def _memory(plan: Plan) -> tuple[Block, ...]:
    parts = [(name, size, f"{size / GB:,.2f} GB") for name, size in memory_parts(plan.memory)]
    free = plan.gpu.memory_bytes - sum(size for _, size, _ in parts)
    drawing = draw_stack(parts, ("not used by the engine", free, f"{free / GB:,.2f} GB"))
    table = Table(("", "size"), tuple(memory_rows(plan.memory)[len(parts) :]), frozenset({1}))
    return Drawing(drawing), table


def _limit(plan: Plan) -> tuple[Block, ...]:
    terms = sorted(plan.limit.terms_s.items(), key=lambda item: -item[1])
    longest = max((seconds for _, seconds in terms), default=0.0)
    bars = [(name, seconds / longest, f"{seconds:,.1f} s") for name, seconds in terms if longest]
    words = Words(tuple(limit_lines(plan)[:2]))
    return (words, Drawing(draw_shares(bars, "Where the time goes"))) if bars else (words,)
