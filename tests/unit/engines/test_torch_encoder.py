"""The parts of the torch engine against numpy; the engine as a whole: tests/contract."""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchwright.core.errors import JobError, MissingExtra
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.core.tasks import TaskSettings
from batchwright.core.vectors import EmbeddingSettings
from batchwright.engines.torch_batches import Shape
from batchwright.engines.torch_encoder import TorchEncoder
from batchwright.engines.torch_model import import_torch, parse_options
from batchwright.engines.torch_padded import PaddedLayout, pool
from tests.support.tiny_bert import HIDDEN, make_tiny_bert

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.vllm  # the extra that brings torch


def by_hand(states: np.ndarray, lengths: list[int], pooling: str) -> np.ndarray:
    rows = [row[:length] for row, length in zip(states, lengths, strict=True)]
    return np.stack(
        [{"mean": row.mean(0), "cls": row[0], "last": row[-1]}[pooling] for row in rows]
    )


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_leaves_the_padding_out(pooling: str) -> None:
    states = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    lengths = [5, 1, 3]
    wanted = by_hand(states, lengths, pooling)
    states[1, 1:] = np.nan  # what stands in the padding must not matter, whatever it is
    mask = np.arange(5) < np.array(lengths)[:, None]
    tensors = [torch.from_numpy(np.asarray(one)) for one in (states, mask, lengths)]
    made = pool(*tensors, pooling).numpy()
    np.testing.assert_allclose(made, wanted, rtol=1e-6)


def test_a_batch_is_packed_into_one_buffer() -> None:
    into = np.full(20, -7, np.int32)
    batch = [Request(0, array("i", [5, 6, 7]), 0, ""), Request(1, [8], 0, "")]
    layout = PaddedLayout(pad_id=1)
    assert layout.pack(into, batch) == Shape(8, 2, 3, padded=True)
    assert into[:9].tolist() == [3, 1, 5, 6, 7, 8, 1, 1, -7]
    assert layout.pack(into, batch[:1] * 2) == Shape(8, 2, 3, padded=False)
    assert into[:8].tolist() == [3, 3, 5, 6, 7, 5, 6, 7]


def test_unknown_options_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(JobError, match="Did you mean max_batch_tokens"):
        parse_options({"max_batch_token": 5})


def settings(model: Path, **fields: Any) -> EngineSettings:
    embedding = EmbeddingSettings("mean", fields.pop("dimensions", HIDDEN))
    return EngineSettings(
        "torch", str(model), 64, 128, (), 0, fields, TaskSettings("embed", embedding)
    )


def answers(engine: TorchEncoder, prompts: list[list[int]]) -> list[list[float]]:
    engine.submit([Request(row, ids, 0, "{}") for row, ids in enumerate(prompts)])
    found = {}
    while len(found) < len(prompts):
        found.update({one.row: one for one in engine.step(1.0)})
    vectors = [found[row].embedding for row in range(len(prompts))]
    return [np.frombuffer(vector or b"", np.float32).tolist() for vector in vectors]


def test_vectors_do_not_depend_on_the_batch(tiny_bert: Path) -> None:
    engine = TorchEncoder()
    engine.start(settings(tiny_bert, max_batch_tokens=300))
    prompts = [[2, *range(10, 10 + n), 3] for n in (1, 90, 4, 30, 31, 2, 60, 90)]
    together = answers(engine, prompts)
    alone = [answers(engine, [prompt])[0] for prompt in prompts]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert engine.gauges().prompt_tokens == 2 * sum(map(len, prompts))
    engine.stop()


def test_random_weights_need_no_weights_file(tmp_path: Path) -> None:
    model = make_tiny_bert(tmp_path / "bert")
    (model / "model.safetensors").unlink()
    engine = TorchEncoder()
    with pytest.raises(JobError, match="has no weights"):
        engine.start(settings(model))
    engine.start(settings(model, load_format="dummy", dimensions=8))
    assert [len(vector) for vector in answers(engine, [[2, 9, 3]])] == [8]
    engine.stop()


def test_weights_that_cannot_be_read_are_an_error_with_the_way_out(tmp_path: Path) -> None:
    model = make_tiny_bert(tmp_path / "bert")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(JobError, match="cannot load") as raised:
        TorchEncoder().start(settings(model))
    assert "engine.kind: vllm" in raised.value.hint
    assert "transformers 5" in raised.value.hint


def test_a_transformers_that_cannot_be_imported_is_an_error_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match="needs torch and transformers") as raised:
        import_torch(parse_options({}))
    assert "pip install" in raised.value.hint


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    model = make_tiny_bert(tmp_path / "bert")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(JobError, match=r"lack 16 tensors, first encoder\.layer\.2"):
        TorchEncoder().start(settings(model))
