"""What a result row looks like: the contract, then the input's own columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from batchwright.core.errors import JobError
from batchwright.core.schemas import CONTRACT, CONTRACT_NAMES, INPUT_COLUMN, JSON_INPUT, part_schema
from batchwright.write import json_input, parquet_input

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
) -> ResultShape:
    """The shape that suits the input.

    Args:
        input_type: type of the column `input` of the parts.
        column_kinds: JSON kinds seen in each column over the whole data, in order of appearance.
        wide: columns of integers and floats with an integer that a double cannot hold.
        columns: the input's own columns to keep.

    Raises:
        JobError: `columns` names a column that no row has.
    """
    if input_type != JSON_INPUT:
        present = [input_type.field(i).name for i in range(input_type.num_fields)]
        return _StructShape(input_type, _choose(present, columns))
    kinds = {
        name: None if name in wide else json_input.column_type(seen)
        for name, seen in column_kinds.items()
    }
    return _JsonShape(kinds, _choose(list(kinds), columns))


def _choose(present: list[str], columns: Columns) -> dict[str, str]:
    """Kept columns to their names in the results, in the order of the input."""
    if columns == "all":
        return json_input.output_names(present)
    wanted = [] if columns == "none" else list(columns)
    unknown = [name for name in wanted if name not in present]
    if unknown:
        msg = f"output.columns: no row has {', '.join(map(repr, unknown))}"
        raise JobError(msg, f"The input has {', '.join(present) or 'no columns'}.")
    return json_input.output_names([name for name in present if name in set(wanted)])


def _schema(fields: list[pa.Field]) -> pa.Schema:
    return pa.schema([*CONTRACT, *fields], metadata=part_schema(JSON_INPUT).metadata)


def _contracts(part: pa.Table) -> Iterator[dict[str, Any]]:
    columns = [part.column(name).to_pylist() for name in CONTRACT_NAMES]
    for values in zip(*columns, strict=True):
        yield dict(zip(CONTRACT_NAMES, values, strict=True))


def _input(part: pa.Table) -> pa.Array:
    column = part.column(INPUT_COLUMN)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@dataclass(frozen=True, slots=True)
class _JsonShape:
    """Input kept as JSON text.

    Attributes:
        kinds: Arrow type of every column of the data; None is JSON text.
        names: kept columns to their names in the results.
    """

    kinds: dict[str, pa.DataType | None]
    names: dict[str, str]

    @property
    def schema(self) -> pa.Schema:
        kinds = {name: self.kinds[name] or pa.large_string() for name in self.names}
        return _schema([pa.field(self.names[name], kind) for name, kind in kinds.items()])

    def to_table(self, part: pa.Table) -> pa.Table:
        columns = [part.column(name) for name in CONTRACT_NAMES]
        if self.names:
            rows = self._parse(part)
            columns += [
                json_input.build_column(rows, name, self.kinds[name]) for name in self.names
            ]
        return pa.table(columns, schema=self.schema)

    def to_lines(self, part: pa.Table) -> bytes:
        if not self.names:
            lines = json_input.dump_each(list(_contracts(part)))
        elif self._unchanged:
            lines = self._spliced(part)
        else:
            names = self.names
            rows = self._parse(part).exact
            lines = json_input.dump_each(
                [
                    {**contract, **{names[k]: v for k, v in row.items() if k in names}}
                    for contract, row in zip(_contracts(part), rows, strict=True)
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
        contracts = list(_contracts(part))
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
    """

    input_type: pa.DataType
    names: dict[str, str]

    @property
    def schema(self) -> pa.Schema:
        kinds = {
            name: parquet_input.plain_type(self.input_type.field(name).type) for name in self.names
        }
        return _schema([pa.field(self.names[name], kind) for name, kind in kinds.items()])

    def to_table(self, part: pa.Table) -> pa.Table:
        schema = self.schema
        columns = [part.column(name) for name in CONTRACT_NAMES]
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
                for contract, row, kept in zip(_contracts(part), rows, there, strict=True)
            ]
        )
        return b"\n".join([*lines, b""])

    def _own(self, part: pa.Table) -> dict[str, pa.Array]:
        present = [self.input_type.field(i).name for i in range(self.input_type.num_fields)]
        columns = dict(zip(present, _input(part).flatten(), strict=True))
        return {name: columns[name] for name in self.names}
