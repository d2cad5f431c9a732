"""The command `export`: results again, elsewhere, or in another form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli import render
from batchwright.cli.arguments import AsJson, OutDir, OutFormat, RunDir
from batchwright.cli.ending import ending
from batchwright.cli.options import absolute, run_place

if TYPE_CHECKING:
    from batchwright.rundir.locations import Location

_OUTPUT = "output."


def export(
    run_dir: RunDir,
    output: OutDir = None,
    output_format: OutFormat = None,
    compression: Annotated[
        str | None, typer.Option("--compression", help="zstd, gzip, snappy, lz4 or none.")
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", help="input, or any: not sorted, so faster.")
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option("--partition-by", help="Column whose values name folders; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any key of the section output: output.target_file_mb=512."),
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Write the results of a finished run again, elsewhere or in another format."""
    from batchwright.config.load import parse_settings

    with ending(as_json=as_json):
        options: dict[str, Any] = {
            "output.path": output,
            "output.format": output_format,
            "output.compression": compression or ("auto" if output_format else None),
            "output.order": order,
            "output.partition_by": partition_by or ([] if output_format else None),
        }
        options = {key: value for key, value in options.items() if value is not None}
        options |= parse_settings(settings or [])
        render.show_files(export_to(run_place(run_dir), options), as_json=as_json)


def export_to(run_dir: Location, options: Mapping[str, Any]) -> list[Location]:
    """The results again, with these keys of the job's section `output`. Returns the files."""
    from batchwright import pipeline
    from batchwright.core.errors import JobError

    for key in options:
        if not key.startswith(_OUTPUT):
            raise JobError(
                f"{key} cannot be set: the rows are computed already",
                "Only output.… can be set here.",
            )
    path = options.get("output.path")
    placed = {**options, "output.path": absolute(str(path))} if path is not None else options
    return pipeline.export(run_dir, placed, render.count_lines("written"))
