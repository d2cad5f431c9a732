"""Everything that can go wrong, on one page.

BatchwrightError                exit  what happened
├── JobError                       2  the job file, an option or the model folder is wrong
│   ├── ResumeRefused              2  the run directory holds another job
│   ├── TimesLost                  2  a pilot's times were lost when its worker was killed
│   ├── MissingExtra               2  an optional package is not installed
│   ├── HubUnreachable            75  the hub does not answer, which has the model that is named
│   └── Forbidden                  2  the cluster does not allow it to this account
├── InputError                     3  the input cannot be used at all
├── TooManyFailures                3  so many rows fail that the job itself must be wrong
├── VerifyError                    1  rows in and rows out do not add up
├── StorageError                  75  a disk or bucket refused; fix it and run again
│   ├── NotAllowed                 2  a folder may not be read, written or made
│   └── Damaged                    2  a file of the run is damaged that nothing can make again
├── EngineError                   75  the engine cannot be kept alive
│   └── EngineNeverStarts          2  it has failed to start many times, and never did
├── ClusterError                  75  the cluster's API server does not answer
├── StoreError                    75  a vector database cannot be reached, or refuses to be written
│   └── StoreTaken                75  another process loads the same run into the same table
├── Stopped                       75  stopped on request (SIGTERM); run again to go on
└── Interrupted                  130  stopped by Ctrl-C; run again to go on

RowError                              one row is bad: it becomes a rejection or a failure,
                                      never the end of the job
"""

from __future__ import annotations

from typing import Any, ClassVar

# Exit code of a finished, complete run in which more rows than `run.max_failed` have no answer.
EXIT_MANY_FAILED = 4


class BatchwrightError(Exception):
    """Base of every error that ends a command.

    Args:
        message: what is wrong, with the file and line or the row where it is known.
        hint: what to do about it, one sentence; empty when the message says it all.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.hint)


class JobError(BatchwrightError):
    """The job file, an option or the model folder is wrong."""

    exit_code = 2


class ResumeRefused(JobError):
    """The run directory was made by another job; the message names each difference."""


class TimesLost(JobError):
    """When a pilot's rows ended is not known: who ran them was killed before they could say."""


class MissingExtra(JobError):
    """An optional package is not installed; the hint is the pip line."""


class HubUnreachable(JobError):
    """The model is not on this machine, and the hub does not answer: it may do so later.

    The name may also be wrong, so it is a JobError; but no other machine must be stopped for it.
    """

    exit_code = 75


class Forbidden(JobError):
    """This account may not do or see something in the cluster."""


class InputError(BatchwrightError):
    """The input cannot be used: no rows, no such file, damaged file."""

    exit_code = 3


class TooManyFailures(BatchwrightError):
    """More than `run.stop_at_failed` of the first rows have no answer."""

    exit_code = 3


class VerifyError(BatchwrightError):
    """Rows in and rows out do not add up."""

    exit_code = 1


class StorageError(BatchwrightError):
    """A disk or bucket refused a read or a write."""

    exit_code = 75


class NotAllowed(StorageError):
    """A folder may not be read or written, or cannot be made: to start again would change nothing."""

    exit_code = 2


class Damaged(StorageError):
    """A file of a run cannot be read, and nothing can make it again: to start again changes nothing."""

    exit_code = 2


class EngineError(BatchwrightError):
    """The engine cannot be started, or dies again and again."""

    exit_code = 75


class EngineNeverStarts(EngineError):
    """It has failed to start many times and never did: to start again would change nothing."""

    exit_code = 2


class ClusterError(BatchwrightError):
    """The cluster's API server does not answer, or fails."""

    exit_code = 75


class EngineDied(EngineError):
    """The engine process is gone or hangs; the requests in flight have no outcome."""


class StoreError(BatchwrightError):
    """A vector database cannot be reached, or refuses to be written."""

    exit_code = 75


class StoreTaken(StoreError):
    """Another process loads the same run into the same table."""


class Stopped(BatchwrightError):
    """Stopped on request; the run can be resumed."""

    exit_code = 75


class Interrupted(BatchwrightError):
    """Stopped by Ctrl-C; the run can be resumed."""

    exit_code = 130


