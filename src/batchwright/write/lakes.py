"""Results as a table of a data lake: a new version in one step, never rows twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from batchwright.core.errors import BatchwrightError, JobError, StorageError
from batchwright.write.partitions import check_partitions

_LANCE = ".lance"

_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
}


_Codec = Literal["ZSTD", "GZIP", "SNAPPY", "LZ4_RAW"]

_CODECS: dict[str, _Codec] = {
    "zstd": "ZSTD",
    "gzip": "GZIP",
    "snappy": "SNAPPY",
    "lz4": "LZ4_RAW",
}


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """What the table is like.

    Attributes:
        target_file_bytes: of one of its files.
        partition_by: columns whose values name its folders; Delta only.
        compression: of its Parquet files, by name; Delta only.
    """

    target_file_bytes: int
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"


Batches = Iterator[pa.RecordBatch]


def write_delta(folder: Path, schema: pa.Schema, tables: Batches, options: LakeOptions) -> Path:
    """Replace a Delta table by these rows, in one commit; make it if it is not there.

    Args:
        folder: the table.
        schema: of the rows.
        tables: the rows.
        options: what the table is like.

    Raises:
        JobError: deltalake is missing, or Delta has no type for a column.
        StorageError: the table cannot be written.
    """
    try:
        from deltalake import WriterProperties, write_deltalake
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise _missing("Delta", "delta", error) from error
    _refuse_other_files(folder, "_delta_log")
    check_partitions(schema, options.partition_by)
    fitting = delta_schema(schema)
    with _own_errors_first(folder, _cast(tables, fitting), fitting, DeltaError) as reader:
        write_deltalake(
            str(folder),
            reader,
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=list(options.partition_by) or None,
            target_file_size=options.target_file_bytes,
            writer_properties=WriterProperties(compression=_CODECS[options.compression]),
        )
    return folder


def write_lance(folder: Path, schema: pa.Schema, tables: Batches, _: LakeOptions) -> Path:
    """Replace a Lance dataset by these rows, as one new version; make it if it is not there.

    Args:
        folder: the dataset if its name ends in `.lance`; else `results.lance` is made in it.
        schema: of the rows.
        tables: the rows.

    Raises:
        JobError: lancedb is missing.
        StorageError: the dataset cannot be written.
    """
    try:
        import lancedb
    except ImportError as error:
        raise _missing("Lance", "lancedb", error) from error
    path = folder if folder.suffix == _LANCE else folder / f"results{_LANCE}"
    if path.is_dir():
        _refuse_other_files(path, "_versions")
        if not any(path.iterdir()):
            path.rmdir()  # else lancedb takes it for a damaged one
    with _own_errors_first(path, tables, schema, RuntimeError) as reader:
        lancedb.connect(str(path.parent)).create_table(path.stem, data=reader, mode="overwrite")
    return path


LAKES: dict[str, Callable[[Path, pa.Schema, Batches, LakeOptions], Path]] = {
    "delta": write_delta,
    "lance": write_lance,
}


@contextmanager
def _own_errors_first(
    path: Path, tables: Batches, schema: pa.Schema, library_error: type[Exception]
) -> Iterator[pa.RecordBatchReader]:
    """A reader of the rows. What goes wrong in making them is raised as it is.

    The libraries wrap it into errors of their own, with neither its kind nor its hint.
    """
    own: list[BatchwrightError] = []

    def noted() -> Batches:
        try:
            yield from tables
        except BatchwrightError as error:
            own.append(error)
            raise

    try:
        yield pa.RecordBatchReader.from_batches(schema, noted())
    except (library_error, ValueError, OSError) as error:
        if own:
            raise own[0] from None
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise StorageError(
            f"cannot write {path}: {reason}",
            "What the table held before is still there. Mend that and export again.",
        ) from error


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in types that Delta has. Raises JobError, which names the column that has none."""
    fields = []
    for field in schema:
        kind = _delta_type(field.type)
        if kind is None:
            raise JobError(
                f"column {field.name!r} is {field.type}, and Delta has no such type",
                "Leave it out (output.columns), or export to parquet.",
            )
        fields.append(field.with_type(kind))
    return pa.schema(fields)


def _delta_type(kind: pa.DataType) -> pa.DataType | None:
    """A type that holds the same values, or None."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        kinds = [_delta_type(field.type) for field in fields]
        if None in kinds:
            return None
        return pa.struct([field.with_type(kind) for field, kind in zip(fields, kinds, strict=True)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _delta_type(kind.value_type)
        return None if item is None else pa.list_(kind.value_field.with_type(item))
    return _delta_leaf(kind)


def _delta_leaf(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    tests = (
        pa.types.is_duration, pa.types.is_time, pa.types.is_decimal256, pa.types.is_interval,
        pa.types.is_null,
    )  # fmt: skip
    return None if any(test(kind) for test in tests) else _SIGNED.get(kind, kind)


def _cast(tables: Batches, schema: pa.Schema) -> Batches:
    for batch in tables:
        columns = [
            _cast_column(column, field) for column, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.record_batch(columns, schema=schema)


def _cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:  # nanoseconds, or integers beyond 63 bits
        raise JobError(
            f"column {field.name!r} does not fit {field.type}, the nearest type of Delta: {error}",
            "Leave it out (output.columns), or export to parquet.",
        ) from error


def _refuse_other_files(folder: Path, log: str) -> None:
    """A table is alone in its folder. Raises JobError."""
    if not folder.is_dir() or (folder / log).is_dir():
        return
    others = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    if others:
        raise JobError(
            f"{folder} holds files that are not of a table: {', '.join(sorted(others)[:3])}",
            "Choose an empty folder for it, or one that is not there yet (-o).",
        )


def _missing(what: str, extra: str, error: ImportError) -> JobError:
    return JobError(f"{what} needs a package ({error})", f"pip install 'batchwright[{extra}]'")
