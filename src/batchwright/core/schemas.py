"""The Arrow schemas on disk: prepared parts, output parts and results.

The results' columns are the output contract: declared before the first row, the same for every
engine and executor. `input` is the one column whose type depends on the data: the row's own
columns, as JSON text or as a struct with the types of the Parquet file.
"""

from __future__ import annotations

import orjson
import pyarrow as pa

from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.core.vectors import EmbeddingSettings

# 2: extras in prepared parts; choices to logprobs in results. 3: splits of several files.
FORMAT_VERSION = 3

# The oldest format that may be gone on with: what it lacks is not needed by what is added.
OLDEST_GONE_ON_WITH = 2

JSON_INPUT = pa.large_string()

TOKEN_IDS = pa.large_list(pa.int32())

WARNINGS = pa.list_(pa.string())

# Every row of a split has one entry, in order: the rejected ones have `error_code` and no tokens.
_PREPARED = [
    pa.field("id", pa.large_string()),
    pa.field("token_ids", TOKEN_IDS),
    pa.field("max_tokens", pa.int32()),
    pa.field("sampling", pa.dictionary(pa.int32(), pa.large_string())),
    pa.field("extras", pa.large_string()),
    pa.field("truncated", pa.bool_()),
    pa.field("warnings", WARNINGS),
    pa.field("error_code", pa.string()),
    pa.field("error", pa.large_string()),
    pa.field("line", pa.int64()),
]

TOOL_CALLS = pa.list_(
    pa.struct(
        [
            pa.field("id", pa.string()),
            pa.field("type", pa.string()),
            pa.field(
                "function",
                pa.struct([pa.field("name", pa.string()), pa.field("arguments", pa.string())]),
            ),
        ]
    )
)

_LOGPROB = [
    pa.field("token", pa.string()),
    pa.field("token_id", pa.int32()),
    pa.field("logprob", pa.float64()),
    pa.field("rank", pa.int32()),
]

# Per token of the answer the one that was chosen, and the likeliest ones at its place.
LOGPROBS = pa.list_(pa.struct([*_LOGPROB, pa.field("top", pa.list_(pa.struct(_LOGPROB)))]))

# All answers of a row with `n` above 1; the first is in the row's own columns too.
CHOICES = pa.list_(
    pa.struct(
        [
            pa.field("index", pa.int32()),
            pa.field("text", pa.string()),
            pa.field("finish_reason", pa.string()),
            pa.field("stop_reason", pa.string()),
            pa.field("completion_tokens", pa.int32()),
            pa.field("reasoning", pa.string()),
            pa.field("tool_calls", TOOL_CALLS),
            pa.field("parsed", pa.string()),
            pa.field("logprobs", LOGPROBS),
        ]
    )
)

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
    pa.field("reasoning", pa.large_string()),
    pa.field("tool_calls", TOOL_CALLS),
    pa.field("parsed", pa.large_string()),
    pa.field("choices", CHOICES),
    pa.field("logprobs", LOGPROBS),
]

CONTRACT_NAMES = tuple(field.name for field in CONTRACT)

EMBEDDING = "embedding"

# What a task that makes scores has in the place of a text.
SCORES = [
    pa.field("label", pa.string()),
    pa.field("score", pa.float64()),
    pa.field("scores", pa.list_(pa.float64())),
]

# In the schema of classifications: the labels as JSON, in the order of `scores`.
LABELS_KEY = "batchwright.labels"

# What says something of generated text only; other tasks have their own columns in its place.
_OF_TEXT = frozenset(
    {"text", "finish_reason", "stop_reason", "completion_tokens", "cached_tokens", "reasoning",
     "tool_calls", "parsed", "choices", "logprobs"}
)  # fmt: skip

INPUT_COLUMN = "input"


def _version(schema: pa.Schema, task: TaskSettings = GENERATE) -> pa.Schema:
    return schema.with_metadata(schema_metadata(task))


def schema_metadata(task: TaskSettings) -> dict[str, str]:
    """What the files of a task say of themselves."""
    said = {"batchwright.format": str(FORMAT_VERSION)}
    if task.labels:
        said[LABELS_KEY] = orjson.dumps(task.labels).decode()
    return said


def prepared_schema(input_type: pa.DataType) -> pa.Schema:
    """Schema of a prepared part, with the input's own columns in `input`."""
    return _version(pa.schema([*_PREPARED, pa.field(INPUT_COLUMN, input_type)]))


def vector_type(embedding: EmbeddingSettings) -> pa.DataType:
    """Type of a vector in the results."""
    kind = pa.float32() if embedding.dtype == "float32" else pa.float16()
    return pa.list_(kind, embedding.dimensions)


def contract(task: TaskSettings) -> list[pa.Field]:
    """The contract of a task: the same columns in all its results, before the first row is known."""
    if task.makes_text:
        return list(CONTRACT)
    fields = []
    for field in CONTRACT:
        if field.name == "text":
            fields += _in_place_of_text(task)
        elif field.name not in _OF_TEXT:
            fields.append(field)
    return fields


def _in_place_of_text(task: TaskSettings) -> list[pa.Field]:
    if task.vectors is not None:
        return [pa.field(EMBEDDING, vector_type(task.vectors))]
    return [field for field in SCORES if field.name != "label" or task.name == "classify"]


def part_schema(input_type: pa.DataType, task: TaskSettings = GENERATE) -> pa.Schema:
    """Schema of an output part: the contract, with the input's own columns in `input`.

    A part holds a vector as its bytes: Parquet writes and reads those 6 to 12 times faster than
    lists of numbers.
    """
    fields = contract(task)
    if task.vectors is not None:
        stored = pa.field(EMBEDDING, pa.binary(task.vectors.width_bytes))
        fields = [stored if field.name == EMBEDDING else field for field in fields]
    return _version(pa.schema([*fields, pa.field(INPUT_COLUMN, input_type)]), task)
