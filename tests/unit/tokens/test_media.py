from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from batchwright.core.errors import RowError
from batchwright.core.media import MediaReference
from batchwright.core.records import Prompt
from batchwright.tokens.byte_level import ByteTokenizer
from batchwright.tokens.chat import ChatTemplate
from batchwright.tokens.fit import Fitter
from batchwright.tokens.media import GUESSED_TOKENS, MediaTokens, media_token_counts

TEXT_ONLY = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
PARTS_ONLY = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% for p in m.content | selectattr('type', 'equalto', 'image') %} <img>{% endfor %}"
    "{% for p in m.content | selectattr('type', 'equalto', 'text') %} {{ p.text }}{% endfor %}\n"
    "{% endfor %}"
)
PICTURE = Prompt(
    messages=[
        {"role": "system", "content": "look"},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]},
    ],
    media=(MediaReference("image", "/a.png"),),
)
PLAIN = Prompt(messages=[{"role": "user", "content": "hello"}])


def template(source: str, **placeholders: str) -> ChatTemplate:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    tokenizer.chat_template = source
    return ChatTemplate(tokenizer, placeholders)


def test_a_template_for_parts_gets_parts_also_for_plain_text() -> None:
    """Else it would look for parts in the text's letters, and print nothing."""
    vision = template(PARTS_ONLY)
    assert vision.render(PICTURE) == "[system] look[user] <img> what?"
    assert vision.render(PLAIN) == "[user] hello"


def test_a_template_for_texts_gets_the_models_own_placeholder() -> None:
    text = template(TEXT_ONLY, image="<image>")
    assert text.render(PICTURE) == "[system] look\n[user] <image>\nwhat?\n"
    assert text.render(PLAIN) == "[user] hello\n"


def test_a_model_without_a_placeholder_takes_no_image() -> None:
    with pytest.raises(RowError, match="take no image in messages") as caught:
        template(TEXT_ONLY).render(PICTURE)
    assert caught.value.code == "chat_template_error"


LLAVA = {
    "model_type": "llava",
    "vision_config": {"image_size": 336, "patch_size": 14},
    "vision_feature_select_strategy": "default",
}
QWEN = ({"model_type": "qwen2_vl"},
        {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1_003_520})  # fmt: skip


@pytest.mark.parametrize(
    ("config", "preprocessor", "size", "tokens"),
    [
        (LLAVA, {}, (10, 10), 576),
        ({**LLAVA, "vision_feature_select_strategy": "full"}, {}, None, 577),
        ({"model_type": "gemma3", "mm_tokens_per_image": 256}, {}, None, 256),
        (*QWEN, (512, 512), 18 * 18),
        (*QWEN, (1000, 300), 36 * 11),
        (*QWEN, (4000, 3000), 41 * 30),
        (*QWEN, (10, 10), 2 * 2),
    ],
)
def test_tokens_of_an_image_follow_from_the_models_files(
    config: dict[str, Any], preprocessor: dict[str, Any], size: Any, tokens: int
) -> None:
    counts = media_token_counts(config, preprocessor)
    # One stands in the prompt already.
    assert counts.count("image", size) == tokens - 1


def test_what_is_not_known_is_guessed() -> None:
    assert MediaTokens().count("image") == GUESSED_TOKENS["image"]
    assert MediaTokens().count("audio") == GUESSED_TOKENS["audio"]
    assert not media_token_counts({"model_type": "qwen2_vl"}, {}).needs_size
    assert media_token_counts(*QWEN).needs_size


def test_images_count_for_the_limit_and_are_never_cut() -> None:
    fitter = Fitter(ByteTokenizer(), 100, "truncate_left")
    assert fitter.fit(PICTURE, [1] * 20, 50, 1, 60).max_tokens == 20
    with pytest.raises(RowError, match="the prompt has 120 tokens") as caught:
        fitter.fit(PICTURE, [1] * 20, 50, 1, 100)
    assert caught.value.code == "prompt_too_long"
    assert fitter.fit(PLAIN, [1] * 120, 50, 1).truncated
