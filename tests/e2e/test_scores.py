"""Labels, scores and rewards of real models by vLLM are transformers' own; bad rows go alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from batchwright.config.job import Job
from batchwright.core.schemas import LABELS_KEY
from batchwright.equip.equipment import job_tokenizer
from batchwright.pipeline import export
from tests.support.tiny_bert import CONTEXT, texts
from tests.support.tiny_heads import STEP_TOKEN, make_bert_head, make_qwen_head, make_qwen_reward
from tests.unit.rundir.small_runs import Row, small_run

pytestmark = pytest.mark.vllm

LABELS = ["sad", "glad", "mad"]
COUNT = 40
SHORT = [text for text in texts(400, seed=5) if len(text) < 60][:COUNT]
LONG = " ".join(texts(40, seed=9))
EVERY = {"run__max_failed": 1.0, "run__stop_at_failed": 1.0, "engine__kind": "vllm"}
FLOAT32 = {"model__dtype": "float32"}


def ignore(_rows: int) -> None:
    return


class Case(NamedTuple):
    """A model with its rows, and how its job says what is asked."""

    make: Callable[[Path, Path], Path]
    rows: list[Row]
    settings: dict[str, Any]


PAIRS: list[Row] = [{"query": SHORT[row], "document": SHORT[-1 - row]} for row in range(COUNT)]
BAD_PAIRS: list[Row] = [
    {"query": "one"}, {"query": "", "document": "two"}, {"query": "one", "document": None},
    {"query": "one", "document": LONG},
]  # fmt: skip
LISTS: list[Row] = [
    {"query": SHORT[0], "documents": [SHORT[1], LONG, None, SHORT[2]]},
    {"query": SHORT[3], "documents": [SHORT[4]]},
    {"query": SHORT[3], "documents": [LONG]},
]
TEXTS: list[Row] = [*({"text": text} for text in SHORT), {"text": ""}, {"text": LONG}]
CHATS: list[Row] = [
    {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "fine"}]}
    for text in SHORT[:8]
]
STEPS: list[Row] = [
    {"text": f"{SHORT[0]}{STEP_TOKEN}{SHORT[1]}{STEP_TOKEN}"}, {"text": f"{SHORT[2]}{STEP_TOKEN}"},
    {"text": "no step here"},
]  # fmt: skip

CASES = {
    "classify": Case(
        lambda at, _: make_bert_head(at, LABELS), TEXTS,
        {"task": "classify", "prompt__column": "text"},
    ),
    "several labels": Case(
        lambda at, _: make_bert_head(at, LABELS, problem_type="multi_label_classification"), TEXTS,
        {"task": "classify", "prompt__column": "text"},
    ),
    "decoder": Case(
        lambda at, body: make_qwen_head(at, body, LABELS), TEXTS[:8],
        {"task": "classify", "prompt__column": "text", "scoring__raw": True},
    ),
    "pairs": Case(
        lambda at, _: make_bert_head(at, ["relevant"], seed=3), [*PAIRS, *BAD_PAIRS, *LISTS],
        {"task": "score", "run__repeat_once": True},
    ),
    "cut pairs": Case(
        lambda at, _: make_bert_head(at, ["relevant"], seed=3), BAD_PAIRS[3:],
        {"task": "score", "plan__over_length": "truncate_right", "scoring__raw": True},
    ),
    "reward": Case(lambda at, body: make_qwen_head(at, body, ["reward"]), CHATS, {"task": "reward"}),
    "reward of tokens": Case(lambda at, body: make_qwen_reward(at, body, 1), CHATS, {"task": "reward"}),
    "reward of steps": Case(
        lambda at, body: make_qwen_reward(at, body, 2), STEPS,
        {"task": "reward", "prompt__column": "text", "scoring__step_token": STEP_TOKEN},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, tiny_model: Path
) -> dict[str, tuple[Path, Any]]:
    """Every case's model and the table of its results, from one process with vLLM in it."""
    cases = {
        **CASES,
        "vectors": Case(lambda *_: tiny_bert, [*PAIRS, *BAD_PAIRS, *LISTS], {"task": "score"}),
    }
    folder = tmp_path_factory.mktemp("scores")
    runs = {}
    for name, case in cases.items():
        at = folder / name.replace(" ", "-")
        model = case.make(at / "model", tiny_model)
        run = small_run(at, case.rows, **EVERY, **FLOAT32, **case.settings, model__name=str(model))
        run.job = Job.model_validate(run.manifest.job)
        run.tokenizer = job_tokenizer(run.job)
        run.prepare()
        run.order()
        runs[name] = (model, run)
    command = [sys.executable, "-m", "tests.support.pooling_worker"]
    roots = [str(run.storage.root) for _, run in runs.values()]
    ended = subprocess.run(
        [*command, *roots], capture_output=True, text=True, check=False, timeout=280
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    tables = {}
    for name, (model, run) in runs.items():
        out = run.storage.root / "results"
        export(
            Path(run.storage.root), {"output.path": str(out), "output.format": "parquet"}, ignore
        )
        tables[name] = (model, pq.read_table(out))
    return tables


def logits_of(model: Path, *rows: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """transformers' own, one row at a time."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    net = AutoModelForSequenceClassification.from_pretrained(str(model), dtype=torch.float32)
    typed = "token_type_ids" if net.config.model_type == "bert" else ""
    found = []
    with torch.inference_mode():
        for row in rows:
            read = tokenizer(*row, truncation=True, max_length=CONTEXT, return_tensors="pt")
            given = {name: read[name] for name in ("input_ids", typed) if name}
            found.append(net.eval()(**given).logits[0].numpy())
    return np.stack(found)


def column(table: Any, name: str, rows: int | None = None) -> np.ndarray[Any, Any]:
    return np.array(table.column(name).to_pylist()[:rows])


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 1 / (1 + np.exp(-logits))


def near(made: Any, wanted: Any) -> bool:
    return bool(np.abs(np.asarray(made, float) - np.asarray(wanted, float)).max() < 1e-3)


@pytest.mark.parametrize(
    ("case", "activation"), [("classify", softmax), ("several labels", sigmoid)]
)
def test_labels_and_probabilities_are_transformers_own(
    made: dict[str, Any], case: str, activation: Any
) -> None:
    model, table = made[case]
    wanted = activation(logits_of(model, *((text,) for text in SHORT)))
    assert near(column(table, "scores", COUNT).tolist(), wanted)
    assert near(column(table, "score", COUNT), wanted.max(axis=1))
    assert column(table, "label", COUNT).tolist() == [LABELS[i] for i in wanted.argmax(axis=1)]
    assert len(set(column(table, "label", COUNT))) > 1
    assert column(table, "status")[COUNT:].tolist() == ["rejected"] * 2
    assert column(table, "error_code")[COUNT:].tolist() == ["empty_prompt", "prompt_too_long"]
    assert json.loads(table.schema.metadata[LABELS_KEY.encode()]) == LABELS


def test_a_decoders_bare_outputs_are_transformers_own(made: dict[str, Any]) -> None:
    model, table = made["decoder"]
    wanted = logits_of(model, *((text,) for text in SHORT[:8]))
    assert np.abs(wanted).max() > 1, "no probabilities"
    assert near(column(table, "scores").tolist(), wanted)


def test_pairs_are_scored_as_transformers_scores_them(made: dict[str, Any]) -> None:
    model, table = made["pairs"]
    wanted = sigmoid(logits_of(model, *((row["query"], row["document"]) for row in PAIRS)))[:, 0]
    assert near(column(table, "score", COUNT), wanted)
    assert wanted.std() > 0.05
    codes = ["missing_field", "empty_prompt", "missing_prompt", "prompt_too_long"]
    assert column(table, "error_code")[COUNT : COUNT + 4].tolist() == codes


def test_a_list_keeps_its_order_and_loses_nothing(made: dict[str, Any]) -> None:
    model, table = made["pairs"]
    first, second, third = table.to_pylist()[-3:]
    wanted = sigmoid(logits_of(model, *((SHORT[0], SHORT[1]), (SHORT[0], SHORT[2]))))[:, 0]
    assert [score is None for score in first["scores"]] == [False, True, True, False]
    assert near([first["scores"][0], first["scores"][3]], wanted)
    assert first["warnings"] == ["document_skipped"]
    assert first["score"] is None
    assert len(second["scores"]) == 1
    assert third["error_code"] == "prompt_too_long"


def test_only_the_document_of_a_pair_is_cut(made: dict[str, Any]) -> None:
    model, table = made["cut pairs"]
    (row,) = table.to_pylist()
    assert near(row["score"], logits_of(model, ("one", LONG))[0, 0])
    assert (row["truncated"], row["prompt_tokens"]) == (True, CONTEXT)


def test_two_texts_vectors_are_compared_by_their_cosine(made: dict[str, Any]) -> None:
    model, table = made["vectors"]
    queries = vectors_of(model, [str(row["query"]) for row in PAIRS])
    documents = vectors_of(model, [str(row["document"]) for row in PAIRS])
    assert near(column(table, "score", COUNT), (queries * documents).sum(axis=1))
    codes = ["missing_field", "empty_prompt", "missing_prompt", "prompt_too_long"]
    assert column(table, "error_code")[COUNT : COUNT + 4].tolist() == codes
    first = table.to_pylist()[-3]
    wanted = vectors_of(model, SHORT[:3]) @ vectors_of(model, SHORT[:1])[0]
    assert first["scores"][1:3] == [None, None]
    assert near([first["scores"][0], first["scores"][3]], wanted[1:])


def vectors_of(model: Path, given: list[str]) -> np.ndarray[Any, Any]:
    """Mean-pooled by transformers, of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    encoder = AutoModel.from_pretrained(str(model), dtype=torch.float32).eval()
    with torch.inference_mode():
        read = [tokenizer(text, return_tensors="pt")["input_ids"] for text in given]
        found = np.stack([encoder(input_ids=ids).last_hidden_state[0].mean(0) for ids in read])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def chat_text(row: Any) -> str:
    return "".join(
        f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in row["messages"]
    )


def test_the_reward_of_a_conversation_is_the_heads_bare_output(made: dict[str, Any]) -> None:
    model, table = made["reward"]
    wanted = logits_of(model, *((chat_text(row),) for row in CHATS))[:, 0]
    assert near(column(table, "score"), wanted)
    assert wanted.std() > 0.01


def token_values(model: Path, text: str) -> tuple[list[int], np.ndarray[Any, Any]]:
    """The head's outputs at every token: transformers has the body, the head is two layers."""
    import torch
    from safetensors.numpy import load_file
    from transformers import AutoTokenizer, Qwen2Config, Qwen2Model

    weights = load_file(model / "model.safetensors")
    body = Qwen2Model(Qwen2Config.from_pretrained(str(model))).eval()
    own = {name[6:]: torch.from_numpy(one) for name, one in weights.items() if name[:6] == "model."}
    body.load_state_dict(own)
    ids = AutoTokenizer.from_pretrained(str(model))(text)["input_ids"]
    with torch.inference_mode():
        states = body(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    hidden = np.maximum(states @ weights["score.0.weight"].T + weights["score.0.bias"], 0)
    return ids, hidden @ weights["score.2.weight"].T + weights["score.2.bias"]


def test_of_a_value_per_token_the_last_counts(made: dict[str, Any]) -> None:
    model, table = made["reward of tokens"]
    wanted = [token_values(model, chat_text(row))[1][-1, 0] for row in CHATS]
    assert near(column(table, "score"), wanted)


def test_each_step_has_the_probability_that_it_is_good(made: dict[str, Any]) -> None:
    model, table = made["reward of steps"]
    rows = table.to_pylist()
    for row, counted in zip(rows[:2], (2, 1), strict=True):
        ids, values = token_values(model, row["text"])
        at = [index for index, token_id in enumerate(ids) if token_id == 1]
        assert len(at) == len(row["scores"]) == counted
        assert near(row["scores"], softmax(values[at])[:, 1])
    assert (rows[2]["status"], rows[2]["error_code"]) == ("failed", "bad_score")
