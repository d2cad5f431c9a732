"""Packed rows: each sees only itself, whatever stands beside it."""

from __future__ import annotations

from array import array
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchwright.core.records import Request
from batchwright.engines.torch_batches import Shape
from batchwright.engines.torch_packed import (
    ATTENTION,
    PackedLayout,
    TokenBatches,
    can_pack,
    first_position,
)
from batchwright.engines.torch_padded import PaddedLayout
from tests.support.tiny_bert import make_tiny_bert

torch = pytest.importorskip("torch")

PROMPTS = [[2, *range(10, 10 + n), 3] for n in (1, 90, 4, 30, 31, 2, 60, 90, 1)]


def row_by_row(query: Any, key: Any, value: Any, bounds: Any, *_: Any, scale: float) -> Any:
    """What torch's kernel computes on a GPU, slowly: [tokens, heads, size]."""
    ends = bounds.tolist()
    parts = []
    for start, stop in pairwise(ends):
        one = [tensor[start:stop].transpose(0, 1) for tensor in (query, key, value)]
        seen = torch.nn.functional.scaled_dot_product_attention(*one, scale=scale)
        parts.append(seen.transpose(0, 1))
    return torch.cat(parts)


def requests() -> list[Request]:
    return [Request(row, array("i", ids), 0, "") for row, ids in enumerate(PROMPTS)]


def encode(model: Any, layout: Any, pooling: str) -> np.ndarray:
    into = np.zeros(4096, np.int32)
    shape = layout.pack(into, requests())
    with torch.inference_mode():
        there = torch.from_numpy(into[: shape.size])
        return layout.vectors(model, there, shape, pooling).numpy()


def models(folder: Path, kind: str) -> tuple[Any, Any, Any]:
    """The same weights twice: with our attention over packed rows, and with torch's own."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(make_tiny_bert(folder / "bert"))
    if kind == "roberta":
        from transformers import RobertaConfig

        fields = {**config.to_dict(), "model_type": "roberta", "pad_token_id": 1}
        config = RobertaConfig(**fields)
    layout = PackedLayout(row_by_row, first_position(config))
    layout.register()
    torch.manual_seed(0)
    usual = AutoModel.from_config(deepcopy(config), attn_implementation="sdpa").eval()
    packed = AutoModel.from_config(deepcopy(config), attn_implementation=ATTENTION).eval()
    packed.load_state_dict(usual.state_dict())
    return layout, packed, usual


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_packed_vectors_equal_padded_ones(tmp_path: Path, kind: str, pooling: str) -> None:
    layout, packed, usual = models(tmp_path, kind)
    made = encode(packed, layout, pooling)
    wanted = encode(usual, PaddedLayout(usual.config.pad_token_id), pooling)
    assert made.shape == (len(PROMPTS), 128)
    np.testing.assert_allclose(made, wanted, atol=2e-5)


def test_rows_stand_one_behind_the_other() -> None:
    into = np.full(12, -7, np.int32)
    batch = [Request(0, array("i", [5, 6, 7]), 0, ""), Request(1, [8], 0, "")]
    assert PackedLayout(row_by_row, 0).pack(into, batch) == Shape(6, 2, 3, padded=False)
    assert into[:7].tolist() == [3, 1, 5, 6, 7, 8, -7]


def test_batches_end_before_their_budget_does() -> None:
    queue = TokenBatches(100)
    queue.add(requests())
    queue.remove([2])
    taken = []
    while batch := queue.take():
        taken.append([one.row for one in batch])
        assert len(batch) == 1 or sum(len(one.token_ids) for one in batch) <= 100
    assert [row for batch in taken for row in batch] == [0, 1, 3, 4, 5, 6, 7, 8]
    assert taken[0] == [0, 1]
    assert not len(queue)


def test_a_row_longer_than_the_budget_has_a_batch_of_its_own() -> None:
    queue = TokenBatches(10)
    queue.add(requests())
    assert [len(queue.take()) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "device", "dtype", "can"),
    [
        ("bert", "cuda", "float16", True),
        ("xlm-roberta", "cuda", "bfloat16", True),
        ("bert", "cpu", "float32", False),
        ("bert", "cuda", "float32", False),
        ("qwen3", "cuda", "bfloat16", False),
    ],
)
def test_what_can_be_packed(kind: str, device: str, dtype: str, can: bool) -> None:
    assert can_pack(kind, device, dtype) == can