class RowError(Exception):
    """One row cannot be used, or has no answer.

    Args:
        code: a key of `ROW_CODES`; stable, for programs.
        message: what is wrong with this row, for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


# Of images and sounds: found in the row itself, or when a worker fetches them.
_MEDIA_CODES: dict[str, str] = {
    "bad_media": "An image or sound has no known form, cannot be decoded, or is of a type that "
    "`media.allowed_types` does not name.",
    "media_forbidden": "An image or sound lies where the job may not look: a scheme, a folder or a "
    "network address that `media` does not allow.",
}

# Every code that a rejected row (found before the engine) can carry.
REJECTION_CODES: dict[str, str] = {
    "bad_json": "The line is not valid JSON, or holds more than one value.",
    "bad_csv": "The record has more or fewer cells than the header.",
    "bad_unicode": "The bytes are not UTF-8, or the text holds a lone surrogate.",
    "not_an_object": "The record is valid JSON but not an object.",
    "missing_field": "The prompt needs a field that this row does not have.",
    "missing_id": "The row has no id, or an empty one.",
    "bad_id": "The id is neither text nor an integer.",
    "duplicate_id": "An earlier row has the same id.",
    "missing_prompt": "The row has neither a prompt nor messages.",
    "empty_prompt": "The prompt or the list of messages is empty.",
    "ambiguous_prompt": "The row has both a prompt and messages.",
    "bad_prompt": "The prompt is neither text nor one list of token ids.",
    "bad_token_ids": "A token id is not an integer, or lies outside the vocabulary.",
    "bad_messages": "The messages are not a list of {role, content} objects.",
    "template_error": "The prompt template failed on this row.",
    "chat_template_error": "The model's chat template refuses these messages.",
    "no_chat_template": "The row has messages, but the model has no chat template.",
    "unknown_adapter": "The row names an adapter or a model that the job does not have.",
    "prompt_too_long": "The prompt has more tokens than the limit leaves room for.",
    "bad_sampling": "A sampling field of this row has a wrong value.",
    "bad_schema": "The row's own schema, regex or grammar cannot be compiled, or not in time.",
    "unsupported": "The row asks for something that this version does not do.",
    "bad_envelope": "The OpenAI batch line lacks or misuses a field of the envelope.",
    **_MEDIA_CODES,
}

# Every code that a failed row (refused or lost by the engine) can carry.
FAILURE_CODES: dict[str, str] = {
    "engine_refused": "The engine refused this request; the message is the engine's own.",
    "engine_killed": "The engine died each time this row was run, at last on its own.",
    "timeout": "The row was in the engine for longer than `run.row_timeout_s`.",
    "aborted": "The engine ended the request without an answer.",
    "engine_error": "The engine failed on this request; the message is the engine's own.",
    "invalid_output": "The answer does not keep to `structured_outputs`; its raw text is kept.",
    **_MEDIA_CODES,
    "media_not_found": "There is no such image or sound: no such file, or HTTP status 404 or 410.",
    "media_unreachable": "The server of an image or sound could not be reached, or refused it.",
    "media_too_large": "An image or sound is above `media.max_bytes`, `max_pixels` or "
    "`max_seconds`.",
    "media_timeout": "An image or sound had not come after `media.timeout_s`.",
    "prompt_too_long": REJECTION_CODES["prompt_too_long"],  # with images it may turn out so
    "bad_embedding": "The vector holds a number that is not finite: a fault of model or precision.",
    "bad_score": "A score is not a finite number: a fault of model or precision.",
}

# Notes on a row that runs all the same.
WARNING_CODES: dict[str, str] = {
    "special_tokens": "The row's own text holds the spelling of a special token.",
    "blank_prompt": "The prompt is only white space or invisible characters.",
    "empty_answer": "The model ended at once: the answer is empty.",
    "document_skipped": "A document of the row's list is missing, empty or too long: its score is null.",
    "model_ignored": "The row names another model; the job's model answers.",
    "roles_merged": "Messages were merged into the roles that the model's chat template knows.",
}

# Why a row is not in a vector database; the rows of a run itself are not touched by these.
LOAD_CODES: dict[str, str] = {
    "no_vector": "The row failed in the run, and so has no vector; the message says why.",
    "bad_vector": "The vector holds a number that is not finite or beyond the column's type, or has "
    "length 0 where neighbours are found by cosine.",
    "bad_id": "The id is missing, empty, neither text nor an integer, too long for the database, or "
    "holds a NUL character where that cannot be stored. Ids are never altered.",
    "duplicate_id": "An earlier row has the same id in the database.",
    "value_too_long": "A value is longer than its column takes; Milvus counts bytes.",
    "row_too_large": "The row alone is larger than a request may be.",
    "store_refused": "The database refused this row on its own; the message is the database's.",
}

# Notes on a row that is in the database all the same.
LOAD_WARNING_CODES: dict[str, str] = {
    "nul_replaced": "Text held NUL characters, which PostgreSQL cannot store: each is U+FFFD there.",
}

ROW_CODES: dict[str, str] = {**REJECTION_CODES, **FAILURE_CODES}


class Unreachable(Exception):
    """A vector database cannot be reached at the moment: the same request may succeed later."""


class Refused(Exception):
    """A vector database refuses a request for what is in it: smaller ones show which row it is."""
