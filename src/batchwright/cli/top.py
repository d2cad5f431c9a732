"""The command `top`: a run as it goes, from any machine that sees its directory."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli import render
from batchwright.cli.arguments import AsJson, RunDir
from batchwright.cli.ending import ending
from batchwright.cli.options import run_place

if TYPE_CHECKING:
    from batchwright.views.looking import Look, Onlooker

# A pipe or a file has no width of its own.
PLAIN_WIDTH, PLAIN_HEIGHT = 110, 60

Once = Annotated[bool, typer.Option("--once", help="Show the run as it is now, and end.")]
Every = Annotated[float, typer.Option("--every", min=0.2, help="Seconds from look to look.")]


def top(
    run_dir: RunDir,
    once: Once = False,  # noqa: FBT002
    every: Every = 1.0,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Watch a run: progress, and what each worker and its cards do; from any machine."""
    from batchwright import pipeline
    from batchwright.views.looking import Onlooker

    with ending(as_json=as_json):
        storage, manifest, job = pipeline.open_run(run_place(run_dir))
        onlooker = Onlooker(storage, manifest, job)
        if as_json:
            from batchwright.cli.dashboard import look_json

            render.show_json(look_json(onlooker.look()))
        elif once or not sys.stdout.isatty():
            _show(onlooker.look())
        else:
            _follow(onlooker, storage.seldom(every))


def _show(look: Look) -> None:
    from rich.console import Console

    from batchwright.cli.dashboard import dashboard

    on_terminal = sys.stdout.isatty()
    console = Console() if on_terminal else Console(width=PLAIN_WIDTH)
    height = PLAIN_HEIGHT
    console.print(dashboard(look, height, console.width), highlight=False)


def _follow(onlooker: Onlooker, every_s: float) -> None:
    """Look again and again until the run is done; Ctrl-C ends the looking, not the run."""
    from rich.console import Console
    from rich.live import Live

    from batchwright.cli.dashboard import dashboard

    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                look = onlooker.look()
                live.update(dashboard(look, console.height, console.width), refresh=True)
                if look.is_finished:
                    return
                time.sleep(every_s)
    except KeyboardInterrupt:
        return
