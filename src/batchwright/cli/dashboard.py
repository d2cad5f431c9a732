"""What `top` shows: a run at this moment, for a terminal, a log or a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchwright.cli.render import duration

if TYPE_CHECKING:
    from batchwright.core.readings import CardReading
    from batchwright.views.looking import Look, WorkerLook

# Lines that are taken by what stands above and below the workers.
_FRAME_LINES = 10
_FAILURES = 4

_COLUMNS = ("", "phase", "rows/s", "tokens/s", "run/wait/cap", "KV", "preempt", "starved", "seen")


def dashboard(look: Look, height: int, width: int) -> Group:
    """The run in so many lines and columns; of many workers the first ones.

    Args:
        look: at the run.
        height: lines that there are.
        width: columns that there are.
    """
    room = max(1, height - _FRAME_LINES - min(len(look.failures), _FAILURES))
    shown = look.workers[:room]
    parts: list[RenderableType] = _head(look, width)
    if shown:
        parts += [Text(), _workers(shown, width)]
    if len(look.workers) > len(shown):
        parts.append(Text(f"and {len(look.workers) - len(shown):,} more workers", style="dim"))
    with_cards = [one for one in look.workers if _cards(one)]
    if with_cards and len(look.workers) + len(with_cards) + 1 <= room:
        lines = (f"{_name(one)}  {cards_line(_cards(one))}" for one in with_cards)
        parts += [Text(), *(_cut(line) for line in lines)]
    parts += _failures(look)
    return Group(*parts)


def _cut(line: str) -> Text:
    """A line that ends where the terminal does."""
    return Text(line, no_wrap=True, overflow="ellipsis")


def _name(one: WorkerLook) -> str:
    return f"worker {one.number}" if one.number else "prepare"


def _head(look: Look, width: int) -> list[RenderableType]:
    place = str(look.run_dir)
    room = max(10, width - len(look.phase) - 4)
    shown = place if len(place) <= room else f"…{place[-room + 1 :]}"
    title = Text.assemble((shown, "bold"), "  ", (look.phase, _phase_style(look)))
    about = "" if look.counts.ordered else "about "
    share = look.rows_done / look.rows_expected if look.rows_expected else 0.0
    words = [f"{look.rows_done:,} of {about}{look.rows_expected:,} rows"]
    if look.eta_s is not None and not look.is_finished:
        words.append(f"{duration(look.eta_s)} left")
    bar = Table.grid(padding=(0, 1))
    bar.add_row(f"{share:.0%}", ProgressBar(100, 100 * share, width=20), " · ".join(words))
    counts = look.counts
    fates = [f"{counts.ok:,} ok", f"{counts.failed:,} failed", f"{counts.rejected:,} rejected"]
    fates.append(f"{counts.chunks_done:,} of {counts.chunks:,} chunks")
    lines = [" · ".join(fates)]
    if not look.is_finished:
        lines.insert(0, f"{look.rows_per_s:,.1f} rows/s · {look.tokens_per_s:,.0f} tokens/s")
    return [title, bar, *map(_cut, lines)]


def _phase_style(look: Look) -> str:
    if look.is_finished:
        return "green"
    return "cyan" if look.is_running else "red"


def _workers(workers: Sequence[WorkerLook], width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name in _COLUMNS:
        left = name in ("", "phase")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for one in workers:
        style = "red" if one.is_silent else ""
        table.add_row(*_cells(one, width), style=style)
    return table


def _cells(one: WorkerLook, width: int) -> tuple[str, ...]:
    name = _name(one)
    phase = one.phase if width >= 100 or len(one.phase) <= 12 else f"{one.phase[:11]}…"
    seen = f"{one.age_s:.0f} s" if one.age_s < 120 else duration(one.age_s)
    reading = one.reading
    if reading is None or reading.engine is None:
        rates = ("", "") if not one.rows_per_s else (f"{one.rows_per_s:,.1f}", "")
        return (name, phase, *rates, "", "", "", "", seen)
    engine, feed = reading.engine, reading.feed
    cap = f"/{feed.cap:,}" if feed is not None and feed.cap else ""
    return (
        name,
        phase,
        f"{one.rows_per_s:,.1f}",
        f"{one.tokens_per_s:,.0f}",
        f"{engine.running:,}/{engine.waiting:,}{cap}",
        f"{engine.kv_use:.0%}",
        f"{engine.preemptions:,}",
        "" if one.starved_share is None else f"{one.starved_share:.0%}",
        seen,
    )


def _cards(one: WorkerLook) -> tuple[CardReading, ...]:
    return () if one.reading is None else one.reading.cards


def cards_line(cards: Sequence[CardReading]) -> str:
    """The cards of a worker in one line: use and the most memory of each, power of all."""
    parts = [f"{len(cards)} GPUs" if len(cards) > 1 else "GPU"]
    uses = _known(card.use for card in cards)
    if uses:
        parts.append(f"{fmean(uses):.0%} busy")
    memories = _known(card.memory_bytes for card in cards)
    if memories:
        totals = _known(card.memory_total_bytes for card in cards)
        of = f"/{max(totals) / 1e9:.0f}" if totals else ""
        parts.append(f"{max(memories) / 1e9:.0f}{of} GB")
    powers = _known(card.power_w for card in cards)
    if powers:
        parts.append(f"{sum(powers):,.0f} W")
    held = sorted({reason for card in cards for reason in card.throttled})
    if held:
        parts.append(f"held down by {', '.join(held)}")
    return " · ".join(parts)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _failures(look: Look) -> list[RenderableType]:
    if not look.failures:
        return []
    lines = [
        _cut(f"row {one.row:,}  {one.code}  {one.message}") for one in look.failures[:_FAILURES]
    ]
    return [Text(), Text("newest failures", style="dim"), *lines]


def look_json(look: Look) -> dict[str, Any]:
    """The same for scripts."""
    return {
        "run_dir": str(look.run_dir),
        "phase": look.phase,
        **look.counts.as_json(),
        "rows_expected": look.rows_expected,
        "rows_done": look.rows_done,
        "rows_per_s": look.rows_per_s,
        "tokens_per_s": look.tokens_per_s,
        "eta_s": look.eta_s,
        "complete": look.counts.complete,
        "workers": [_worker_json(one) for one in look.workers],
        "newest_failures": [
            {"row": one.row, "code": one.code, "message": one.message} for one in look.failures
        ],
    }


def _worker_json(one: WorkerLook) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(one)
