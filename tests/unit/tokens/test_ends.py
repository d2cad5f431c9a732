from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchwright.tokens.ends import main_end_token


@pytest.mark.parametrize(
    ("config", "tokenizer", "token_id"),
    [
        ({"eos_token": "<e>", "added_tokens_decoder": {"7": {"content": "<e>"}}}, {}, 7),
        ({"eos_token": {"content": "<e>"}}, {"added_tokens": [{"id": 8, "content": "<e>"}]}, 8),
        ({"eos_token": "</s>"}, {"model": {"vocab": {"</s>": 2}}}, 2),
        ({"eos_token": "</s>"}, {"model": {"vocab": [["</s>", 0.0]]}}, None),
        ({}, {}, None),
    ],
)
def test_the_tokenizers_own_end(
    config: dict[str, Any], tokenizer: dict[str, Any], token_id: int | None, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert main_end_token(str(tmp_path), None) == token_id


def test_a_tiny_model_and_none(tiny_model: Path, tmp_path: Path) -> None:
    assert main_end_token(str(tiny_model), None) == 2
    assert main_end_token("", None) is None
    assert main_end_token(str(tmp_path / "gone"), None) is None
