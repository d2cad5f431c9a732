"""Checks `profile` against brute force on 2,000 real prompts, and says how fast it is.

    python benchmarks/profile_real.py --model ~/.cache/batchwright/gemma-3-270m-1

The prompts come out of two packages, which are downloaded and not installed: the 1,000 English
and Chinese writing requests of inspect-evals (WritingBench), and 1,000 chats of bfcl-eval, each
with its function documentation as the system message. Token counts must be those of
transformers, percentiles those of numpy, and hit rates within 2 points of a simulated LRU cache
of blocks. Exits with 1 if one of them is not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

CACHES = (4096, 16_384, 65_536, 262_144)
BLOCK_SIZES = (16, 128)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{{ message['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

Rows = list[dict[str, Any]]


def download(folder: Path) -> list[Path]:
    """The two packages as wheels."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*command, "inspect-evals", "bfcl-eval"], check=True)
    return sorted(folder.glob("*.whl"))


def lines_of(wheels: list[Path], name: str) -> Rows:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            if name in archive.namelist():
                return [json.loads(line) for line in archive.read(name).decode().splitlines()]
    raise SystemExit(f"{name} is in none of {', '.join(one.name for one in wheels)}")


def workloads(wheels: list[Path]) -> dict[str, Rows]:
    writing = [
        {"id": f"w{row['index']}", "messages": [{"role": "user", "content": row["query"]}]}
        for row in lines_of(wheels, "inspect_evals/writingbench/benchmark_all.jsonl")
    ]
    chats: Rows = []
    for row in lines_of(wheels, "bfcl_eval/data/BFCL_v4_live_multiple.json")[:1000]:
        tools = "You may call these functions:\n" + json.dumps(row["function"])
        turn = [one for one in row["question"][0] if one["role"] == "user"]
        chats.append({"id": row["id"], "messages": [{"role": "system", "content": tools}, *turn]})
    both = writing + chats
    shuffled = random.Random(0).sample(both, len(both))
    repeated = [{**row, "id": f"{row['id']}-{n}"} for n in range(2) for row in chats]
    return {"writing": writing, "tools": chats, "both, shuffled": shuffled, "tools twice": repeated}


def lru_hit_rate(rows: list[list[int]], block_size: int, cache_tokens: int) -> float:
    """Share of prompt tokens found in an LRU cache of whole blocks, a row at a time."""
    names: dict[tuple[int, tuple[int, ...]], int] = {}
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in rows:
        path, parent = [], 0
        for start in range(0, len(row) - block_size + 1, block_size):
            key = (parent, tuple(row[start : start + block_size]))
            parent = names.setdefault(key, len(names) + 1)
            path.append(parent)
        usable = path[: (len(row) - 1) // block_size]
        hits += block_size * sum(1 for _ in itertools.takewhile(cache.__contains__, usable))
        for block in reversed(path):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) * block_size > cache_tokens:
            cache.popitem(last=False)
    return hits / sum(map(len, rows))


def check(name: str, rows: Rows, model: str, folder: Path, processes: int) -> bool:
    from transformers import AutoTokenizer

    from batchwright.config.load import make_job
    from batchwright.foresight.profiling import profile_rows
    from batchwright.foresight.survey import survey

    data = folder / f"{name.replace(' ', '-')}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    template = folder / "chat.jinja"
    template.write_text(CHAT_TEMPLATE)
    job = make_job(
        {
            "input": {"path": str(data)},
            "model": {"name": model, "chat_template": str(template)},
            "engine": {"kind": "fake", "options": {"max_model_len": 32768}},
        },
        {},
    )
    manifest = survey(job)
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids: list[Any] = [
        tokenizer.apply_chat_template(
            row["messages"],
            chat_template=CHAT_TEMPLATE,
            add_generation_prompt=True,
            return_dict=False,
        )
        for row in rows
    ]
    lengths = np.array([len(one) for one in ids])
    good = True
    for block_size in BLOCK_SIZES:
        started = time.perf_counter()
        found = profile_rows(
            manifest, job, sample=None, cache_tokens=CACHES[0], processes=processes,
            say=lambda _: None, stop=threading.Event(), block_size=block_size,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        curve = {point.cache_tokens: point.file_order for point in found.prefix.curve}
        errors = [(curve[cache], lru_hit_rate(ids, block_size, cache)) for cache in CACHES]
        counted = np.repeat(found.prompts.lengths, found.prompts.counts)
        exact = bool((counted == np.sort(lengths)).all())
        figures = found.as_json()["prompt_tokens"]
        same = all(
            figures[f"p{p:g}"] == np.percentile(lengths, p, method="inverted_cdf")
            for p in (50, 90, 95, 99, 99.9)
        )
        worst = max(abs(ours - true) for ours, true in errors)
        rates = "".join(f"{ours:10.1%} /{true:6.1%}" for ours, true in errors)
        print(
            f"{name:<15}{block_size:>5}{len(rows):>6}{lengths.sum():>10,}"
            f"{figures['p50']:>6}{figures['p99']:>7}  {'equal' if exact else 'DIFFER':<7}"
            f"{'equal' if same else 'DIFFER':<7}{rates}  {100 * worst:5.2f}"
            f"{found.prefix.hit_rate_best_order:7.1%}{len(rows) / seconds:8,.0f}",
            flush=True,
        )
        good = good and exact and same and worst <= 0.02
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="~/.cache/batchwright/gemma-3-270m-1")
    parser.add_argument("--wheels", type=Path, help="folder where the wheels are already")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheels = sorted(arguments.wheels.glob("*.whl")) if arguments.wheels else download(folder)
        caches = "".join(f"{cache >> 10:>9}k / LRU" + "  " for cache in CACHES)
        print(
            f"{'prompts':<15}{'block':>5}{'rows':>6}{'tokens':>10}{'p50':>6}{'p99':>7}  "
            f"{'counts':<7}{'%iles':<7}{caches}  worst   best  rows/s"
        )
        model = str(Path(arguments.model).expanduser())
        results = [
            check(name, rows, model, folder, arguments.processes)
            for name, rows in workloads(wheels).items()
        ]
    if not all(results):
        raise SystemExit("the profile differs from brute force")


if __name__ == "__main__":
    main()
