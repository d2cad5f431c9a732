"""Rows/s, memory and CPU time by stage of the whole pipeline, on the fake engine.

    python benchmarks/pipeline.py --rows 1000000

Short rows with a real tokenizer (a byte-level BPE trained here, 4,096 tokens) go through
everything that batchwright does: read, check, tokenise, order, feed, commit, export, verify. The
fake engine answers at once, so what is measured is batchwright itself.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

WORDS = [
    "the",
    "service",
    "was",
    "quick",
    "and",
    "the",
    "staff",
    "kind",
    "but",
    "my",
    "order",
    "came",
    "cold",
    "late",
    "wrong",
    "again",
    "fine",
    "good",
    "bad",
    "price",
    "quality",
    "screen",
    "battery",
    "room",
    "hotel",
    "food",
    "taste",
    "clean",
    "dirty",
    "loud",
    "quiet",
    "helpful",
    "rude",
]


def write_rows(path: Path, rows: int, seed: int = 0) -> int:
    """Short reviews, 5 to 20 words each; returns the bytes written."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for row in range(rows):
            text = " ".join(rng.choices(WORDS, k=rng.randint(5, 20)))
            file.write(f'{{"id": "r{row:08d}", "text": "{text}", "stars": {rng.randint(1, 5)}}}\n')
    return path.stat().st_size


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(folder: Path, data: Path) -> Path:
    """A byte-level BPE that fits its text as real ones fit theirs: about 1.3 tokens a word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with data.open() as lines:
        tokenizer.train_from_iterator((next(lines) for _ in range(5000)), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 4096}')
    return folder


class Usage:
    """Memory and CPU time of a process and all its children, by what they do."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.peak_rss = 0
        self.peak_pss = 0
        self.cpu_s: dict[tuple[int, str], float] = {}
        self.peak_by_role: dict[str, int] = {}

    def look(self) -> None:
        rss = pss = 0
        by_role: dict[str, int] = {}
        for process in [self.root, *self.root.children(recursive=True)]:
            try:
                memory = process.memory_full_info()
                command = " ".join(process.cmdline())
                times = process.cpu_times()
            except psutil.Error:
                continue
            role = role_of(command)
            rss += memory.rss
            pss += memory.pss
            by_role[role] = by_role.get(role, 0) + memory.rss
            self.cpu_s[process.pid, role] = times.user + times.system
        self.peak_rss = max(self.peak_rss, rss)
        self.peak_pss = max(self.peak_pss, pss)
        for role, size in by_role.items():
            self.peak_by_role[role] = max(size, self.peak_by_role.get(role, 0))

    def cpu_by_role(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for (_, role), seconds in self.cpu_s.items():
            total[role] = round(total.get(role, 0.0) + seconds, 1)
        return total


def role_of(command: str) -> str:
    if "--role prepare" in command:
        return "prepare+order"
    if "--role infer" in command:
        return "worker"
    if "engines" in command:
        return "engine"
    return "parent+export"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--chat", action="store_true", help="wrap each prompt in a chat template")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="batchwright-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"rows-{args.rows}.jsonl"
    size = data.stat().st_size if data.is_file() else write_rows(data, args.rows)
    model = make_tokenizer(folder / "model", data)
    run_dir = folder / f"run-{args.rows}"
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [
        sys.executable, "-m", "batchwright", "run", str(data), "--engine", "fake",
        "--model", str(model), "--prompt", "Review: {{ text }}\nSentiment:",
        "--max-tokens", "12", "--dir", str(run_dir), "--json",
        "--set", f"prompt.chat={str(args.chat).lower()}",
    ]  # fmt: skip
    for setting in args.set:
        command += ["--set", setting]
    started_at = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    usage = Usage(process.pid)
    while process.poll() is None:
        usage.look()
        time.sleep(0.25)
    wall_s = time.monotonic() - started_at
    summary = json.loads(process.stdout.read())  # type: ignore[union-attr]
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    at = {event["event"]: event["at"] for event in events}
    print(f"{args.rows:,} rows, {size / 1e6:.0f} MB of JSONL, {psutil.cpu_count()} cores")
    print(f"  wall            {wall_s:.1f} s = {args.rows / wall_s:,.0f} rows/s")
    print(f"  until all rows committed {at['run_finished'] - at['run_started']:.1f} s")
    print(f"  prompt tokens   {summary['prompt_tokens']:,}")
    print(
        f"  peak RSS        {usage.peak_rss / 2**20:,.0f} MiB in all (PSS {usage.peak_pss / 2**20:,.0f})"
    )
    for role, peak in usage.peak_by_role.items():
        print(f"    {role:14} {peak / 2**20:,.0f} MiB")
    print(f"  CPU seconds     {usage.cpu_by_role()}")
    print(f"  ok {summary.get('ok'):,} of {summary.get('rows_in'):,}")
    verify = [sys.executable, "-m", "batchwright", "verify", str(run_dir), "--json"]
    checked_at = time.monotonic()
    passed = json.loads(subprocess.run(verify, stdout=subprocess.PIPE, check=False).stdout)[
        "passed"
    ]
    print(f"  verify          {passed} in {time.monotonic() - checked_at:.1f} s")


if __name__ == "__main__":
    main()
