from __future__ import annotations

from typing import Any

import pytest

from batchwright.validate.merging import merge_roles


def turns(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


CASES = [
    (turns(("system", "Be brief."), ("user", "hi")), turns(("user", "Be brief.\n\nhi"))),
    (turns(("user", "one"), ("user", "two")), turns(("user", "one\n\ntwo"))),
    (turns(("system", "a"), ("developer", "b"), ("user", "c")), turns(("user", "a\n\nb\n\nc"))),
    (turns(("system", ""), ("user", "c")), turns(("user", "c"))),
    (turns(("system", "only")), turns(("user", "only"))),
    (
        turns(("user", "q"), ("assistant", "a"), ("system", "late"), ("user", "r")),
        turns(("user", "late\n\nq"), ("assistant", "a"), ("user", "r")),
    ),
]


@pytest.mark.parametrize(("messages", "merged"), CASES)
def test_messages_are_brought_to_user_and_assistant(messages: Any, merged: Any) -> None:
    before = [dict(turn) for turn in messages]
    assert merge_roles(messages) == merged
    assert messages == before


def test_tool_calls_are_not_joined() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    messages = [*turns(("user", "q")), call, call]
    assert merge_roles(messages) == messages
