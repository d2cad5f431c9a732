"""Rows to drafts: what each asks, checked, rendered and tokenised; or why it is rejected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from batchwright.config.job import Job
from batchwright.constraints.compiler import RowConstraints, job_compiler
from batchwright.core.errors import RowError
from batchwright.core.extras import ADAPTER, joined_extras
from batchwright.core.media import MediaKind, media_extras
from batchwright.core.ports import Tokenizer
from batchwright.core.records import Prompt, RowBatch, TextPair
from batchwright.core.sampling import PRESETS
from batchwright.drafts.inputs import PairPreparer, input_prompt, own_text
from batchwright.drafts.references import MediaReader
from batchwright.engines.openai_options import endpoint_options
from batchwright.engines.openai_request import row_extras
from batchwright.rundir.manifest import Manifest
from batchwright.tokens.fit import Fitter, InputFitter
from batchwright.validate.adapters import AdapterChoice
from batchwright.validate.envelope import unwrap
from batchwright.validate.ids import row_id, text_id
from batchwright.validate.merging import merge_roles
from batchwright.validate.prompts import PromptBuilder
from batchwright.validate.sampling import RowSampling, shortest_answer
from batchwright.validate.token_ids import check_token_ids
from batchwright.validate.warnings import is_blank, special_token_finder


@dataclass(slots=True)
class Draft:
    """One row on its way: first what it asks, then its token ids; or why it is rejected."""

    id: str | None = None
    prompt: Prompt | None = None
    pair: TextPair | None = None
    sampling: str = "{}"
    max_tokens: int = 0
    extras: str | None = None
    token_ids: list[int] = field(default_factory=list)
    media_tokens: int = 0
    truncated: bool = False
    warnings: list[str] | None = None
    merged: bool = False
    problem: tuple[str, str] | None = None

    def reject(self, code: str, message: str) -> None:
        """Say why it cannot run; what it asks is forgotten."""
        self.problem = (code, message)
        self.token_ids = []
        self.extras = None

    def warn(self, code: str) -> None:
        """Note what is odd but runs."""
        self.warnings = [*(self.warnings or []), code]


class RowPreparer:
    """Rows to drafts: checks, renders and tokenises them, a batch at a time."""

    def __init__(self, job: Job, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self._tokenizer = tokenizer
        self._envelopes = manifest.format == "openai-batch"
        self._id_column = manifest.id_column
        self._model = job.model.served_name or job.model.name
        self._task = job.task
        self._dimensions = (job.embedding.dimensions or 0) if job.task == "embed" else 0
        limits = (manifest.max_model_len, job.plan.over_length)
        self._fitter = Fitter(tokenizer, *limits)
        self._inputs = None if job.task == "generate" else InputFitter(tokenizer, *limits)
        self._pairs = PairPreparer(job, tokenizer, limits[0]) if job.task == "score" else None
        self._ahead = job.embedding.prompt or ""
        self._prompts = make_prompt_builder(job, chat=manifest.chat)
        self._merge_roles = job.prompt.role_fallback == "merge"
        self._media = MediaReader(job, manifest)
        self._sampling = make_row_sampling(job)
        is_csv = manifest.format == "csv"
        self._own_sampling = self._sampling.resolve_cells if is_csv else self._sampling.resolve
        self._constraints = RowConstraints(job_compiler(job), self._sampling.resolve({})[0])
        self._keep_tools = job.model.tool_call_parser is not None
        self._keep_kwargs = job.model.reasoning_parser is not None or self._keep_tools
        requests = not (job.prompt.template or job.prompt.column)
        self._adapters = AdapterChoice(job.model, requests=requests)
        self._find_special = special_token_finder(tokenizer.special_tokens)
        self._endpoint = endpoint_options(job)

    def prepare(self, batch: RowBatch) -> list[Draft]:
        """One draft per row of a batch, in order."""
        drafts = []
        for index, (record, path) in enumerate(zip(batch.records, batch.paths, strict=True)):
            self._media.enter(path)
            draft = Draft()
            drafts.append(draft)
            if record is None or index in batch.problems:
                draft.reject(*batch.problems[index])
                draft.id = self._known_id(record)
                continue
            try:
                self._check(record, draft)
            except RowError as error:
                draft.reject(error.code, error.message)
        self._tokenise(drafts)
        return drafts

    def _known_id(self, record: dict[str, Any] | None) -> str | None:
        """The id of a row that cannot run, where it has one that is whole."""
        try:
            known = row_id((record or {}).get(self._id_column)) if self._id_column else None
        except RowError:
            return None
        return None if known is None or "\ufffd" in known else known

    def _check(self, record: dict[str, Any], draft: Draft) -> None:
        if self._id_column:
            value = record.get(self._id_column)
            draft.id = text_id(value) if self._envelopes else row_id(value)
        row, at = record, ("body",) if self._envelopes else ()
        if self._envelopes:
            asked = unwrap(record, model=self._model, task=self._task, dimensions=self._dimensions)
            record, given = asked.record, asked.extras
            adapter = self._adapters.named(asked.model)
            for code in () if self._adapters else asked.warnings:
                draft.warn(code)
            draft.sampling, draft.max_tokens = self._sampling.resolve_fields(asked.sampling)
        else:
            given, adapter = None, self._adapters.of_row(record)
            draft.sampling, draft.max_tokens = self._own_sampling(record)
        self._constraints.check(draft.sampling)
        if self._pairs is None:
            prompt = self._prompts.build(record, self._media.forms, at)
            draft.prompt = input_prompt(self._task, prompt, self._ahead)
            draft.media_tokens = self._media.count(prompt.media, row) if prompt.media else 0
            draft.extras = self._extras(prompt, draft.media_tokens, given, adapter)
        else:
            draft.pair = self._pairs.read(record)
            prompt = own_text(draft.pair)
        if is_blank(prompt):
            draft.warn("blank_prompt")
        if self._find_special(self._prompts.own_text(record, prompt)):
            draft.warn("special_tokens")

    def _extras(
        self, prompt: Prompt, media_tokens: int, given: str | None, adapter: str | None
    ) -> str | None:
        """What the engine must know of a row, and what must be known when its answer is there."""
        extras = media_extras(prompt.media, media_tokens) if prompt.media else {}
        extras |= orjson.loads(given) if given else {}
        if adapter is not None:
            extras[ADAPTER] = adapter
        if self._keep_tools and prompt.tools:
            extras["tools"] = prompt.tools
        if self._keep_kwargs and prompt.template_kwargs:
            extras["chat_template_kwargs"] = prompt.template_kwargs
        return orjson.dumps(extras).decode() if extras else None

    def _tokenise(self, drafts: list[Draft]) -> None:
        if self._pairs is not None:
            self._pairs.fit_drafts(drafts)
            return
        raw: list[Draft] = []
        chats: list[tuple[Draft, str]] = []
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

    def _render_chat(self, draft: Draft, prompt: Prompt, chats: list[tuple[Draft, str]]) -> None:
        try:
            chats.append((draft, self._tokenizer.render_chat(prompt)))
        except RowError as error:
            if not self._merge_roles or error.code != "chat_template_error" or draft.merged:
                draft.reject(error.code, error.message)
                return
            draft.merged = True
            draft.prompt = prompt._replace(messages=merge_roles(prompt.messages or []))
            draft.warn("roles_merged")
            self._render_chat(draft, draft.prompt, chats)

    def _fit(self, draft: Draft, prompt: Prompt) -> None:
        """Check the token ids and make prompt and answer fit the context together."""
        ids = draft.token_ids
        if not ids:
            draft.reject("empty_prompt", "the prompt has no tokens")
            return
        try:
            if prompt.token_ids is not None:
                check_token_ids(ids, self._tokenizer.vocab_size)
            if self._inputs is not None:
                fitted = self._inputs.fit(ids, whole=prompt.messages is not None)
            else:
                shortest = shortest_answer(draft.sampling)
                room = (draft.max_tokens, shortest, draft.media_tokens)
                fitted = self._fitter.fit(prompt, ids, *room)
            if self._endpoint is not None:
                asked = draft.sampling if self._inputs is None else "{}"
                cut = fitted.truncated
                sent = row_extras(prompt, asked, self._endpoint, truncated=cut)
                draft.extras = joined_extras(draft.extras, sent)
        except RowError as error:
            draft.reject(error.code, error.message)
            draft.max_tokens = 0
            return
        draft.token_ids, draft.max_tokens, draft.truncated = fitted


def drafts_to_table(drafts: list[Draft], batch: RowBatch, schema: pa.Schema) -> pa.Table:
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


def make_row_sampling(job: Job) -> RowSampling:
    """The job's sampling section, and which columns may override it. Raises JobError."""
    if job.task != "generate":
        # A column named like a sampling field is data. A score follows from its input alone, as a
        # greedy answer does: `run.repeat_once` looks for that.
        return RowSampling({"temperature": 0.0}, frozenset())
    sampling = job.sampling
    defaults = {**PRESETS[sampling.preset], **sampling.given()}
    for name in ("preset", "row_fields", "schema_retries", "invalid_output"):
        defaults.pop(name, None)
    row_fields: frozenset[str] | None = None
    if isinstance(sampling.row_fields, list):
        row_fields = frozenset(sampling.row_fields)
    elif sampling.row_fields == "none" or job.prompt.template or job.prompt.column:
        row_fields = frozenset()
    return RowSampling(defaults, row_fields)
