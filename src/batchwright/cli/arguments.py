"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunDir = Annotated[
    str, typer.Argument(metavar="RUN", help="The run directory: a folder, or s3://bucket/folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, logs on stderr.")]
Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Job file, data (file, folder, glob) or run folder.")
]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Model folder or hub id.")]
PromptText = Annotated[
    str | None, typer.Option("--prompt", "-p", help="Jinja2 template over the row's columns.")
]
System = Annotated[str | None, typer.Option("--system", help="Instruction ahead of every prompt.")]
Column = Annotated[str | None, typer.Option("--column", help="Column that holds the prompt.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Output tokens at most.")]
OutDir = Annotated[
    str | None, typer.Option("--output", "-o", help="Folder or s3://… for the results.")
]
OutFormat = Annotated[
    str | None,
    typer.Option("--format", help="parquet, jsonl, csv, delta, lance, openai-batch or vllm-batch."),
]
Page = Annotated[
    Path | None, typer.Option("--page", metavar="FILE", help="Write an HTML page to look at, too.")
]
EngineKind = Annotated[
    str | None,
    typer.Option(
        "--engine", help="auto, vllm, torch, openai for an endpoint, or fake for a dry run."
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", help="Only the first so many rows.")]
Dir = Annotated[str | None, typer.Option("--dir", help="Run directory; runs/NAME unless given.")]
Sample = Annotated[
    float | None, typer.Option("--sample", help="Look at this share of the rows only: 0.05.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Show metrics for Prometheus on this port: 9400."),
]
WithParent = Annotated[bool, typer.Option("--with-parent", help="Stop when standard input ends.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Any key of the job file: run.replicas=2.")
]
