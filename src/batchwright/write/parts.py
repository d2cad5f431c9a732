"""Outcomes of a chunk to the one output part that holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchwright.core.errors import VerifyError
from batchwright.core.outcomes import Outcome
from batchwright.core.schemas import EMBEDDING, INPUT_COLUMN, part_schema
from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.write.answers import answer_columns
from batchwright.write.scores import score_columns
from batchwright.write.vectors import part_encoding, stored_vectors

Rows = npt.NDArray[np.int64]

# A reader holds one row group of compressed pages at a time.
_ROW_GROUP_ROWS = 65_536


def name_rows(rows: Rows, limit: int = 10) -> str:
    """Row numbers for a message: the first `limit`, then how many more."""
    shown = ", ".join(str(row) for row in rows[:limit].tolist())
    rest = len(rows) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def build_part(
    prepared: pa.Table,
    rows: Rows,
    outcomes: Sequence[Outcome],
    spelled: Mapping[int, str] | None = None,
    *,
    task: TaskSettings = GENERATE,
) -> pa.Table:
    """The part of a chunk, sorted by row.

    Args:
        prepared: the chunk's rows as prepared, in the order of `rows`.
        rows: row numbers, int64, in any order.
        outcomes: one per row, in any order.
        spelled: the text of each token that log probabilities name.
        task: which says what the rows have beside their status.

    Raises:
        VerifyError: outcomes and rows do not match one to one.
    """
    if prepared.num_rows != len(rows):
        msg = f"a chunk of {len(rows)} rows came with {prepared.num_rows} prepared rows"
        raise VerifyError(msg)
    outcome_rows = np.fromiter((outcome.row for outcome in outcomes), np.int64, len(outcomes))
    _check_one_to_one(rows, outcome_rows)
    order = np.argsort(rows)
    ranked = np.argsort(outcome_rows).tolist()
    outcomes = [outcomes[i] for i in ranked]
    results = _result_columns(outcomes)
    own = prepared.select(["id", "token_ids", "truncated", "warnings", INPUT_COLUMN]).take(order)
    warnings = own.column("warnings")
    prompt_tokens = pc.list_value_length(own.column("token_ids")).cast(pa.int32())
    if task.makes_text:
        results |= answer_columns(outcomes, spelled or {})
        prompt_tokens = _counted_by_engine(outcomes, prompt_tokens)
        warnings = _with_empty_answers(warnings, results)
    else:
        results |= _without_text(outcomes, task)
    columns = {
        **results,
        "row": pa.array(rows[order]),
        "id": own.column("id"),
        "prompt_tokens": prompt_tokens,
        "truncated": own.column("truncated"),
        "warnings": warnings,
        INPUT_COLUMN: own.column(INPUT_COLUMN),
    }
    schema = part_schema(own.schema.field(INPUT_COLUMN).type, task)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _check_one_to_one(rows: Rows, outcome_rows: Rows) -> None:
    wanted, got = np.sort(rows), np.sort(outcome_rows)
    if np.array_equal(wanted, got) and not (wanted[1:] == wanted[:-1]).any():
        return
    faults = {
        "in the chunk twice": np.unique(wanted[1:][wanted[1:] == wanted[:-1]]),
        "without an outcome": np.setdiff1d(wanted, got),
        "with an outcome nobody asked for": np.setdiff1d(got, wanted),
        "with two outcomes": np.unique(got[1:][got[1:] == got[:-1]]),
    }
    found = [f"rows {what}: {name_rows(which)}" for what, which in faults.items() if len(which)]
    raise VerifyError(f"outcomes do not match the chunk: {'; '.join(found)}")


def _result_columns(outcomes: list[Outcome]) -> dict[str, pa.Array]:
    return {
        "status": pa.array(["ok" if o.error_code is None else "failed" for o in outcomes]),
        "error_code": pa.array([o.error_code for o in outcomes], pa.string()),
        "error": pa.array([o.error for o in outcomes], pa.large_string()),
        "attempts": pa.array([o.attempts for o in outcomes], pa.int32()),
    }


def _without_text(outcomes: list[Outcome], task: TaskSettings) -> dict[str, pa.Array]:
    if task.vectors is not None:
        return {EMBEDDING: stored_vectors(outcomes, task.vectors)}
    return score_columns(outcomes, task)


def _counted_by_engine(outcomes: list[Outcome], prompt_tokens: Any) -> Any:
    """Prompt tokens as prepared, or as counted by an engine with a tokenizer of its own."""
    counted = [None if one.more is None else one.more.prompt_tokens for one in outcomes]
    if any(count is not None for count in counted):
        return pc.coalesce(pa.array(counted, pa.int32()), prompt_tokens)
    return prompt_tokens


def _with_empty_answers(warnings: pa.ChunkedArray, results: Mapping[str, pa.Array]) -> Any:
    # An ok answer without text (None) is as empty as one of length 0.
    blank = pc.fill_null(pc.equal(pc.binary_length(results["text"]), 0), True)  # noqa: FBT003
    silent = pc.and_(blank, pc.is_null(results["tool_calls"]))
    ok = pc.equal(results["status"], "ok")
    empty = np.flatnonzero(pc.and_(ok, silent).to_numpy(zero_copy_only=False))
    if not len(empty):
        return warnings
    noted = warnings.to_pylist()
    for i in empty.tolist():
        noted[i] = [*(noted[i] or []), "empty_answer"]
    return pa.array(noted, warnings.type)


def encode_part(table: pa.Table) -> bytes:
    """The part as a Parquet file: the same table gives the same bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.combine_chunks(),
        sink,
        row_group_size=_ROW_GROUP_ROWS,
        **part_encoding(table.schema),
    )
    return bytes(sink.getvalue().to_pybytes())


def summarise(table: pa.Table) -> dict[str, Any]:
    """What a Receipt says of its part, by the names of its fields.

    `truncated` counts the *answers* that were cut (finish_reason `length`), which is what people
    mean by it; the column `truncated` of the table is about the prompt. `first_row` and
    `last_row` are -1 for a part without rows.
    """
    total = table.num_rows
    failed = pc.sum(pc.equal(table.column("status"), "failed")).as_py() or 0
    with_text = "completion_tokens" in table.column_names
    cut = pc.sum(pc.equal(table.column("finish_reason"), "length")).as_py() if with_text else 0
    answered = pc.sum(table.column("completion_tokens")).as_py() if with_text else 0
    codes = Counter(code for code in table.column("error_code").to_pylist() if code is not None)
    rows = table.column("row")
    return {
        "rows": total,
        "ok": total - failed,
        "failed": failed,
        "truncated": cut or 0,
        "prompt_tokens": pc.sum(table.column("prompt_tokens")).as_py() or 0,
        "completion_tokens": answered or 0,
        "first_row": rows[0].as_py() if total else -1,
        "last_row": rows[-1].as_py() if total else -1,
        "failures": dict(sorted(codes.items())),
    }
