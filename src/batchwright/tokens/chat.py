"""The model's chat template: messages to text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from batchwright.core.errors import JobError, RowError
from batchwright.core.records import Prompt
from batchwright.tokens.media import in_words

# Stand for the texts of messages, to see which of them a template prints.
_SYSTEM, _USER = "xSYSTEMxTEXTx", "xUSERxTEXTx"

_DROPPED = (
    "the chat template leaves system messages out; prompt.role_fallback: merge puts their text "
    "ahead of the first user message"
)


@cache
def _failures() -> tuple[type[BaseException], ...]:
    """What running a chat template can raise: Jinja's errors, and Python's from its filters."""
    from jinja2 import TemplateError

    return (
        TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError,
        RuntimeError, TypeError, ValueError,
    )  # fmt: skip


class ChatTemplate:
    """The chat templates of a tokenizer: the default one, and one for rows with tools.

    Args:
        tokenizer: a transformers tokenizer; its `chat_template` may hold several by name.
        placeholders: what stands for an image or a sound in a text, for templates that take texts
            only.

    Raises:
        JobError: a template has a syntax error.
    """

    def __init__(self, tokenizer: Any, placeholders: Mapping[str, str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._placeholders = placeholders or {}
        self._plain = _source(tokenizer, None)
        self._tools = _source(tokenizer, [{}])
        self._failures = _failures()
        for source in filter(None, {self._plain, self._tools}):
            _check_syntax(tokenizer, source)
        sources = {self._plain, self._tools}
        self._shapes = {source: self._shape(source) for source in sources}
        self._drops_system = {source: self._leaves_out_system(source) for source in sources}

    def __bool__(self) -> bool:
        return bool(self._plain or self._tools)

    def render(self, prompt: Prompt) -> str:
        """The text of `prompt.messages`, with the header of the answer at its end.

        Raises:
            RowError: `no_chat_template`, or `chat_template_error` with the template's message.
        """
        messages = prompt.messages or []
        source = self._tools if prompt.tools else self._plain
        if not source:
            what = "no default chat template" if self else "no chat template"
            raise RowError("no_chat_template", f"the model has {what}; set model.chat_template")
        check_last_role(prompt)
        if self._drops_system[source] and any(map(_is_system_text, messages)):
            raise RowError("chat_template_error", _DROPPED)
        # A template that never heard of the role would print it as if it were known.
        if "developer" not in source and any(turn["role"] == "developer" for turn in messages):
            raise RowError(
                "chat_template_error", "the chat template does not know the role developer"
            )
        messages = self._in_shape(messages, self._shapes[source])
        try:
            return _apply(
                self._tokenizer, messages, prompt.tools, source, prompt.template_kwargs or {}
            )
        except self._failures as error:
            raise RowError("chat_template_error", str(error) or type(error).__name__) from None

    def _shape(self, source: str | None) -> _Shape:
        """Find out, once, in which forms a template shows the content of a message."""
        parts = [{"type": "text", "text": _PROBE}]
        takes_parts = self._shows(source, parts)
        return _Shape(takes_parts, takes_texts=not takes_parts or self._shows(source, _PROBE))

    def _shows(self, source: str | None, content: Any) -> bool:
        if not source:
            return False
        try:
            text = _apply(self._tokenizer, [{"role": "user", "content": content}], None, source, {})
        except self._failures:
            return False
        # A template for texts only prints the list itself, as Python or JSON would.
        return _PROBE in text and "'text':" not in text and '"text":' not in text

    def _leaves_out_system(self, source: str | None) -> bool:
        """Whether a template prints the user's text and not the system's ahead of it."""
        if not source:
            return False
        turns = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}]
        shaped = self._in_shape(turns, self._shapes[source])
        try:
            text = _apply(self._tokenizer, shaped, None, source, {})
        except self._failures:
            return False  # it says so itself
        return _USER in text and _SYSTEM not in text

    def _in_shape(self, messages: list[dict[str, Any]], shape: _Shape) -> list[dict[str, Any]]:
        """Messages as the template reads them: mostly they are so already."""
        if shape.takes_parts:
            if shape.takes_texts:
                return messages
            # Templates of vision models often look for parts only, and print no text at all.
            return [_with_parts(message) for message in messages]
        if all(isinstance(message["content"], str) for message in messages):
            return messages
        return [in_words(message, self._placeholders) for message in messages]


_PROBE = "xBATCHWRIGHTxPROBEx"


class _Shape(NamedTuple):
    """The forms of a message's content that a template shows."""

    takes_parts: bool
    takes_texts: bool


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message["content"], str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _is_system_text(turn: dict[str, Any]) -> bool:
    content = turn["content"]
    return turn["role"] == "system" and bool(
        content.strip() if isinstance(content, str) else content
    )


def named_template(templates: Any, name: str) -> str:
    """One of a model's own templates. Raises JobError naming those that there are."""
    known = templates if isinstance(templates, dict) else {"default": templates}
    if isinstance(known.get(name), str):
        return str(known[name])
    names = ", ".join(sorted(key for key in known if known[key])) or "none"
    raise JobError(
        f"model.chat_template: {name} is neither a file nor one of the model's templates "
        f"(there are: {names})",
        "Give the path of a Jinja2 file, or one of these names.",
    )


def check_last_role(prompt: Prompt) -> None:
    """Refuse a last message of the assistant, unless the model is asked to go on with it."""
    messages = prompt.messages or []
    kwargs = prompt.template_kwargs or {}
    if kwargs.get("add_generation_prompt") is False:
        return  # no answer is asked for: the conversation itself is judged
    going_on = bool(kwargs.get("continue_final_message"))
    if messages and (messages[-1]["role"] == "assistant") != going_on:
        end = "an assistant message"
        if going_on:
            raise RowError(
                "chat_template_error", f"continue_final_message: the messages do not end with {end}"
            )
        raise RowError(
            "chat_template_error",
            f"the messages end with {end}; chat_template_kwargs: {{continue_final_message: true}} "
            "goes on with it",
        )


def _source(tokenizer: Any, tools: list[dict[str, Any]] | None) -> str | None:
    if tokenizer.chat_template is None:
        return None
    try:
        return str(tokenizer.get_chat_template(None, tools))
    except ValueError:
        return None


def _apply(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    source: str,
    kwargs: dict[str, Any],
) -> str:
    # transformers keeps compiled templates by their source: calling them directly is no faster.
    return str(
        tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=source,
            tokenize=False,
            **{"add_generation_prompt": not kwargs.get("continue_final_message"), **kwargs},
        )
    )


def _check_syntax(tokenizer: Any, source: str) -> None:
    """Find a syntax error now: later it would refuse each row by itself."""
    from jinja2 import TemplateSyntaxError

    try:
        _apply(tokenizer, [{"role": "user", "content": "x"}], None, source, {})
    except TemplateSyntaxError as error:
        raise JobError(
            f"the chat template, line {error.lineno}: {error.message}",
            "Give a working one with model.chat_template.",
        ) from None
    except _failures():
        # It compiles; whether it takes these messages is for each row to find out.
        return
