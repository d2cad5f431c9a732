"""The model's chat template: messages to text."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from batchwright.core.errors import JobError, RowError
from batchwright.core.records import Prompt

# Stand for the texts of messages, to see which of them a template prints.
_SYSTEM, _USER = "xSYSTEMxTEXTx", "xUSERxTEXTx"


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

    Raises:
        JobError: a template has a syntax error.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._plain = _source(tokenizer, None)
        self._tools = _source(tokenizer, [{}])
        self._failures = _failures()
        for source in filter(None, {self._plain, self._tools}):
            _check_syntax(tokenizer, source)

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
        _check_system_is_shown(self._tokenizer, source, messages)
        # A template that never heard of the role would print it as if it were known.
        if "developer" not in source and any(turn["role"] == "developer" for turn in messages):
            raise RowError(
                "chat_template_error", "the chat template does not know the role developer"
            )
        try:
            return _apply(
                self._tokenizer, messages, prompt.tools, source, prompt.template_kwargs or {}
            )
        except self._failures as error:
            raise RowError("chat_template_error", str(error) or type(error).__name__) from None


def _check_system_is_shown(tokenizer: Any, source: str, messages: list[dict[str, Any]]) -> None:
    """Refuse a system text that the template would drop without a word (as Gemma's first did)."""
    given = any(turn["role"] == "system" and turn["content"].strip() for turn in messages)
    if given and _drops_system(tokenizer, source):
        raise RowError(
            "chat_template_error",
            "the chat template leaves system messages out; prompt.role_fallback: merge puts their "
            "text ahead of the first user message",
        )


@lru_cache(maxsize=64)
def _drops_system(tokenizer: Any, source: str) -> bool:
    """Whether a template prints the user's text and not the system's ahead of it."""
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}]
    try:
        text = _apply(tokenizer, messages, None, source, {})
    except _failures():
        return False  # it says so itself
    return _USER in text and _SYSTEM not in text


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
