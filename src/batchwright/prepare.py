"""What runs on every machine: split -> rows -> requests -> token ids -> prepared part."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from batchwright.config.job import Job
from batchwright.core.errors import RowError
from batchwright.core.media import MediaKind, media_extras
from batchwright.core.media_counts import media_token_column
from batchwright.core.ports import Tokenizer
from batchwright.core.records import PreparedReceipt, Prompt, RowBatch, Split
from batchwright.core.sampling import PRESETS
from batchwright.core.schemas import prepared_schema
from batchwright.read.kinds import note_kinds
from batchwright.read.rows import read_split
from batchwright.references import MediaReader
from batchwright.rundir import artifacts, layout
from batchwright.rundir.manifest import Manifest
from batchwright.rundir.prepared import prepared_receipt
from batchwright.rundir.storage import Storage
from batchwright.tokens.fit import Fitter, InputFitter
from batchwright.validate.envelope import unwrap
from batchwright.validate.ids import row_id, text_id
from batchwright.validate.prompts import PromptBuilder
from batchwright.validate.sampling import RowSampling, shortest_answer
from batchwright.validate.token_ids import check_token_ids
from batchwright.validate.warnings import is_blank, special_token_finder

ROWS_PER_BATCH = 4096
ROWS_PER_PART = 16384


@dataclass(slots=True)
class _Draft:
    """One row on its way: first what it asks, then its token ids; or why it is rejected."""

    id: str | None = None
    prompt: Prompt | None = None
    sampling: str = "{}"
    max_tokens: int = 0
    extras: str | None = None
    token_ids: list[int] = field(default_factory=list)
    media_tokens: int = 0
    truncated: bool = False
    warnings: list[str] | None = None
    problem: tuple[str, str] | None = None

    def reject(self, code: str, message: str) -> None:
        self.problem = (code, message)
        self.token_ids = []
        self.extras = None

    def warn(self, code: str) -> None:
        self.warnings = [*(self.warnings or []), code]


class RowPreparer:
    """Rows to drafts: checks, renders and tokenises them, a batch at a time."""

    def __init__(self, job: Job, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self._tokenizer = tokenizer
        self._envelopes = manifest.format == "openai-batch"
        self._id_column = manifest.id_column
        self._model = job.model.name
        limits = (manifest.max_model_len, job.plan.over_length)
        self._fitter = Fitter(tokenizer, *limits)
        self._inputs = InputFitter(tokenizer, *limits) if job.task == "embed" else None
        self._ahead = job.embedding.prompt or ""
        self._prompts = make_prompt_builder(job, chat=manifest.chat)
        self._media = MediaReader(job, manifest)
        self._sampling = make_row_sampling(job)
        self._keep_tools = job.model.tool_call_parser is not None
        self._keep_kwargs = job.model.reasoning_parser is not None or self._keep_tools
        self._find_special = special_token_finder(tokenizer.special_tokens)

    def prepare(self, batch: RowBatch, path: str) -> list[_Draft]:
        """One draft per row of a batch, in order; `path` is the file that it comes from."""
        self._media.enter(path)
        drafts = []
        for index, record in enumerate(batch.records):
            draft = _Draft()
            drafts.append(draft)
            if record is None:
                draft.reject(*batch.problems[index])
                continue
            try:
                self._check(record, draft)
            except RowError as error:
                draft.reject(error.code, error.message)
        self._tokenise(drafts)
        return drafts

    def _check(self, record: dict[str, Any], draft: _Draft) -> None:
        if self._id_column:
            value = record.get(self._id_column)
            draft.id = text_id(value) if self._envelopes else row_id(value)
        row = record
        if self._envelopes:
            envelope = unwrap(record, model=self._model)
            record = envelope.record
            for code in envelope.warnings:
                draft.warn(code)
            draft.sampling, draft.max_tokens = self._sampling.resolve_fields(envelope.sampling)
        else:
            draft.sampling, draft.max_tokens = self._sampling.resolve(record)
        at = ("body",) if self._envelopes else ()
        prompt = self._prompts.build(record, self._media.forms, at)
        draft.prompt = prompt if self._inputs is None else input_text(prompt, self._ahead)
        draft.media_tokens = self._media.count(prompt.media, row) if prompt.media else 0
        draft.extras = self._extras(prompt, draft.media_tokens)
        if is_blank(prompt):
            draft.warn("blank_prompt")
        if self._find_special(self._prompts.own_text(record, prompt)):
            draft.warn("special_tokens")

    def _extras(self, prompt: Prompt, media_tokens: int) -> str | None:
        """What the engine needs besides, and what must be known when the answer is there."""
        extras = media_extras(prompt.media, media_tokens) if prompt.media else {}
        if self._keep_tools and prompt.tools:
            extras["tools"] = prompt.tools
        if self._keep_kwargs and prompt.template_kwargs:
            extras["chat_template_kwargs"] = prompt.template_kwargs
        return orjson.dumps(extras).decode() if extras else None

    def _tokenise(self, drafts: list[_Draft]) -> None:
        raw: list[_Draft] = []
        chats: list[tuple[_Draft, str]] = []
        for draft in drafts:
            prompt = draft.prompt
            if prompt is None or draft.problem is not None:
                continue
            if prompt.token_ids is not None:
                draft.token_ids = prompt.token_ids
            elif prompt.text is not None:
                raw.append(draft)
            else:
                self._render_chat(draft, prompt, chats)
        texts = [draft.prompt.text or "" for draft in raw if draft.prompt is not None]
        for draft, ids in zip(raw, self._encode(texts), strict=True):
            draft.token_ids = ids
        rendered = [text for _, text in chats]
        for (draft, _), ids in zip(
            chats, self._tokenizer.encode(rendered, add_special_tokens=False), strict=True
        ):
            draft.token_ids = ids
        for draft in drafts:
            if draft.prompt is not None and draft.problem is None:
                self._fit(draft, draft.prompt)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if self._inputs is not None:
            return self._inputs.encode(texts)
        return self._tokenizer.encode(texts, add_special_tokens=True)

    def _render_chat(self, draft: _Draft, prompt: Prompt, chats: list[tuple[_Draft, str]]) -> None:
        try:
            chats.append((draft, self._tokenizer.render_chat(prompt)))
        except RowError as error:
            draft.reject(error.code, error.message)

    def _fit(self, draft: _Draft, prompt: Prompt) -> None:
        """Check the token ids and make prompt and answer fit the context together."""
        ids = draft.token_ids
        if not ids:
            draft.reject("empty_prompt", "the prompt has no tokens")
            return
        try:
            if prompt.token_ids is not None:
                check_token_ids(ids, self._tokenizer.vocab_size)
            if self._inputs is not None:
                fitted = self._inputs.fit(ids)
            else:
                shortest = shortest_answer(draft.sampling)
                room = (draft.max_tokens, shortest, draft.media_tokens)
                fitted = self._fitter.fit(prompt, ids, *room)
        except RowError as error:
            draft.reject(error.code, error.message)
            draft.max_tokens = 0
            return
        draft.token_ids, draft.max_tokens, draft.truncated = fitted


class Preparer:
    """Writes the prepared parts of a split, each with its receipt."""

    def __init__(
        self, storage: Storage, manifest: Manifest, job: Job, tokenizer: Tokenizer
    ) -> None:
        self._storage = storage
        self._manifest = manifest
        self._rows = RowPreparer(job, tokenizer, manifest)
        self._input_type = manifest.arrow_input_type()
        self._schema = prepared_schema(self._input_type)
        self._with_kinds = not pa.types.is_struct(self._input_type)

    def prepare(self, split: Split) -> Iterator[PreparedReceipt]:
        """Prepare a split part by part; parts that are already there are passed over.

        Raises:
            InputError: the file is damaged.
        """
        batches = read_split(
            split, self._manifest.format, self._input_type, batch_rows=ROWS_PER_BATCH
        )
        for number, (group, last) in enumerate(_in_parts(batches)):
            receipt = prepared_receipt(self._storage, split.ordinal, number)
            if receipt is None:
                receipt = self._write(split, number, group, last=last)
            yield receipt

    def _write(
        self, split: Split, number: int, group: list[RowBatch], *, last: bool
    ) -> PreparedReceipt:
        file = layout.prepared_part(split.ordinal, number)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)
        tables: list[pa.Table] = []
        warnings: Counter[str] = Counter()
        kinds: dict[str, dict[str, None]] = {}
        for batch in group:
            drafts = self._rows.prepare(batch, split.path)
            tables.append(drafts_to_table(drafts, batch, self._schema))
            for draft in drafts:
                warnings.update(draft.warnings or ())
            if self._with_kinds:
                note_kinds(batch, kinds)
        table = pa.concat_tables(tables) if tables else self._schema.empty_table()
        with pa.ipc.new_file(sink, self._schema, options=options) as writer:
            writer.write_table(table.unify_dictionaries(), max_chunksize=ROWS_PER_BATCH)
        data = sink.getvalue().to_pybytes()
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
        )
        self._storage.publish(file, data)
        self._storage.commit(
            layout.prepared_receipt(split.ordinal, number), artifacts.dump(receipt)
        )
        return receipt


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


def drafts_to_table(drafts: list[_Draft], batch: RowBatch, schema: pa.Schema) -> pa.Table:
    """Drafts as rows of a prepared part."""
    offsets = [0]
    flat: list[int] = []
    for draft in drafts:
        flat += draft.token_ids
        offsets.append(len(flat))
    columns = {
        "id": pa.array([draft.id for draft in drafts], pa.large_string()),
        "token_ids": pa.LargeListArray.from_arrays(
            pa.array(offsets, pa.int64()), pa.array(flat, pa.int32())
        ),
        "max_tokens": pa.array([draft.max_tokens for draft in drafts], pa.int32()),
        "sampling": pa.array(
            [draft.sampling for draft in drafts], pa.large_string()
        ).dictionary_encode(),
        "extras": pa.array([draft.extras for draft in drafts], pa.large_string()),
        "truncated": pa.array([draft.truncated for draft in drafts], pa.bool_()),
        "warnings": pa.array([draft.warnings for draft in drafts], schema.field("warnings").type),
        "error_code": pa.array(
            [draft.problem and draft.problem[0] for draft in drafts], pa.string()
        ),
        "error": pa.array(
            [draft.problem and draft.problem[1] for draft in drafts], pa.large_string()
        ),
        "line": pa.array(batch.lines, pa.int64()),
        "input": batch.kept,
    }
    return pa.table(columns, schema=schema)


def make_prompt_builder(job: Job, *, chat: bool) -> PromptBuilder:
    """The job's prompt section as a builder. Raises JobError."""
    source = job.prompt
    columns: dict[MediaKind, str | None] = {"image": source.images, "audio": source.audio}
    return PromptBuilder(
        column=source.column,
        messages=source.messages,
        template=source.template,
        system=source.system,
        examples=[(example.fields, example.answer) for example in source.examples],
        tools=source.tools,
        template_kwargs=source.chat_template_kwargs,
        chat=chat,
        media={kind: name for kind, name in columns.items() if name is not None},
    )


