"""The same rows through ray.data.llm and through batchwright on Ray, on the same CPU replicas.

Three ways, one after the other, each with a Ray of its own: `ray.data.llm`'s processor, batchwright's
stage in the same pipeline of Ray Data (`batchwright.ray.processor`), and `run.executor: ray`. Every
one reads the same JSON lines and writes Parquet.

    python benchmarks/ray.py --model DIR --work DIR [--rows 2000] [--lengths mixed|equal]
"""

from __future__ import annotations

import sys
from pathlib import Path

# This file is called ray.py: from its own folder, `import ray` would find it.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import psutil  # noqa: E402
import pyarrow.dataset as pds  # noqa: E402

ENGINE = {"max_model_len": 1024, "max_num_seqs": 32, "kv_cache_memory_bytes": 64 << 20}
REPLICAS = 2
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "VLLM_LOGGING_LEVEL": "ERROR"}  # fmt: skip
WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "rain", "fell", "over", "quiet", "hills"]


def write_rows(path: Path, rows: int, lengths: str) -> None:
    """Prompts and caps of mixed lengths (long tails, as people's data has) or of one length."""
    chance = random.Random(7)
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            mixed = lengths == "mixed"
            words = min(300, int(chance.lognormvariate(3.0, 1.0)) + 1) if mixed else 30
            cap = min(256, int(chance.lognormvariate(3.0, 1.0)) + 1) if mixed else 32
            text = " ".join(chance.choices(WORDS, k=words))
            file.write(json.dumps({"key": number, "prompt": text, "max_tokens": cap}) + "\n")


def init_ray() -> Any:
    import ray

    for attempt in range(3):  # Ray gives itself 30 s, too few on a busy machine
        try:
            ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False,
                     object_store_memory=300 << 20)  # fmt: skip
        except Exception:
            ray.shutdown()
            if attempt == 2:
                raise
        else:
            break
    return ray


def theirs(args: argparse.Namespace) -> None:
    """ray.data.llm with what it needs on CPUs; vLLM tokenises, which saves it three actors.

    A plain number as its concurrency would start one engine, and the others some time later.
    """
    ray = init_ray()
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    config = vLLMEngineProcessorConfig(
        model_source=str(args.model), batch_size=ENGINE["max_num_seqs"], concurrency=(REPLICAS, REPLICAS),
        should_continue_on_error=True, log_engine_metrics=False,
        placement_group_config={"bundle_per_worker": {"CPU": 1}},
        engine_kwargs={**ENGINE, "dtype": "float32", "enforce_eager": True, "disable_log_stats": True},
        chat_template_stage=False, tokenize_stage=False, detokenize_stage=False,
        runtime_env={"env_vars": ENVIRONMENT},
    )  # fmt: skip
    stage = build_processor(
        config,
        preprocess=lambda row: {
            "prompt": row["prompt"],
            "sampling_params": {"temperature": 0.0, "max_tokens": row["max_tokens"]},
        },
        postprocess=lambda row: {
            "key": row["key"],
            "text": row["generated_text"],
            "completion_tokens": row["num_generated_tokens"],
        },
    )
    rows = ray.data.read_json(str(args.work / "rows.jsonl"), lines=True)
    rows = rows.repartition(target_num_rows_per_block=2 * ENGINE["max_num_seqs"])
    stage(rows).write_parquet(str(args.out))


def stage(args: argparse.Namespace) -> None:
    """batchwright's stage in the same pipeline."""
    ray = init_ray()
    from batchwright.ray import processor

    job = {"model": {"name": str(args.model), "dtype": "float32"}, "prompt": {"chat": False},
           "sampling": {"preset": "deterministic"},
           "engine": {"options": {**ENGINE, "omp_num_threads": 1}}}  # fmt: skip
    answer = processor(
        job,
        concurrency=REPLICAS,
        postprocess=lambda row: {name: row[name] for name in ("key", "text", "completion_tokens")},
    )
    answer(ray.data.read_json(str(args.work / "rows.jsonl"), lines=True)).write_parquet(
        str(args.out)
    )


def executor_command(args: argparse.Namespace, out: Path) -> list[str]:
    settings: dict[str, Any] = {f"engine.options.{name}": value for name, value in ENGINE.items()}
    settings |= {"engine.options.omp_num_threads": 1, "model.dtype": "float32",
                 "prompt.chat": "false", "run.executor": "ray", "run.replicas": REPLICAS,
                 "run.pilot_rows": 0, "run.order": "file"}  # fmt: skip
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "batchwright", "run", str(args.work / "rows.jsonl"),
            "--model", str(args.model), "--dir", str(args.work / "run"), "-o", str(out), *sets]  # fmt: skip


def first_row_at(folders: list[Path]) -> float | None:
    made = [path.stat().st_mtime for folder in folders if folder.is_dir()
            for path in folder.iterdir() if path.suffix == ".parquet"]  # fmt: skip
    return min(made, default=None)


def measure(args: argparse.Namespace, way: str) -> dict[str, Any]:
    out = args.work / f"out-{way}"
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(args.work / "run", ignore_errors=True)
    command = [sys.executable, __file__, "--way", way, "--model", str(args.model),
               "--work", str(args.work), "--out", str(out)]  # fmt: skip
    if way == "executor":
        command = executor_command(args, out)
    env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0",
           "RAY_USAGE_STATS_ENABLED": "0"}  # fmt: skip
    began_at, began, peak = time.time(), time.monotonic(), 0
    with (args.work / f"{way}.log").open("wb") as log:
        driver = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        while driver.poll() is None:
            if time.monotonic() - began > args.timeout:
                driver.kill()
            peak = max(peak, psutil.Process(driver.pid).memory_info().rss)
            time.sleep(0.2)
    wall_s = time.monotonic() - began
    if driver.returncode:
        return {"way": way, "exit": driver.returncode, "wall_s": round(wall_s, 1)}
    table = pds.dataset(out, format="parquet").to_table(columns=["key", "completion_tokens"])
    first = first_row_at([args.work / "run" / "output"] if way == "executor" else [out])
    to_first_s = (first or time.time()) - began_at
    return {
        "way": way, "wall_s": round(wall_s, 1), "rows": len(set(table.column("key").to_pylist())),
        "tokens": sum(table.column("completion_tokens").to_pylist()),
        "rows_per_s": round(args.rows / wall_s, 2), "first_row_s": round(to_first_s, 1),
        "rows_per_s_after_the_first": round(args.rows / max(0.1, wall_s - to_first_s), 2),
        "driver_peak_mib": peak >> 20,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--lengths", choices=["mixed", "equal"], default="mixed")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--ways", nargs="*", default=["theirs", "stage", "executor"])
    parser.add_argument("--way", choices=["theirs", "stage"], help="(run by this script itself)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.way is not None:
        {"theirs": theirs, "stage": stage}[args.way](args)
        return
    args.work.mkdir(parents=True, exist_ok=True)
    write_rows(args.work / "rows.jsonl", args.rows, args.lengths)
    for way in args.ways:
        print(json.dumps(measure(args, way)), flush=True)


if __name__ == "__main__":
    main()
