"""Vectors on disk: bytes in parts, lists of numbers in results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchwright.core.errors import VerifyError
from batchwright.core.outcomes import Outcome
from batchwright.core.schemas import EMBEDDING, vector_type
from batchwright.core.vectors import EmbeddingSettings

# How Parquet calls the numbers of the column of vectors.
_NUMBERS = f"{EMBEDDING}.list.element"


def stored_vectors(outcomes: Sequence[Outcome], embedding: EmbeddingSettings) -> pa.Array:
    """The vectors of a part, null where a row failed.

    Raises:
        VerifyError: a row that is ok has no vector, or one of another length.
    """
    width = embedding.width_bytes
    vectors = [one.embedding if one.error_code is None else None for one in outcomes]
    for one, vector in zip(outcomes, vectors, strict=True):
        if one.error_code is None and (vector is None or len(vector) != width):
            got = "none" if vector is None else f"one of {len(vector)} bytes"
            raise VerifyError(f"row {one.row} needs a vector of {width} bytes, and came with {got}")
    return pa.array(vectors, pa.binary(width))


def shown_vectors(part: pa.Table, embedding: EmbeddingSettings) -> pa.Array:
    """The vectors of a part as lists of numbers: the same memory, seen otherwise."""
    kind = vector_type(embedding)
    stored, first, numbers = _bytes_of(part)
    total = (first + len(stored)) * embedding.dimensions
    values = pa.Array.from_buffers(kind.value_type, total, [None, numbers])
    return pa.FixedSizeListArray.from_arrays(
        values.slice(first * embedding.dimensions), type=kind, mask=stored.is_null()
    )


def json_vectors(part: pa.Table, embedding: EmbeddingSettings) -> list[Any]:
    """The vectors of a part for orjson, which writes an array of numpy in its shortest form."""
    stored, first, numbers = _bytes_of(part)
    rows = np.frombuffer(numbers, np.dtype(embedding.dtype), -1 if len(stored) else 0)
    rows = rows[: (first + len(stored)) * embedding.dimensions]
    rows = rows.reshape(-1, embedding.dimensions)[first:]
    there = stored.is_valid().to_pylist()
    return [row if valid else None for row, valid in zip(rows, there, strict=True)]


def _bytes_of(part: pa.Table) -> tuple[pa.Array, int, pa.Buffer]:
    """The stored column in one piece, the place of its first row in the buffer, and the buffer."""
    column = part.column(EMBEDDING)
    stored = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return stored, stored.offset, stored.buffers()[1] or pa.py_buffer(b"")


def part_encoding(schema: pa.Schema) -> dict[str, Any]:
    """How Parquet writes a part: vectors as they are, for they do not shrink and would cost time."""
    if EMBEDDING not in schema.names:
        return {"compression": "zstd", "compression_level": 1}
    others = [path for path in _leaves(schema) if path != EMBEDDING]
    return {
        "compression": dict.fromkeys(others, "zstd"),
        "use_dictionary": others,
        "write_statistics": others,
    }


def result_encoding(schema: pa.Schema) -> dict[str, Any]:
    """How Parquet writes results: with the bytes of the numbers sorted by rank, vectors shrink."""
    if not _has_vectors(schema):
        return {}
    others = [path for path in _leaves(schema) if path != _NUMBERS]
    return {"use_dictionary": others, "use_byte_stream_split": [_NUMBERS]}


def _has_vectors(schema: pa.Schema) -> bool:
    place = schema.get_field_index(EMBEDDING)
    kind = None if place < 0 else schema.field(place).type
    return (
        kind is not None
        and pa.types.is_fixed_size_list(kind)
        and pa.types.is_floating(kind.value_type)
    )


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns of a Parquet file of this schema, by their paths."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [leaves.column(index).path for index in range(len(leaves))]
