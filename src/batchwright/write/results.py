"""What a result row looks like: the contract, then the input's own columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.errors import JobError
from batchwright.core.schemas import (
    EMBEDDING,
    INPUT_COLUMN,
    JSON_INPUT,
    contract,
    schema_metadata,
)
from batchwright.core.tasks import GENERATE, TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.write import json_input, parquet_input
from batchwright.write.answers import json_answers
from batchwright.write.vectors import json_vectors, shown_vectors

Columns = Literal["all", "none"] | Sequence[str]


class ResultShape(Protocol):
    """Turns rows of parts into rows of results."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the results in Parquet."""

    def to_table(self, part: pa.Table) -> pa.Table:
        """The rows as columns."""

    def to_lines(self, part: pa.Table) -> bytes:
        """The rows as lines of JSON."""


def make_shape(
    input_type: pa.DataType,
    column_kinds: Mapping[str, Collection[str]],
    wide: Collection[str],
    columns: Columns,
    task: TaskSettings = GENERATE,
) -> ResultShape:
    """The shape that suits the input.

    Args:
        input_type: type of the column `input` of the parts.
        column_kinds: JSON kinds seen in each column over the whole data, in order of appearance.
        wide: columns of integers and floats with an integer that a double cannot hold.
        columns: the input's own columns to keep.
        task: which says what the results have in the place of a text.

    Raises:
        JobError: `columns` names a column that no row has.
    """
    ours = _Contract(task)
    if input_type != JSON_INPUT:
        present = [input_type.field(i).name for i in range(input_type.num_fields)]
        return _StructShape(input_type, _choose(present, columns, ours), ours)
    kinds = {
        name: None if name in wide else json_input.column_type(seen)
        for name, seen in column_kinds.items()
    }
    return _JsonShape(kinds, _choose(list(kinds), columns, ours), ours)


def _choose(present: list[str], columns: Columns, ours: _Contract) -> dict[str, str]:
    """Kept columns to their names in the results, in the order of the input."""
    if columns == "all":
        return json_input.output_names(present, ours.names)
    wanted = [] if columns == "none" else list(columns)
    unknown = [name for name in wanted if name not in present]
    if unknown:
        msg = f"output.columns: no row has {', '.join(map(repr, unknown))}"
        raise JobError(msg, f"The input has {', '.join(present) or 'no columns'}.")
    kept = [name for name in present if name in set(wanted)]
    return json_input.output_names(kept, ours.names)


@dataclass(frozen=True, slots=True)
class _Contract:
    """The columns that every result of a task has, whatever its input.

    Attributes:
        task: which declares them.
    """

    task: TaskSettings

    @property
    def names(self) -> list[str]:
        return [field.name for field in contract(self.task)]

    def schema(self, fields: list[pa.Field]) -> pa.Schema:
        """The contract with these fields after it."""
        every = [*contract(self.task), *fields]
        return pa.schema(every, metadata=schema_metadata(self.task))

    def columns(self, part: pa.Table) -> list[Any]:
        """The contract's columns for Parquet."""
        shown = self._shown(part, shown_vectors)
        return [shown.get(name, part.column(name)) for name in self.names]

    def rows(self, part: pa.Table) -> Iterator[dict[str, Any]]:
        """The contract's part of each line of JSON."""
        shown = self._shown(part, json_vectors) | json_answers(part)
        names = self.names
        columns = [shown[n] if n in shown else part.column(n).to_pylist() for n in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))

    def _shown(
        self, part: pa.Table, show: Callable[[pa.Table, EmbeddingSettings], Any]
    ) -> dict[str, Any]:
        vectors = self.task.vectors
        return {} if vectors is None else {EMBEDDING: show(part, vectors)}


def _input(part: pa.Table) -> pa.Array:
    column = part.column(INPUT_COLUMN)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@dataclass(frozen=True, slots=True)
