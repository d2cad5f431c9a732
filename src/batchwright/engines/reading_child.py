"""The child side of the answer parsers: loads vLLM's, and reads answers until its parent is gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import orjson

from batchwright.core.errors import BatchwrightError, JobError, MissingExtra
from batchwright.engines.child import watch_parent
from batchwright.engines.reading import RawAnswer, ReadAnswer, ReaderSettings
from batchwright.engines.vllm_setup import import_problem


def main() -> None:
    """Entry point, with two arguments: the pipe's file descriptor and the parent's process id."""
    connection = Connection(int(sys.argv[1]))
    watch_parent(int(sys.argv[2]))
    try:
        settings = connection.recv()
        try:
            parsers = Parsers(settings)
        except BatchwrightError as error:
            connection.send(("error", error))
            return
        connection.send(("ready", []))
        while True:
            connection.send(("read", parsers.read(connection.recv())))
    except (EOFError, ConnectionError):
        return
    finally:
        connection.close()


class Parsers:
    """vLLM's parsers for one model. Raises JobError."""

    def __init__(self, settings: ReaderSettings) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        self._settings = settings
        self._tokenizer = _load_tokenizer(settings)
        self._parser_class = _parser_class(settings, self._tokenizer)
        self._made: dict[tuple[str, str], tuple[Any, Any]] = {}

    def read(self, answers: Sequence[RawAnswer]) -> list[ReadAnswer]:
        """The parts of each answer, in order."""
        return [self._read_one(answer) for answer in answers]

    def _read_one(self, answer: RawAnswer) -> ReadAnswer:
        parser, request = self._parser(answer.tools, answer.template_kwargs)
        text = answer.text
        if text is None:
            ids = list(answer.token_ids[: answer.num_text_ids])
            text = self._tokenizer.decode(ids, skip_special_tokens=request.skip_special_tokens)
        reasoning, content, calls = parser.parse(
            text,
            request,
            enable_auto_tools=bool(answer.tools),
            model_output_token_ids=list(answer.token_ids),
        )
        found = None
        if calls:
            found = tuple((call.id or "", call.name, call.arguments) for call in calls)
        if not content:
            content = None if found or reasoning else ""
        return ReadAnswer(content, reasoning, found)

    def _parser(self, tools: str, template_kwargs: str) -> tuple[Any, Any]:
        """A parser with the request that it reads for; it keeps state only while streaming."""
        key = (tools, template_kwargs)
        if key not in self._made:
            if len(self._made) >= 64:
                self._made.clear()
            self._made[key] = self._new_parser(tools, template_kwargs)
        return self._made[key]

    def _new_parser(self, tools: str, template_kwargs: str) -> tuple[Any, Any]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        kwargs = orjson.loads(template_kwargs or "{}")
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": ""}]}
        if tools:
            fields |= {"tools": orjson.loads(tools), "tool_choice": "auto"}
        if kwargs:
            fields["chat_template_kwargs"] = kwargs
        request = ChatCompletionRequest(**fields)
        more = {"chat_template_kwargs": kwargs} if kwargs else {}
        parser = self._parser_class(self._tokenizer, request.tools, **more)
        return parser, parser.adjust_request(request)


def _load_tokenizer(settings: ReaderSettings) -> Any:
    try:
        from vllm.tokenizers import get_tokenizer
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"reasoning and tool call parsers are vLLM's, which is not installed ({error})",
            "pip install 'batchwright[vllm]'",
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        raise import_problem(error) from error
    return get_tokenizer(
        settings.tokenizer,
        revision=settings.revision,
        trust_remote_code=settings.trust_remote_code,
    )


def _parser_class(settings: ReaderSettings, tokenizer: Any) -> Any:
    from vllm.parser.parser_manager import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for key, name, manager in (
        ("reasoning_parser", settings.reasoning_parser, ReasoningParserManager),
        ("tool_call_parser", settings.tool_call_parser, ToolParserManager),
    ):
        known = manager.list_registered()
        if name is not None and name not in known:
            raise JobError(
                f"model.{key}: vLLM has no parser {name!r}", f"There are {', '.join(known)}."
            )
    try:
        found = ParserManager.get_parser(
            tool_parser_name=settings.tool_call_parser,
            reasoning_parser_name=settings.reasoning_parser,
            enable_auto_tools=settings.tool_call_parser is not None,
            model_name=settings.model,
            is_harmony=settings.reasoning_parser == "openai_gptoss",
        )
        assert found is not None, "one of the two is named"
        found(tokenizer)  # some want a token that this tokenizer may not have
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        names = filter(None, (settings.reasoning_parser, settings.tool_call_parser))
        raise JobError(
            f"the parsers {' and '.join(names)} do not suit {settings.model}: {error}",
            "Check model.reasoning_parser and model.tool_call_parser.",
        ) from error
    return found
