"""A row becomes a prompt: from a column, a list of messages, a template, or the row's own form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchwright.core.errors import JobError, RowError
from batchwright.core.media import MediaKind
from batchwright.core.records import Prompt
from batchwright.validate.media import MediaForms, fill_places, text_of
from batchwright.validate.messages import (
    Found,
    parse_messages,
    parse_template_kwargs,
    parse_tools,
)
from batchwright.validate.names import did_you_mean
from batchwright.validate.templates import RowTemplate
from batchwright.validate.token_ids import parse_token_ids

Record = Mapping[str, Any]

Maker = Callable[[Record, Found], Prompt]

_NOWHERE = MediaForms()

_AUTO_FIELDS = ("messages", "prompt", "prompt_token_ids")


class PromptBuilder:
    """Makes the prompt of each row, with the job's instruction and worked examples ahead of it.

    With neither column, messages nor template a row says itself what it is: it has `messages`
    (and perhaps `tools`), or `prompt` (text or token ids), or `prompt_token_ids`.

    Args:
        column: the column that holds the prompt.
        messages: the column that holds the messages.
        template: Jinja2 source over the row's columns.
        system: instruction ahead of every prompt; a row that has its own system message keeps it.
        examples: (fields, answer) of each worked example.
        tools: functions of rows that bring none of their own.
        template_kwargs: values for the chat template, under a row's own.
        chat: whether a column or template prompt becomes a chat message.
        media: the columns that hold images or sounds.

    Raises:
        JobError: the settings contradict each other, or the template or an example is wrong.
    """

    def __init__(
        self,
        *,
        column: str | None = None,
        messages: str | None = None,
        template: str | None = None,
        system: str | None = None,
        examples: Sequence[tuple[dict[str, Any], str]] = (),
        tools: Sequence[dict[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        chat: bool = False,
        media: Mapping[MediaKind, str] | None = None,
    ) -> None:
        if sum(source is not None for source in (column, messages, template)) > 1:
            raise JobError("prompt: give one of column, messages and template")
        self._column = column
        self._messages = messages
        self._system = system
        self._tools = list(tools) or None
        try:
            self._template_kwargs = parse_template_kwargs(template_kwargs or None)
        except RowError as error:
            raise JobError(f"prompt.{error.message}") from None
        self._examples = [{"fields": fields, "answer": answer} for fields, answer in examples]
        self._template = None if template is None else RowTemplate(template)
        names = self._template.names if self._template else frozenset()
        self._own_system = "system" in names
        self._own_examples = "examples" in names
        shots = [
            (self._example_text(number, fields), answer)
            for number, (fields, answer) in enumerate(examples, start=1)
        ]
        self._system_turn = _system_turn(None if self._own_system else system)
        self._turns = [] if self._own_examples else _example_turns(shots)
        head = "" if self._own_system or self._own_examples else _text_head(system, shots)
        self._head = head
        self._media = media or {}
        self._make = self._maker(chat=chat)

    def build(
        self, record: Record, forms: MediaForms = _NOWHERE, at: Sequence[str | int] = ()
    ) -> Prompt:
        """The prompt of this row.

        Args:
            record: the row.
            forms: reads what the row says of images and sounds.
            at: where `record` stands in the row as it is kept.

        Raises:
            RowError: what is wrong with the row.
        """
        found = Found(forms, at)
        prompt = self._make(record, found)
        if not found and not self._media:
            return prompt
        given = {
            kind: forms.from_column(kind, _field_or_null(record, name), name)
            for kind, name in self._media.items()
        }
        if prompt.messages is not None:
            messages, media = fill_places(prompt.messages, found, given)
            return prompt._replace(messages=messages, media=media)
        # A text brings the model's own placeholders along.
        return prompt._replace(media=tuple(one for items in given.values() for one in items))

    @property
    def is_constant(self) -> bool:
        """Whether every row gets the same prompt: its template names no column, and no media come."""
        template = self._template
        return (
            template is not None and not template.names - {"system", "examples"} and not self._media
        )

    def own_text(self, record: Record, prompt: Prompt) -> str:
        """The text that the row itself brings, without the job's template, system and examples."""
        if self._template is not None:
            values = (record.get(name) for name in self._template.names)
            return "\n".join(value for value in values if isinstance(value, str))
        if prompt.token_ids is not None:
            return ""
        if prompt.text is not None:
            return prompt.text[len(self._head) :]
        messages = prompt.messages or []
        if self._column is not None:
            return text_of(messages[-1])
        head = [*self._system_turn, *self._turns]
        own = (turn for turn in messages if not any(turn is ours for ours in head))
        return "\n".join(text_of(turn) for turn in own)

    def _maker(self, *, chat: bool) -> Maker:
        if self._messages is not None:
            return self._from_messages
        if self._column is None and self._template is None:
            return self._from_auto
        read = self._read_template if self._template is not None else self._read_column
        return self._chat_maker(read) if chat else self._text_maker(read)

    def _chat_maker(self, read: Callable[[Record], str | list[int]]) -> Maker:
        head = [*self._system_turn, *self._turns]

        def make(record: Record, _: Found) -> Prompt:
            value = read(record)
            if isinstance(value, str):
                turns = [*head, {"role": "user", "content": value}]
                return Prompt(
                    messages=turns, tools=self._tools, template_kwargs=self._template_kwargs
                )
            return self._token_prompt(value)

        return make

    def _text_maker(self, read: Callable[[Record], str | list[int]]) -> Maker:
        head = self._head

        def make(record: Record, _: Found) -> Prompt:
            value = read(record)
            return Prompt(head + value) if isinstance(value, str) else self._token_prompt(value)

        return make

    def _from_auto(self, record: Record, found: Found) -> Prompt:
        given = [name for name in _AUTO_FIELDS if record.get(name) is not None]
        if not given:
            raise RowError("missing_prompt", _neither(record))
        if len(given) > 1:
            raise RowError("ambiguous_prompt", f"the row has both {' and '.join(given)}")
        value = record[given[0]]
        if given[0] == "messages":
            return self._chat_prompt(given[0], record, found)
        if given[0] == "prompt_token_ids" and not isinstance(value, list):
            raise RowError("bad_token_ids", "prompt_token_ids is not a list")
        parsed = _text_or_ids(given[0], value)
        if isinstance(parsed, str):
            return Prompt(self._head + parsed)
        return self._token_prompt(parsed)

    def _from_messages(self, record: Record, found: Found) -> Prompt:
        return self._chat_prompt(str(self._messages), record, found)

    def _chat_prompt(self, name: str, record: Record, found: Found) -> Prompt:
        found.at = [*found.at, name]
        messages = parse_messages(_field(record, name), found)
        tools = parse_tools(record.get("tools")) or self._tools
        own = parse_template_kwargs(record.get("chat_template_kwargs"))
        kwargs = {**self._template_kwargs, **own} if self._template_kwargs and own else None
        if self._system_turn or self._turns:
            messages = self._with_head(messages)
        return Prompt(
            messages=messages, tools=tools, template_kwargs=kwargs or own or self._template_kwargs
        )

    def _with_head(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if messages[0]["role"] in ("system", "developer"):
            return [messages[0], *self._turns, *messages[1:]]
        return [*self._system_turn, *self._turns, *messages]

    def _token_prompt(self, ids: list[int]) -> Prompt:
        if self._system_turn or self._turns:
            raise RowError(
                "bad_prompt", "the job's system and examples cannot be put ahead of token ids"
            )
        return Prompt(token_ids=ids)

    def _read_column(self, record: Record) -> str | list[int]:
        name = str(self._column)
        value = record.get(name)
        if type(value) is str and value:
            return value
        return _text_or_ids(name, _field(record, name))

    def _read_template(self, record: Record) -> str:
        text = self._render(record)
        if not text:
            raise RowError("empty_prompt", "the template gives an empty text")
        return text

    def _render(self, record: Record) -> str:
        if self._template is None:
            raise TypeError("no template")
        if self._own_system or self._own_examples:
            record = {"system": self._system, "examples": self._examples, **record}
        return self._template.render(record)

    def _example_text(self, number: int, fields: dict[str, Any]) -> str:
        try:
            if self._template is not None:
                # A template that shows the examples itself is not run on them.
                return "" if self._own_examples else self._render(fields)
            value = _field(fields, self._column or "prompt")
        except RowError as error:
            raise JobError(f"prompt.examples, number {number}: {error.message}") from None
        if not isinstance(value, str):
            raise JobError(f"prompt.examples, number {number}: the prompt is not text")
        return value


def _neither(record: Record) -> str:
    nulls = [name for name in _AUTO_FIELDS if name in record]
    if nulls:
        return f"{' and '.join(nulls)} of this row: null"
    return f"the row has neither prompt nor messages{did_you_mean('prompt', record)}"


def _field_or_null(record: Record, name: str) -> Any:
    """A column that may be null, but not missing: a name with a slip would drop every image."""
    if name not in record:
        raise RowError(
            "missing_field", f"the row has no field {name!r}{did_you_mean(name, record)}"
        )
    return record[name]


def _field(record: Record, name: str) -> Any:
    value = record.get(name)
    if value is not None:
        return value
    if name in record:
        raise RowError("missing_prompt", f"the field {name!r} is null")
    raise RowError("missing_field", f"the row has no field {name!r}{did_you_mean(name, record)}")


def _text_or_ids(name: str, value: Any) -> str | list[int]:
    if isinstance(value, str):
        if not value:
            raise RowError("empty_prompt", f"the field {name!r} is empty")
        return value
    if isinstance(value, list):
        return parse_token_ids(value)
    raise RowError(
        "bad_prompt",
        f"the field {name!r} is neither text nor a list of token ids but {type(value).__name__}",
    )


def _system_turn(system: str | None) -> list[dict[str, Any]]:
    return [] if system is None else [{"role": "system", "content": system}]


def _example_turns(shots: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        turn
        for text, answer in shots
        for turn in ({"role": "user", "content": text}, {"role": "assistant", "content": answer})
    ]


def _text_head(system: str | None, shots: list[tuple[str, str]]) -> str:
    parts = [] if system is None else [f"{system}\n\n"]
    for text, answer in shots:
        gap = "" if not text or text[-1].isspace() else " "
        parts.append(f"{text}{gap}{answer}\n\n")
    return "".join(parts)
