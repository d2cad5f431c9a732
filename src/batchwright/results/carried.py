"""Which columns of the input travel with the vectors into a database, by which name and type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from batchwright.config.job import Job
from batchwright.config.sections import LoadTarget
from batchwright.core.errors import JobError
from batchwright.core.records import OrderBatch
from batchwright.core.schemas import EMBEDDING, JSON_INPUT, contract, part_schema
from batchwright.core.stores import ID, StoreColumn
from batchwright.load.rows import NUMERIC_ID, Layout, column_kind
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.rejected import column_kinds
from batchwright.rundir.storage import Storage
from batchwright.write.json_input import column_type, output_names
from batchwright.write.results import ResultShape, make_shape

# What a row of a load has of its own; a column of the input with such a name gets a prefix.
_OWN_NAMES = ("row", ID, NUMERIC_ID, EMBEDDING)


@dataclass(frozen=True, slots=True)
class Carried:
    """How the rows of a part are read, and what of them is stored.

    Attributes:
        part: schema of the columns of a part that are read.
        results: makes results of them.
        layout: which columns of the results become what.
        columns: beside id and vector.
    """

    part: pa.Schema
    results: ResultShape
    layout: Layout
    columns: tuple[StoreColumn, ...]


def carried(
    storage: Storage,
    manifest: Manifest,
    batches: Sequence[OrderBatch],
    wanted: LoadTarget,
    *,
    with_typed_ids: bool,
) -> Carried:
    """What a load reads and stores, by all that is known of the input so far.

    Args:
        storage: of the run.
        manifest: of the run.
        batches: of the order, as far as it is.
        wanted: the table, and which columns it wants.
        with_typed_ids: whether it matters that an id was a number.

    Raises:
        JobError: the input has no such column.
    """
    task = Job.model_validate(manifest.job).task_settings()
    input_type = manifest.arrow_input_type()
    kinds = column_kinds(storage, batches) if input_type == JSON_INPUT else {}
    present = list(kinds)
    if input_type != JSON_INPUT:
        present = [input_type.field(place).name for place in range(input_type.num_fields)]
    id_column = manifest.id_column if wanted.id == "auto" else wanted.id
    kept = _chosen(present, wanted, id_column)
    reads_id = id_column in present and (with_typed_ids or wanted.id != "auto")
    read = list(dict.fromkeys([*kept, *([id_column] if reads_id else [])]))
    results = make_shape(input_type, kinds, (), read, task)
    names = output_names(read, [field.name for field in contract(task)])
    stored = output_names(kept, _OWN_NAMES)
    is_json = {name: name in kinds and column_type(kinds[name]) is None for name in read}
    layout = Layout(
        id_source=ID if wanted.id == "auto" else names[wanted.id],
        typed_source=names.get(id_column, id_column) or None,
        columns={names[name]: stored[name] for name in kept},
        json=frozenset(names[name] for name in read if is_json[name]),
    )
    columns = tuple(
        StoreColumn(
            stored[name],
            column_kind(results.schema.field(names[name]).type, is_json=is_json[name]),
        )
        for name in kept
    )
    return Carried(part_schema(input_type, task), results, layout, columns)


def _chosen(present: Sequence[str], wanted: LoadTarget, id_column: str) -> list[str]:
    """The columns to store, in the order of the input; the id is stored as the id."""
    asked = [] if wanted.columns in ("all", "none") else list(wanted.columns)
    unknown = [name for name in asked if name not in present]
    if unknown:
        raise JobError(
            f"load.columns: no row has {', '.join(map(repr, unknown))}",
            f"The input has {', '.join(present) or 'no columns'}.",
        )
    if wanted.id != "auto" and wanted.id not in present:
        raise JobError(
            f"load.id: no row has a column {wanted.id}",
            f"The input has {', '.join(present) or 'no columns'}.",
        )
    if wanted.columns == "all":
        return [name for name in present if name != id_column]
    return [name for name in present if name in set(asked)]
