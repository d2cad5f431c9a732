"""Check every row without an engine: what a run would reject, and what is odd but runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchwright.config.job import Job
from batchwright.core.errors import Stopped
from batchwright.core.records import RowBatch, Split
from batchwright.drafts.drafting import RowPreparer
from batchwright.equip.equipment import job_tokenizer
from batchwright.plan.seen import SeenIds
from batchwright.read.rows import read_split
from batchwright.rundir.manifest import Manifest

Finding = tuple[int, str]


@dataclass(slots=True)
class Validation:
    """What `validate` found. Findings are code to (number of rows, the first one in words)."""

    rows: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    longest_prompt: int = 0
    rejections: dict[str, Finding] = field(default_factory=dict)
    warnings: dict[str, Finding] = field(default_factory=dict)

    @property
    def valid(self) -> int:
        """Rows that would run."""
        return self.rows - self.rejected

    @property
    def share_rejected(self) -> float:
        """Rejected rows among all."""
        return self.rejected / self.rows if self.rows else 0.0

    def as_json(self) -> dict[str, Any]:
        """One flat object."""

        def plain(findings: dict[str, Finding]) -> dict[str, Any]:
            return {
                code: {"rows": number, "first": first} for code, (number, first) in findings.items()
            }

        return {
            "rows_in": self.rows,
            "valid": self.valid,
            "rejected": self.rejected,
            "prompt_tokens": self.prompt_tokens,
            "longest_prompt": self.longest_prompt,
            "rejections": plain(self.rejections),
            "warnings": plain(self.warnings),
        }


def check_rows(
    manifest: Manifest, job: Job, stop: threading.Event, say: Callable[[Validation], None]
) -> Validation:
    """Read, check, render and tokenise every row, and count what is found."""
    checker = _Checker(manifest, job)
    for split in manifest.splits:
        batches = read_split(split, manifest.format, manifest.arrow_input_type())
        for batch in batches:
            checker.add(split, batch)
            say(checker.report)
            if checker.full:
                return checker.report
            if stop.is_set():
                raise Stopped("stopped before all rows were checked")
        checker.end_split()
    return checker.report


class _Checker:
    def __init__(self, manifest: Manifest, job: Job) -> None:
        self.report = Validation()
        self._rows = RowPreparer(job, job_tokenizer(job), manifest)
        self._unique = bool(manifest.id_column) and job.input.duplicate_ids == "reject"
        self._seen = SeenIds()
        self._limit = job.input.limit
        self._lines = 0
        self._lines_in_split = 0
        self._file = ""

    @property
    def full(self) -> bool:
        """Whether `input.limit` is reached."""
        return self._limit is not None and self.report.rows >= self._limit

    def add(self, split: Split, batch: RowBatch) -> None:
        if split.path != self._file:
            self._file, self._lines = split.path, 0
        self._lines_in_split = 0 if split.format == "parquet" else batch.num_lines
        drafts = self._rows.prepare(batch)
        if self._limit is not None:
            drafts = drafts[: self._limit - self.report.rows]
        repeats = self._repeats(drafts)
        for index, draft in enumerate(drafts):
            where = f"{batch.paths[index]}:{batch.lines[index] + self._lines}"
            problem = draft.problem or repeats.get(index)
            if problem is not None:
                self.report.rejected += 1
                _count(self.report.rejections, problem[0], f"{where}: {problem[1]}")
                continue
            num_tokens = len(draft.token_ids) + draft.media_tokens
            self.report.prompt_tokens += num_tokens
            self.report.longest_prompt = max(self.report.longest_prompt, num_tokens)
            for code in draft.warnings or ():
                _count(self.report.warnings, code, where)
        self.report.rows += len(drafts)

    def end_split(self) -> None:
        self._lines += self._lines_in_split
        # A split in which no line begins has no batch that would set it.
        self._lines_in_split = 0

    def _repeats(self, drafts: list[Any]) -> dict[int, tuple[str, str]]:
        if not self._unique:
            return {}
        usable = [index for index, draft in enumerate(drafts) if draft.problem is None]
        rows = np.asarray(usable, dtype=np.int64) + self.report.rows
        found = self._seen.add([drafts[index].id for index in usable], rows)
        return {
            usable[index]: ("duplicate_id", f"the id was first used by row {of_row}")
            for index, of_row in found
        }


def _count(findings: dict[str, Finding], code: str, example: str) -> None:
    number, first = findings.get(code, (0, example))
    findings[code] = (number + 1, first)
