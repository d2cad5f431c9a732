"""What runs on every machine: split -> rows -> requests -> token ids -> prepared part."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa

from batchwright.config.job import Job
from batchwright.core.errors import InputError
from batchwright.core.media_counts import media_token_column
from batchwright.core.ports import Tokenizer
from batchwright.core.records import PreparedReceipt, RowBatch, Split
from batchwright.core.schemas import prepared_schema
from batchwright.drafts.drafting import RowPreparer, drafts_to_table
from batchwright.read.files import refuse_changed
from batchwright.read.kinds import note_kinds
from batchwright.read.rows import read_split
from batchwright.rundir import artifacts, layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.meters import PrepareMeter
from batchwright.rundir.prepared import prepared_receipt
from batchwright.rundir.storage import Storage

ROWS_PER_BATCH = 4096
ROWS_PER_PART = 16384


class Preparer:
    """Writes the prepared parts of a split, each with its receipt."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        job: Job,
        tokenizer: Tokenizer,
        meter: PrepareMeter | None = None,
    ) -> None:
        self._storage = storage
        self._meter = meter or PrepareMeter()
        self._manifest = manifest
        self._rows = RowPreparer(job, tokenizer, manifest)
        self._input_type = manifest.arrow_input_type()
        self._schema = prepared_schema(self._input_type)
        self._files = {file.path: file for file in manifest.files}
        self._with_kinds = not pa.types.is_struct(self._input_type)

    def prepare(self, split: Split) -> Iterator[PreparedReceipt]:
        """Prepare a split part by part; parts that are already there are passed over.

        Raises:
            InputError: the file is damaged, or not the one that the run began with.
        """
        batches = read_split(
            split, self._manifest.format, self._input_type, batch_rows=ROWS_PER_BATCH
        )
        parts = _in_parts(self._meter.reading_of(self._blamed(split, batches)))
        for number, (group, last) in enumerate(parts):
            receipt = prepared_receipt(self._storage, split.ordinal, number)
            if receipt is None:
                receipt = self._write(split, number, group, last=last)
            yield receipt

    def _blamed(self, split: Split, batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
        """The batches; a file that breaks off because it was changed is told so."""
        try:
            yield from batches
        except InputError:
            self._refuse_changed(split.paths)
            raise

    def _refuse_changed(self, paths: Iterable[str]) -> None:
        refuse_changed([self._files[path] for path in paths if path in self._files])

    def _write(
        self, split: Split, number: int, group: list[RowBatch], *, last: bool
    ) -> PreparedReceipt:
        file = layout.prepared_part(split.ordinal, number)
        tables: list[pa.Table] = []
        warnings: Counter[str] = Counter()
        kinds: dict[str, dict[str, None]] = {}
        for batch in group:
            with self._meter.timing("tokenize"):
                drafts = self._rows.prepare(batch)
                tables.append(drafts_to_table(drafts, batch, self._schema))
            for draft in drafts:
                warnings.update(draft.warnings or ())
            if self._with_kinds:
                note_kinds(batch, kinds)
        table = pa.concat_tables(tables) if tables else self._schema.empty_table()
        with self._meter.timing("write"):
            data = _encoded(table, self._schema)
        receipt = PreparedReceipt(
            split=split.ordinal,
            part=number,
            file=file,
            rows=table.num_rows,
            rejected=table.num_rows - table.column("error_code").null_count,
            num_lines=max((batch.num_lines for batch in group), default=0),
            last=last,
            prompt_tokens=sum(len(chunk.values) for chunk in table.column("token_ids").chunks)
            + int(media_token_column(table.column("extras")).sum()),
            sha256=hashlib.sha256(data).hexdigest(),
            warnings=dict(warnings),
            column_kinds={name: list(found) for name, found in kinds.items()},
            file_rows=_file_rows(split, group) if split.also else (),
        )
        self._refuse_changed(
            split.paths if last else {path for batch in group for path in batch.paths}
        )
        with self._meter.timing("write"):
            self._storage.publish(file, data)
            self._storage.commit(
                layout.prepared_receipt(split.ordinal, number), artifacts.dump(receipt)
            )
        self._meter.add(receipt)
        return receipt


def _file_rows(split: Split, group: list[RowBatch]) -> tuple[tuple[int, int], ...]:
    """Whose the rows of a part are: places among the split's files, with their numbers of rows."""
    found = Counter(path for batch in group for path in batch.paths)
    return tuple((n, found[path]) for n, path in enumerate(split.paths) if path in found)


def _encoded(table: pa.Table, schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_table(table.unify_dictionaries(), max_chunksize=ROWS_PER_BATCH)
    return bytes(sink.getvalue().to_pybytes())


def _in_parts(batches: Iterator[RowBatch]) -> Iterator[tuple[list[RowBatch], bool]]:
    """Groups of batches that make a part each, and whether it is the last of the split.

    A split of no rows still makes one (empty) part, so that the order can step over it.
    """
    group: list[RowBatch] = []
    rows = 0
    for batch in batches:
        if rows >= ROWS_PER_PART:
            yield group, False
            group, rows = [], 0
        group.append(batch)
        rows += len(batch.records)
    yield group, True
