"""Estimated lengths: near enough, never a reason to refuse, equal for equal texts."""

from __future__ import annotations

from batchwright.core.records import Prompt
from batchwright.tokens.estimate import EstimatingTokenizer
from batchwright.tokens.fit import Fitter

TOKENIZER = EstimatingTokenizer()


def test_four_bytes_are_a_token_and_equal_beginnings_equal_ids() -> None:
    first, second, empty, chinese = TOKENIZER.encode(
        ["The soup was cold.", "The soup was hot", "", "汤是凉的"], add_special_tokens=True
    )
    assert (len(first), len(second), len(empty), len(chinese)) == (5, 4, 0, 3)
    assert first[:3] == second[:3]
    assert first[3] != second[3]
    assert all(0 <= one < TOKENIZER.vocab_size for one in [*first, *chinese])
    assert TOKENIZER.decode([first], [[]]) == ["The soup was cold."]
    assert TOKENIZER.spell(first[:2]) == ["The ", "soup"]


def test_a_chat_counts_all_that_is_sent() -> None:
    turns = [{"role": "user", "content": "hello"}]
    plain = TOKENIZER.render_chat(Prompt(messages=turns))
    tools = TOKENIZER.render_chat(Prompt(messages=turns, tools=[{"name": "f" * 40}]))
    assert "hello" in plain
    assert len(tools) > len(plain) + 40


def test_no_length_is_a_reason_to_refuse() -> None:
    fitter = Fitter(TOKENIZER, 1 << 30, "reject")
    (ids,) = TOKENIZER.encode(["x" * 1_000_000], add_special_tokens=True)
    fitted = fitter.fit(Prompt(text="x"), ids, 512, 1)
    assert (len(fitted.token_ids), fitted.max_tokens, fitted.truncated) == (250_000, 512, False)
