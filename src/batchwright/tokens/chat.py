"""The model's chat template, compiled once and called per row."""

from __future__ import annotations

from typing import Any

from batchwright.core.errors import JobError, RowError
from batchwright.core.records import Prompt


def _failures() -> tuple[type[BaseException], ...]:
    """What running a chat template can raise: Jinja's errors, and Python's from its filters."""
    from jinja2 import TemplateError

    return (
        TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError,
        RuntimeError, TypeError, ValueError,
    )  # fmt: skip


class ChatTemplate:
    """Renders messages exactly as `tokenizer.apply_chat_template` does, without its overhead.

    Args:
        tokenizer: a transformers tokenizer; its `chat_template` may hold several by name.

    Raises:
        JobError: a template has a syntax error.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._variables = dict(tokenizer.special_tokens_map)
        self._plain_source = _source(tokenizer, None)
        self._tools_source = _source(tokenizer, [{}])
        self._plain = _compile(self._plain_source)
        self._tools = _compile(self._tools_source)
        self._failures = _failures()

    def __bool__(self) -> bool:
        return self._plain is not None or self._tools is not None

    def render(self, prompt: Prompt) -> str:
        """The text of `prompt.messages`, with the header of the answer at its end.

        Raises:
            RowError: `no_chat_template`, or `chat_template_error` with the template's message.
        """
        messages = prompt.messages or []
        template, source = self._choose(prompt)
        check_last_role(messages)
        # A template that never heard of the role would print it as if it were known.
        if "developer" not in source and any(turn["role"] == "developer" for turn in messages):
            raise RowError(
                "chat_template_error", "the chat template does not know the role developer"
            )
        try:
            text = template.render(
                messages=messages,
                tools=prompt.tools,
                documents=None,
                add_generation_prompt=True,
                **self._variables,
            )
        except self._failures as error:
            raise RowError("chat_template_error", str(error) or type(error).__name__) from None
        return str(text)

    def _choose(self, prompt: Prompt) -> tuple[Any, str]:
        template = self._tools if prompt.tools else self._plain
        source = self._tools_source if prompt.tools else self._plain_source
        if template is None or source is None:
            what = "no default chat template" if self else "no chat template"
            raise RowError("no_chat_template", f"the model has {what}; set model.chat_template")
        return template, source


def check_last_role(messages: list[dict[str, Any]]) -> None:
    """Refuse a last message of the assistant: there is no option to go on with it yet."""
    if messages and messages[-1]["role"] == "assistant":
        raise RowError("chat_template_error", "the messages end with an assistant message")


def _source(tokenizer: Any, tools: list[dict[str, Any]] | None) -> str | None:
    if tokenizer.chat_template is None:
        return None
    try:
        return str(tokenizer.get_chat_template(None, tools))
    except ValueError:
        return None


def _compile(source: str | None) -> Any:
    """The compiled template, in the environment that transformers makes for it."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils import chat_template_utils

    if source is None:
        return None
    try:
        return chat_template_utils._compile_jinja_template(source)
    except TemplateSyntaxError as error:
        raise JobError(
            f"the chat template, line {error.lineno}: {error.message}",
            "Give a working one with model.chat_template.",
        ) from None
