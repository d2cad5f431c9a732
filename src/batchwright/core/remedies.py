"""What to do about each code that a row without an answer can carry."""

from __future__ import annotations

from batchwright.core.errors import ROW_CODES

_DATA = "Mend these rows in the input and run them as a job of their own"
_RETRY = "`batchwright retry` runs them again"

REMEDIES: dict[str, str] = {
    "bad_json": f"{_DATA}: each line must be one JSON object.",
    "bad_csv": f"{_DATA}: mostly a cell with a comma or a line feed lacks its quotes.",
    "bad_unicode": f"{_DATA}: write them as UTF-8.",
    "not_an_object": f"{_DATA}: each line must be an object with named fields.",
    "missing_field": "Check the names in prompt.template against the columns; give optional ones a "
    "default: {{ name | default('') }}.",
    "missing_id": "Name another column in input.id, or input.id: row: rows are known by their number.",
    "bad_id": f"{_DATA}: an id is text or an integer.",
    "duplicate_id": "Remove the repeated rows, or allow them: input.duplicate_ids: allow.",
    "missing_prompt": "Name the column in prompt.column (or --column), or give a prompt.template.",
    "empty_prompt": "These rows have nothing to answer: leave them out, or look why they are empty.",
    "ambiguous_prompt": "Say which one counts: prompt.column or prompt.messages.",
    "bad_prompt": f"{_DATA}: a prompt is text, or one list of token ids.",
    "bad_token_ids": "Make the ids with the model's own tokenizer.",
    "bad_messages": f"{_DATA}: messages are a list of objects with role and content.",
    "template_error": "The message names the place in prompt.template; try it on the example row.",
    "chat_template_error": "Let system messages and repeated roles be merged: prompt.role_fallback: "
    "merge.",
    "no_chat_template": "Name one in model.chat_template, or set prompt.chat: false for a base model.",
    "unknown_adapter": "List it in model.adapters, or correct the rows' adapter column.",
    "prompt_too_long": "Raise engine.options.max_model_len if the model can, or cut: "
    "plan.over_length: truncate_left.",
    "bad_sampling": "Correct the field in these rows, or keep rows from overriding: "
    "sampling.row_fields: none.",
    "bad_schema": "Correct the schema of these rows; another backend may know it: "
    "engine.options.structured_outputs_config.",
    "unsupported": "The message says what is not done; remove it from these rows.",
    "bad_envelope": f"{_DATA}: a batch line has custom_id, method, url and body.",
    "bad_media": "Look at the file; allow its type in media.allowed_types if it should be read.",
    "media_forbidden": "If you trust the place, name its folder in media.allowed_roots, or set "
    "media.allow_private_addresses: true for servers of your own network.",
    "engine_refused": "The message is the engine's own: change what it names in these rows, then "
    f"{_RETRY}.",
    "engine_killed": "The engine's log says what killed it: `batchwright logs`. Leave the row out, or "
    "give the engine more room.",
    "timeout": f"Raise run.row_timeout_s or lower sampling.max_tokens; then {_RETRY}.",
    "aborted": f"{_RETRY}.",
    "engine_error": f"{_RETRY}; if they fail again, the engine's log says more.",
    "invalid_output": "Raise sampling.max_tokens if answers are cut, or sampling.schema_retries; "
    "sampling.invalid_output: keep takes them as they are.",
    "media_not_found": f"Put the files there, or correct the addresses in the rows; then {_RETRY}.",
    "media_unreachable": f"Look at the server, and lower media.workers if it is too much for it; then {_RETRY}.",
    "media_too_large": "Raise media.max_bytes, max_pixels or max_seconds, or make the files smaller.",
    "media_timeout": f"Raise media.timeout_s; then {_RETRY}.",
    "bad_embedding": "Set model.dtype: float32 (or bfloat16): half precision overflows with some "
    "models.",
    "bad_score": "Set model.dtype: float32 (or bfloat16): half precision overflows with some models.",
}  # fmt: skip


def remedy_of(code: str) -> str:
    """What to do about a code; empty for one that is not known here."""
    assert REMEDIES.keys() == ROW_CODES.keys(), "each code has its remedy"
    return REMEDIES.get(code, "")
