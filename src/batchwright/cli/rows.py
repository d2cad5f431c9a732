"""The command `rows`: the rows of a run by fate, why they failed, and a file of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from batchwright.cli import render
from batchwright.cli.arguments import RunDir
from batchwright.cli.ending import ending
from batchwright.cli.options import absolute, run_place

if TYPE_CHECKING:
    import pyarrow as pa

    from batchwright.core.failures import FailureGroup
    from batchwright.results.fates import Fates, Place, Wanted
    from batchwright.rundir.storage import Storage

SHOWN_ROWS = 20
_SHOWN_GROUPS = 20
_SHOWN_CHARS = 100

Status = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        help="ok, failed, rejected, truncated (answers cut at max_tokens) or invalid (not to their "
        "schema); may be repeated. Failed and rejected unless given.",
    ),
]
Code = Annotated[
    list[str] | None, typer.Option("--code", help="Only rows with this error code; repeatable.")
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", help="Columns of the input to keep, with commas; all unless given."),
]
Out = Annotated[
    str | None,
    typer.Option("--output", "-o", help="Write all of them to a .jsonl, .parquet or .csv file."),
]


def rows(
    run_dir: RunDir,
    status: Status = None,
    code: Code = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"Rows at most; {SHOWN_ROWS} on the terminal.")
    ] = None,
    columns: Columns = None,
    output: Out = None,
    as_json: Annotated[  # noqa: FBT002
        bool, typer.Option("--json", help="One JSON object per row on stdout.")
    ] = False,
) -> None:
    """Show the rows of a run that failed, or have another fate, and why; or write them to a file."""
    from batchwright.results import fates
    from batchwright.rundir.manifest import existing_run

    with ending(as_json=as_json):
        wanted = _wanted(status or [], code or [])
        storage, manifest = existing_run(run_place(run_dir))
        found = fates.Fates(storage, manifest)
        kept = _columns(columns)
        if output is not None:
            _write(found, wanted, absolute(output), kept, limit, as_json=as_json)
        elif as_json:
            _print_json(found, wanted, kept, limit)
        else:
            shown = SHOWN_ROWS if limit is None else limit
            _show(run_dir, storage, found, wanted, shown)


def _wanted(statuses: Sequence[str], codes: Sequence[str]) -> Wanted:
    from batchwright.core.errors import ROW_CODES, JobError
    from batchwright.results.fates import STATUSES, WITHOUT_ANSWER, Wanted

    for name in statuses:
        if name not in STATUSES:
            raise JobError(f"--status {name}: there are {', '.join(STATUSES)}")
    for name in codes:
        if name not in ROW_CODES:
            raise JobError(f"--code {name}: there are {', '.join(ROW_CODES)}")
    return Wanted(frozenset(statuses) or WITHOUT_ANSWER.statuses, frozenset(codes))


def _columns(text: str | None) -> Any:
    if text in (None, "all", "none"):
        return text or "all"
    assert text is not None
    return [name.strip() for name in text.split(",") if name.strip()]


def _write(
    found: Fates, wanted: Wanted, output: str, columns: Any, limit: int | None, *, as_json: bool
) -> None:
    from batchwright.rundir.locations import location_of
    from batchwright.write.one_file import format_of, write_one_file

    place = location_of(output)
    typed = format_of(place) != "jsonl"
    shape = found.committed(wanted).shape(columns, typed=typed)
    with tempfile.TemporaryDirectory(prefix="batchwright-") as scratch:
        tables = _first(found.tables(wanted, Path(scratch)), limit)
        count = write_one_file(place, shape, tables)
    if as_json:
        render.show_json({"rows": count, "file": str(place)})
        return
    render.print_line(f"{count:,} rows in {place}")


def _print_json(found: Fates, wanted: Wanted, columns: Any, limit: int | None) -> None:
    shape = found.committed(wanted).shape(columns, typed=False)
    with tempfile.TemporaryDirectory(prefix="batchwright-") as scratch:
        for table in _first(found.tables(wanted, Path(scratch)), limit):
            places = found.places(table.column("row").to_pylist())
            lines = shape.to_lines(table).splitlines()
            for row, line in zip(table.column("row").to_pylist(), lines, strict=True):
                place = places[row]
                source = orjson.dumps({"source_file": place.path, "source_line": place.line})
                render.print_line((source[:-1] + b"," + line[1:]).decode())


def _first(tables: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """The tables until they have so many rows."""
    left = limit
    for table in tables:
        if left is None:
            yield table
            continue
        if left <= 0:
            return
        yield table.slice(0, left)
        left -= table.num_rows


def _show(run_dir: str, storage: Storage, found: Fates, wanted: Wanted, limit: int) -> None:
    from batchwright.results.fates import failure_groups

    counts = found.state.counts()
    about = f"{counts.rows:,}" if counts.complete else f"{counts.settled:,} of {counts.rows:,}"
    render.print_line(
        f"{run_dir}: {about} rows: {counts.ok:,} ok, {counts.failed:,} failed, "
        f"{counts.rejected:,} rejected; {counts.truncated:,} answers cut"
    )
    for line in group_lines(failure_groups(storage, found.state, wanted=wanted)):
        render.print_line(line)
    rows = _some_rows(found, wanted, limit)
    if not rows:
        render.print_line("no such rows" if limit else "")
        return
    places = found.places([row["row"] for row in rows])
    render.print_line("")
    for row in rows:
        for line in row_lines(row, places[row["row"]]):
            render.print_line(line)
    given = "".join(f" --status {name}" for name in sorted(wanted.statuses))
    given += "".join(f" --code {name}" for name in sorted(wanted.codes))
    render.print_line("")
    render.print_line(f"all of them: batchwright rows {run_dir}{given} -o rows.jsonl")


def _some_rows(found: Fates, wanted: Wanted, limit: int) -> list[dict[str, Any]]:
    """The first rows that are met, by number; nothing is sorted for them."""
    names = ("row", "id", "status", "error_code", "error", "finish_reason", "text", "input")
    tables = _first(found.tables(wanted, None, names), limit)
    rows = [row for table in tables for row in _as_records(table)]
    return sorted(rows, key=lambda row: row["row"])


def _as_records(table: pa.Table) -> list[dict[str, Any]]:
    """The rows; what they hold of the input as in JSON, since Python cannot hold every time."""
    from batchwright.write.parquet_input import to_json_values

    shown = table.drop_columns(["input"]).to_pylist()
    inputs = to_json_values(table.column("input").combine_chunks())
    return [{**row, "input": one} for row, one in zip(shown, inputs, strict=True)]


def group_lines(groups: Sequence[FailureGroup]) -> list[str]:
    """Why rows have no answer, the most first, with what to do about each code once."""
    lines: list[str] = []
    told: set[str] = set()
    for group in groups[:_SHOWN_GROUPS]:
        about = "" if group.exact else "about "
        first = ", ".join(map(str, group.rows))
        what = "row" if group.count == 1 else "rows"
        more = "first " if group.count > len(group.rows) else ""
        lines += [
            "",
            f"{group.status} {group.code}: {about}{group.count:,} {what} ({more}{first})",
            f"  why      {_short(group.example, 2 * _SHOWN_CHARS)}",
        ]
        if group.remedy and group.code not in told:
            told.add(group.code)
            lines.append(f"  do       {group.remedy}")
    if len(groups) > _SHOWN_GROUPS:
        lines += ["", f"and {len(groups) - _SHOWN_GROUPS} more reasons: --code narrows them down"]
    return lines


def row_lines(row: dict[str, Any], place: Place) -> list[str]:
    """One row for people."""
    fate = " ".join(filter(None, (row["status"], row["error_code"], row.get("finish_reason"))))
    named = "" if row["id"] in (None, str(row["row"])) else f" ({_short(row['id'], 40)})"
    lines = [f"row {row['row']}{named}  {place.path}:{place.line}  {fate}"]
    shown = {"error": row["error"], "input": row["input"], "text": row.get("text")}
    for name, value in shown.items():
        if value is not None:
            text = value if isinstance(value, str) else _as_text(value)
            lines.append(f"  {name:7}{_short(text, _SHOWN_CHARS)}")
    return lines


def _as_text(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _short(text: str, most: int) -> str:
    """A text on one line, cut where it is too long; what would change the terminal is left out."""
    line = " ".join(text.split())
    line = "".join(one for one in line if one.isprintable())
    return line if len(line) <= most else f"{line[: most - 1]}…"
