"""A plan in words: plain lines for a terminal, rows for a table."""

from __future__ import annotations

from typing import Any

from batchwright.core.plan import Memory, Plan
from batchwright.plan.memory import GB

_TERMS = (
    ("weights", "weights"),
    ("activations", "activations"),
    ("graphs", "CUDA graphs"),
    ("reserve", "driver and libraries"),
    ("kv_pool", "KV cache"),
)


def explain(plan: Plan) -> list[str]:
    """The whole plan as lines."""
    return [
        *headline(plan),
        "",
        "Settings",
        *_setting_lines(plan),
        "",
        f"Memory of each of {plan.gpus} x {plan.gpu.name} (GB = 1e9 bytes)",
        *(f"  {name:<22}{value:>10}" for name, value in memory_rows(plan.memory)),
        "",
        "Prediction",
        *(f"  {line}" for line in prediction_lines(plan)),
        "",
        "Limit of the hardware for this workload",
        *(f"  {line}" for line in limit_lines(plan)),
        *(["", "Notes", *(f"  {note}" for note in plan.notes)] if plan.notes else []),
    ]


def headline(plan: Plan) -> list[str]:
    """The model and the cards, a line each."""
    model = plan.model
    how = model.dtype if model.quantization == "none" else model.quantization
    return [
        f"{model.architecture}: {model.parameters / GB:.2f}B parameters in {how}, "
        f"{model.weight_bytes / GB:.1f} GB; {model.kv_bytes_per_token:,} bytes of KV cache per "
        "token",
        f"{plan.gpus} x {plan.gpu.name} ({plan.gpu.source})",
    ]


def setting_rows(plan: Plan) -> list[tuple[str, str, str, str, str]]:
    """Name, value, why, limit, and what was rejected, of each setting."""
    return [
        (
            name,
            shown(setting.value),
            setting.why,
            setting.limited_by,
            "; ".join(f"{shown(value)}: {reason}" for value, reason in setting.rejected),
        )
        for name, setting in plan.settings.items()
    ]


def _setting_lines(plan: Plan) -> list[str]:
    lines: list[str] = []
    for name, value, why, limit, rejected in setting_rows(plan):
        lines.append(f"  {name} = {value}")
        lines.append(f"    why: {why}")
        if limit:
            lines.append(f"    limit: {limit}")
        if rejected:
            lines.append(f"    rejected: {rejected}")
    return lines


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and len(value) > 6:
        return f"{', '.join(map(str, value[:4]))}, ... {value[-1]} ({len(value)} sizes)"
    return str(value)


def memory_parts(memory: Memory) -> list[tuple[str, int]]:
    """The terms of the sum by name, in bytes."""
    return [(label, int(getattr(memory, name))) for name, label in _TERMS]


def memory_rows(memory: Memory) -> list[tuple[str, str]]:
    """The sum: each term in GB, then what the KV cache holds."""
    rows = [(label, f"{size / GB:.2f} GB") for label, size in memory_parts(memory)]
    return [
        *rows,
        ("= allowed", f"{memory.allowed / GB:.2f} GB"),
        ("KV per token", f"{memory.kv_per_token:,} B"),
        ("KV capacity", f"{memory.capacity_tokens:,} tokens"),
        ("longest row", f"{memory.longest_row / GB:.3f} GB"),
    ]


def prediction_lines(plan: Plan) -> list[str]:
    """Rates, hours, dollars, and what they rest on."""
    found = plan.prediction
    cost = "price not given" if found.usd is None else f"${found.usd:,.2f}"
    return [
        f"{found.rows_per_s:,.1f} rows/s, {found.prompt_tokens_per_s:,.0f} prompt tokens/s, "
        f"{found.output_tokens_per_s:,.0f} output tokens/s",
        f"{found.hours:,.2f} hours, {found.gpu_hours:,.2f} GPU hours, {cost}",
        *(f"assumes: {line}" for line in found.assumes),
    ]


def limit_lines(plan: Plan) -> list[str]:
    """L0 and L1, how near the prediction is, and where the time goes."""
    limit = plan.limit
    share = 100 * limit.l1_s / max(1e-9, plan.prediction.hours * 3600)
    terms = sorted(limit.terms_s.items(), key=lambda item: -item[1])
    return [
        f"{limit.l1_s:,.1f} s with kernels one after the other (L1), {limit.l0_s:,.1f} s with "
        f"everything overlapped (L0); the prediction is at {share:.0f} % of L1",
        f"bound by {limit.bound_by}",
        ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in terms),
    ]
