from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.core.errors import RowError
from batchwright.core.records import Prompt
from batchwright.tokens.byte_level import ByteTokenizer
from batchwright.tokens.fit import Fitted, Fitter, InputFitter, OverLength
from batchwright.tokens.hf import HfTokenizer

WORDS = " ".join(f"{number} question" for number in range(100))
CHAT = Prompt(messages=[{"role": "user", "content": WORDS}])


class Trimming(ByteTokenizer):
    """As the templates of Llama 3 and Gemma do."""

    def render_chat(self, prompt: Prompt) -> str:
        return f"<{(prompt.messages or [])[-1]['content'].strip()}>"


class Twice(ByteTokenizer):
    def render_chat(self, prompt: Prompt) -> str:
        return "".join(f"<{turn['content'] * 2}>" for turn in prompt.messages or [])


class Picky(ByteTokenizer):
    def render_chat(self, prompt: Prompt) -> str:
        content: str = (prompt.messages or [])[-1]["content"]
        if " " not in content:
            raise RowError("chat_template_error", "one word only")
        return content


def test_a_prompt_that_leaves_room_is_never_cut() -> None:
    fitter = Fitter(ByteTokenizer(), 10, "truncate_left")
    ids = list(range(9))
    assert fitter.fit(Prompt(token_ids=ids), ids, 5, 1) == Fitted(ids, 1, truncated=False)


@pytest.mark.parametrize("policy", ["reject", "truncate_left", "truncate_right"])
def test_an_answer_as_long_as_the_context_has_no_room(policy: OverLength) -> None:
    fitter = Fitter(ByteTokenizer(), 10, policy)
    with pytest.raises(RowError, match="prompt_too_long"):
        fitter.fit(Prompt(token_ids=[1]), [1], 20, 10)


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_right"])
def test_a_real_chat_keeps_its_frame(tiny_model: Path, policy: OverLength) -> None:
    tokenizer = HfTokenizer.load(str(tiny_model))
    (ids,) = tokenizer.encode([tokenizer.render_chat(CHAT)], add_special_tokens=False)
    head, tail = tokenizer.encode(
        ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"], add_special_tokens=False
    )
    cut = Fitter(tokenizer, 100, policy).fit(CHAT, ids, 20, 1)
    assert (len(cut.token_ids), cut.max_tokens, cut.truncated) == (80, 20, True)
    assert cut.token_ids[: len(head)] == head
    assert cut.token_ids[-len(tail) :] == tail
    (text,) = tokenizer.decode([cut.token_ids[len(head) : -len(tail)]], [[]])
    assert WORDS.endswith(text) if policy == "truncate_left" else WORDS.startswith(text)


def test_a_template_may_trim_the_content() -> None:
    prompt = Prompt(messages=[{"role": "user", "content": "  " + "x" * 30 + "yz\n"}])
    ids = list(Trimming().render_chat(prompt).encode())
    cut = Fitter(Trimming(), 20, "truncate_left").fit(prompt, ids, 10, 1)
    assert bytes(cut.token_ids) == b"<xxxxxxyz>"


@pytest.mark.parametrize("tokenizer", [Twice(), Picky()])
def test_a_template_that_does_not_show_where_to_cut_rejects_the_row(
    tokenizer: ByteTokenizer,
) -> None:
    ids = list(tokenizer.render_chat(CHAT).encode())
    with pytest.raises(RowError, match="chat template does not let it be cut") as caught:
        Fitter(tokenizer, 100, "truncate_right").fit(CHAT, ids, 20, 1)
    assert caught.value.code == "prompt_too_long"


CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def bert(tiny_bert: Path) -> HfTokenizer:
    return HfTokenizer.load(str(tiny_bert))


def test_an_input_has_each_special_token_once(bert: HfTokenizer) -> None:
    fitter = InputFitter(bert, 128, "reject")
    plain, spelled, empty = fitter.encode(["one two", "[CLS] one two [SEP]", ""])
    assert plain == spelled
    assert (plain[0], plain[-1], plain.count(CLS), plain.count(SEP)) == (CLS, SEP, 1, 1)
    assert empty == [CLS, SEP]


@pytest.mark.parametrize("over_length", ["truncate_left", "truncate_right"])
def test_truncation_of_an_input_keeps_the_special_tokens(
    bert: HfTokenizer, over_length: OverLength
) -> None:
    fitter = InputFitter(bert, 16, over_length)
    (whole,) = InputFitter(bert, 16, "reject").encode([WORDS])
    (ids,) = fitter.encode([WORDS])
    fitted = fitter.fit(ids)
    body = whole[1:15] if over_length == "truncate_right" else whole[-15:-1]
    assert fitted == Fitted([CLS, *body, SEP], 0, truncated=True)
    assert fitter.fit(whole[:15]) == Fitted(whole[:15], 0, truncated=False)


def test_an_input_as_long_as_the_context_fits(bert: HfTokenizer) -> None:
    fitter = InputFitter(bert, 16, "reject")
    assert fitter.fit([CLS, *[9] * 14, SEP]).truncated is False
    with pytest.raises(RowError, match="the input has 17 tokens; the model reads 16 at most"):
        fitter.fit([CLS, *[9] * 15, SEP])


@pytest.mark.parametrize("text", [WORDS * 5, "x" * 2000, "word " + "y" * 900, "z " * 3 + "w" * 600])
def test_a_long_text_gives_the_same_tokens_as_if_read_whole(bert: HfTokenizer, text: str) -> None:
    fitter = InputFitter(bert, 16, "truncate_right")
    (shortened,) = fitter.encode([text])
    (whole,) = InputFitter(bert, 16, "reject").encode([text])
    assert fitter.fit(shortened) == fitter.fit(whole)._replace(truncated=len(whole) > 16)
