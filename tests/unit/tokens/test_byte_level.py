from __future__ import annotations

import pytest

from batchwright.core.errors import RowError
from batchwright.core.records import Prompt
from batchwright.tokens.byte_level import ByteTokenizer


def test_bytes_there_and_back() -> None:
    tokenizer = ByteTokenizer()
    texts = ["Grüße 🎉", "", "\ud800"]
    rows = tokenizer.encode(texts, add_special_tokens=True)
    assert len(rows[0]) == len(texts[0].encode())
    assert tokenizer.decode(rows, [[]] * 3) == ["Grüße 🎉", "", "?"]
    assert tokenizer.decode([[0xF0, 0x9F]], [[]]) == ["\ufffd"]
    assert (tokenizer.vocab_size, tokenizer.exact) == (256, False)
    assert (tokenizer.eos_token_ids, tokenizer.special_tokens) == ((), ())


def test_chat_is_plain_lines() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.has_chat_template
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(Prompt(messages=messages)) == "system: S\nuser: hi\nassistant:"
    with pytest.raises(RowError, match="chat_template_error"):
        tokenizer.render_chat(Prompt(messages=[{"role": "assistant", "content": "x"}]))
