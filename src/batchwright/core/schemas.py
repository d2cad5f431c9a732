"""The Arrow schemas on disk: prepared parts, output parts and results.

The results' columns are the output contract: declared before the first row, the same for every
engine and executor. `input` is the one column whose type depends on the data: the row's own
columns, as JSON text or as a struct with the types of the Parquet file.
"""

from __future__ import annotations

import pyarrow as pa

FORMAT_VERSION = 1

JSON_INPUT = pa.large_string()

TOKEN_IDS = pa.large_list(pa.int32())

WARNINGS = pa.list_(pa.string())

# Every row of a split has one entry, in order: the rejected ones have `error_code` and no tokens.
_PREPARED = [
    pa.field("id", pa.large_string()),
    pa.field("token_ids", TOKEN_IDS),
    pa.field("max_tokens", pa.int32()),
    pa.field("sampling", pa.dictionary(pa.int32(), pa.large_string())),
    pa.field("truncated", pa.bool_()),
    pa.field("warnings", WARNINGS),
    pa.field("error_code", pa.string()),
    pa.field("error", pa.large_string()),
    pa.field("line", pa.int64()),
]

# The output contract, in order; the input's own columns follow.
CONTRACT = [
    pa.field("row", pa.int64(), nullable=False),
    pa.field("id", pa.large_string()),
    pa.field("status", pa.string(), nullable=False),
    pa.field("text", pa.large_string()),
    pa.field("finish_reason", pa.string()),
    pa.field("stop_reason", pa.string()),
    pa.field("prompt_tokens", pa.int32()),
    pa.field("completion_tokens", pa.int32()),
    pa.field("cached_tokens", pa.int32()),
    pa.field("truncated", pa.bool_()),
    pa.field("warnings", WARNINGS),
    pa.field("error_code", pa.string()),
    pa.field("error", pa.large_string()),
    pa.field("attempts", pa.int32()),
]

CONTRACT_NAMES = tuple(field.name for field in CONTRACT)

INPUT_COLUMN = "input"


def _version(schema: pa.Schema) -> pa.Schema:
    return schema.with_metadata({"batchwright.format": str(FORMAT_VERSION)})


def prepared_schema(input_type: pa.DataType) -> pa.Schema:
    """Schema of a prepared part, with the input's own columns in `input`."""
    return _version(pa.schema([*_PREPARED, pa.field(INPUT_COLUMN, input_type)]))


def part_schema(input_type: pa.DataType) -> pa.Schema:
    """Schema of an output part: the contract, with the input's own columns in `input`."""
    return _version(pa.schema([*CONTRACT, pa.field(INPUT_COLUMN, input_type)]))


def output_name(column: str) -> str:
    """Name of an input column in the results: a clash with the contract gets a prefix."""
    return f"input_{column}" if column in CONTRACT_NAMES else column