class _JsonShape:
    """Input kept as JSON text.

    Attributes:
        kinds: Arrow type of every column of the data; None is JSON text.
        names: kept columns to their names in the results.
        ours: the columns ahead of them.
    """

    kinds: dict[str, pa.DataType | None]
    names: dict[str, str]
    ours: _Contract

    @property
    def schema(self) -> pa.Schema:
        kinds = {name: self.kinds[name] or pa.large_string() for name in self.names}
        return self.ours.schema([pa.field(self.names[name], kind) for name, kind in kinds.items()])

    def to_table(self, part: pa.Table) -> pa.Table:
        columns = self.ours.columns(part)
        if self.names:
            rows = self._parse(part)
            columns += [
                json_input.build_column(rows, name, self.kinds[name]) for name in self.names
            ]
        return pa.table(columns, schema=self.schema)

    def to_lines(self, part: pa.Table) -> bytes:
        if not self.names:
            lines = json_input.dump_each(list(self.ours.rows(part)))
        elif self._unchanged:
            lines = self._spliced(part)
        else:
            names = self.names
            rows = self._parse(part).exact
            lines = json_input.dump_each(
                [
                    {**contract, **{names[k]: v for k, v in row.items() if k in names}}
                    for contract, row in zip(self.ours.rows(part), rows, strict=True)
                ]
            )
        return b"\n".join([*lines, b""])

    @property
    def _unchanged(self) -> bool:
        """Whether every column is kept under its own name."""
        same = all(old == new for old, new in self.names.items())
        return same and len(self.names) == len(self.kinds)

    def _spliced(self, part: pa.Table) -> list[bytes]:
        """Append the text of the input itself, unless it is not one line of strict JSON."""
        texts = _input(part)
        rows = self._parse(part)
        contracts = list(self.ours.rows(part))
        broken = pc.fill_null(pc.match_substring_regex(texts, "[\r\n]"), True)  # noqa: FBT003
        empty = {i for i, row in enumerate(rows.plain) if not row}
        redo = rows.loose.union(pc.indices_nonzero(broken).to_pylist(), empty)
        lines = [
            head[:-1] + b"," + (text or "").strip().encode()[1:]
            for head, text in zip(json_input.dump_each(contracts), texts.to_pylist(), strict=True)
        ]
        for i in redo:
            lines[i] = json_input.dump_json({**contracts[i], **rows.exact[i]})
        return lines

    def _parse(self, part: pa.Table) -> json_input.ParsedRows:
        rows = json_input.parse_rows(_input(part))
        json_input.check_columns(rows, self.kinds.keys())
        return rows


@dataclass(frozen=True, slots=True)
class _StructShape:
    """Input kept as a struct of the Parquet file's own columns.

    Attributes:
        input_type: the struct.
        names: kept columns to their names in the results.
        ours: the columns ahead of them.
    """

    input_type: pa.DataType
    names: dict[str, str]
    ours: _Contract

    @property
    def schema(self) -> pa.Schema:
        kinds = {
            name: parquet_input.plain_type(self.input_type.field(name).type) for name in self.names
        }
        return self.ours.schema([pa.field(self.names[name], kind) for name, kind in kinds.items()])

    def to_table(self, part: pa.Table) -> pa.Table:
        schema = self.schema
        columns = self.ours.columns(part)
        for name, column in self._own(part).items():
            kind = schema.field(self.names[name]).type
            columns.append(column if column.type == kind else column.cast(kind))
        return pa.table(columns, schema=schema)

    def to_lines(self, part: pa.Table) -> bytes:
        own = self._own(part)
        names = [self.names[name] for name in own]
        columns = [parquet_input.to_json_values(column) for column in own.values()]
        # A rejected row of which nothing could be read has no columns, not columns of nulls.
        there = _input(part).is_valid().to_pylist()
        rows = list(zip(*columns, strict=True)) if columns else [()] * part.num_rows
        lines = json_input.dump_each(
            [
                {**contract, **dict(zip(names, row, strict=True))} if kept else contract
                for contract, row, kept in zip(self.ours.rows(part), rows, there, strict=True)
            ]
        )
        return b"\n".join([*lines, b""])

    def _own(self, part: pa.Table) -> dict[str, pa.Array]:
        present = [self.input_type.field(i).name for i in range(self.input_type.num_fields)]
        columns = dict(zip(present, _input(part).flatten(), strict=True))
        return {name: columns[name] for name in self.names}