def input_text(prompt: Prompt, ahead: str) -> Prompt:
    """What an embedding model reads: the row's text with the job's own ahead. Raises RowError."""
    if prompt.messages is not None or prompt.media:
        raise RowError("unsupported", "an embedding is made of text, not of messages")
    if prompt.text is not None:
        return Prompt(ahead + prompt.text)
    if ahead:
        raise RowError("bad_prompt", "embedding.prompt cannot be put ahead of token ids")
    return prompt


def make_row_sampling(job: Job) -> RowSampling:
    """The job's sampling section, and which columns may override it. Raises JobError."""
    if job.task == "embed":
        # A column named like a sampling field is data. A vector follows from its input alone, as a
        # greedy answer does: `run.repeat_once` looks for that.
        return RowSampling({"temperature": 0.0}, frozenset())
    sampling = job.sampling
    defaults = {**PRESETS[sampling.preset], **sampling.given()}
    for name in ("preset", "row_fields", "schema_retries"):
        defaults.pop(name, None)
    row_fields: frozenset[str] | None = None
    if isinstance(sampling.row_fields, list):
        row_fields = frozenset(sampling.row_fields)
    elif sampling.row_fields == "none" or job.prompt.template or job.prompt.column:
        row_fields = frozenset()
    return RowSampling(defaults, row_fields)
