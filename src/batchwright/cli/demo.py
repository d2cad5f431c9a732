"""`batchwright demo`: a real model answers real rows, and the answers are held against labels."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchwright import pipeline
from batchwright.cli import render
from batchwright.cli.options import job_and_dir
from batchwright.deliver import Summary
from batchwright.demo.data import write_example

ROWS_SHOWN = 12


def run_demo(folder: Path, stop: threading.Event, *, as_json: bool) -> None:
    """Run the example job in a folder of its own and show what came of it."""
    job_file = write_example(folder)
    run_dir = folder / "run"
    if (run_dir / "manifest.json").is_file():  # an earlier demo: this one is to be seen working
        shutil.rmtree(run_dir)
    job, place = job_and_dir(str(job_file), {}, [], run_dir)
    with render.watching(as_json=as_json) as watch:
        summary = pipeline.run(job, place, watch, stop)
    rows = _read_results([Path(file) for file in summary.results])
    right = sum(is_right(row) for row in rows)
    if as_json:
        render.show_json({**summary.as_json(), "accuracy": right / len(rows)})
        return
    _show_table(rows)
    _show_figures(summary, right, len(rows), job_file)


def is_right(row: dict[str, Any]) -> bool:
    """Whether the answer is the label."""
    return bool((row["text"] or "").strip().lower() == row["label"])


def _read_results(files: Sequence[Path]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return [row for file in files for row in pq.read_table(file).to_pylist()]


def _show_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Reviews and the model's answers", title_justify="left", expand=True)
    table.add_column("id", no_wrap=True)
    table.add_column("review", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("label", no_wrap=True)
    table.add_column("answer", no_wrap=True)
    for row in rows[:ROWS_SHOWN]:
        answer = (row["text"] or row["error_code"] or "").strip()
        style = "green" if is_right(row) else "red"
        table.add_row(row["id"], row["input_text"], row["label"], f"[{style}]{answer}[/]")
    console = Console()
    console.print()
    console.print(table)
    if len(rows) > ROWS_SHOWN:
        console.print(f"... and {len(rows) - ROWS_SHOWN} more rows in the results")


def _show_figures(summary: Summary, right: int, rows: int, job_file: Path) -> None:
    counts = summary.counts
    tokens = counts.prompt_tokens + counts.completion_tokens
    say = render.print_line
    say("")
    say(f"accuracy   {right} of {rows} answers equal the label ({right / rows:.0%})")
    say(f"tokens     {counts.prompt_tokens:,} prompt + {counts.completion_tokens:,} output in "
        f"{summary.wall_s:.0f} s with start-up = {tokens / summary.wall_s:,.0f} tokens/s")  # fmt: skip
    say(f"results    {', '.join(str(path) for path in summary.results)}")
    say(f"proof      batchwright verify {summary.run_dir}")
    say(f"your turn  edit {job_file}, or with a model hub at hand:")
    say("           batchwright run YOUR.jsonl --model Qwen/Qwen2.5-0.5B-Instruct "
        "--prompt 'Summarise: {{ text }}'")  # fmt: skip
