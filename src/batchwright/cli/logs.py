"""The command `logs`: what all workers of a run tell, merged by time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from batchwright.cli import render
from batchwright.cli.arguments import RunDir
from batchwright.cli.ending import ending, stopping
from batchwright.cli.options import run_place

if TYPE_CHECKING:
    from batchwright.rundir.logs import LogLine
    from batchwright.rundir.storage import Storage

_LOOK_EVERY_S = 1.0


def logs(
    run_dir: RunDir,
    worker: Annotated[
        str, typer.Option("--worker", help="Only workers with this in their names.")
    ] = "",
    level: Annotated[
        str, typer.Option("--level", help="The least level: debug, info, warning or error.")
    ] = "debug",
    follow: Annotated[  # noqa: FBT002
        bool, typer.Option("--follow", "-f", help="Go on while the run does; Ctrl-C ends it.")
    ] = False,
    as_json: Annotated[  # noqa: FBT002
        bool, typer.Option("--json", help="One JSON object per line on stdout.")
    ] = False,
) -> None:
    """What the workers of a run did and met, by time: starts, restarts, deaths, slow things."""
    from batchwright.core.errors import JobError
    from batchwright.core.log_levels import LEVELS
    from batchwright.rundir import layout
    from batchwright.rundir.logs import RunLogs
    from batchwright.rundir.manifest import existing_run

    with ending(as_json=as_json):
        if level not in LEVELS:
            raise JobError(f"--level {level}: there are {', '.join(LEVELS)}")
        storage, _ = existing_run(run_place(run_dir))
        found = RunLogs(storage, worker, level)
        with stopping() as stop:
            while True:
                for line in found.new_lines():
                    _print(line, as_json=as_json)
                if not follow or storage.read_if_there(layout.SUCCESS) is not None:
                    break
                if stop.wait(storage.seldom(_LOOK_EVERY_S)):
                    break
        if not as_json:
            _name_engine_logs(storage)


def _print(line: LogLine, *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        render.print_line(orjson.dumps(asdict(line)).decode())
    else:
        render.print_line(line.as_text())


def _name_engine_logs(storage: Storage) -> None:
    """What the engines themselves print is in files of their own, on the machine they run on."""
    from batchwright.rundir import layout

    folder = storage.local_path(layout.LOGS)
    there = sorted(folder.glob("*.engine.log")) if folder is not None and folder.is_dir() else []
    for path in [one for one in there if one.stat().st_size][-5:]:
        render.say(f"engine's own log: {path}")
