"""Who is told how far a run is: the terminal, and whoever asks for metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from batchwright.cli import render
from batchwright.core.errors import JobError

if TYPE_CHECKING:
    from batchwright.running.drive import Progress


@contextmanager
def watching(
    metrics_port: int | None,
    *,
    as_json: bool,
    workers: Collection[str] | None = None,
    must: bool = True,
) -> Iterator[Callable[[Progress], None]]:
    """Show how far a run is, and serve its metrics where a port is given.

    Args:
        metrics_port: of the metrics; None for none.
        as_json: whether stdout is for JSON.
        workers: names of those that the metrics tell of; None for all.
        must: whether a port that cannot be had is an error. Several workers of one job file may
            share a machine, and then only the first can have it.
    """
    from batchwright.metrics.server import serving

    with ExitStack() as stack, render.watching(as_json=as_json) as shown:
        try:
            told = stack.enter_context(serving(metrics_port, shown, workers))
        except JobError as error:
            if must:
                raise
            render.say(f"{error.message}; this worker goes on without")
            told = shown
        yield told
