"""batchwright as a system under test: the real command on a JSONL file, read from its run directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.throughput.answers import check_answers, of_batchwright, read_answers
from benchmarks.throughput.records import Case, Measured, RunProblem
from benchmarks.throughput.usage import Usage, kill_tree

from batchwright.config.load import make_job
from batchwright.core.readings import Reading
from batchwright.equip.choosing import with_engine
from batchwright.foresight.piloting import preemptions
from batchwright.rundir.readings import read_readings
from batchwright.rundir.storage import Storage

# Engine arguments that LLM needs otherwise, or that are not about speed.
NOT_FOR_LLM = (
    "disable_log_stats",
    "skip_tokenizer_init",
    "model",
    "omp_num_threads",
    "stat_loggers",
)

# Conditions that say something to the torch engine too.
FOR_TORCH = ("max_model_len", "load_format", "dtype")


class Batchwright:
    """`python -m batchwright run`, in file order if asked for."""

    def __init__(self, name: str, settings: tuple[str, ...] = ()) -> None:
        self.name = name
        self._settings = settings

    def run(self, case: Case, repeat: int, timeout_s: float) -> Measured:
        """One run in a fresh folder.

        Raises:
            RunProblem: it failed, took too long, or its answers are wrong.
        """
        folder = case.folder / f"{self.name}-{repeat}"
        shutil.rmtree(folder, ignore_errors=True)
        log = case.folder / f"{self.name}-{repeat}.log"
        began_at = time.time()
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(case, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **case.environment},
            )
            with Usage(process.pid) as usage:
                code = wait(process, timeout_s)
        wall_s = time.time() - began_at
        if code != 0:
            raise RunProblem(f"exit code {code}, see {log}")
        files = sorted((folder / "results").glob("*.jsonl"))
        answers = read_answers(files, of_batchwright)
        cached = check_answers(case.workload.rows, answers, case.workload.task)
        times = read_times(folder)
        return Measured(
            ready_s=times["ready"] - began_at,
            work_s=times["last receipt"] - times["ready"],
            wall_s=wall_s,
            cpu_s=round(sum(usage.spent_s().values()), 2),
            peak_rss_bytes=usage.peak_rss_bytes,
            cached_tokens=cached,
            preemptions=count_preemptions(folder),
            details={
                "cpu_by_role_s": usage.spent_s(),
                "work_cpu_s": usage.spent_between(times["ready"], times["last receipt"]),
                "engine_steps": count_steps(folder),
                "run_dir": str(folder),
            },
        )

    def close(self) -> None:
        """Nothing stays after a run."""

    def runs_on_torch(self, case: Case) -> bool:
        """Whether torch is named, or what batchwright will choose by itself."""
        named = [one for one in self._settings if one.startswith("engine.kind=")]
        if named:
            return named == ["engine.kind=torch"]
        known = {name: value for name, value in case.conditions.items() if name in FOR_TORCH}
        job = make_job(
            {
                "input": {"path": str(case.data)},
                "model": {"name": str(case.model)},
                "task": case.workload.task,
                "engine": {"options": known},
            },
            {},
        )
        return with_engine(job)[0].engine.kind == "torch"

    def command(self, case: Case, folder: Path) -> list[str]:
        """The command line."""
        options = {**case.conditions, **case.tuned}
        if self.runs_on_torch(case):
            options = {name: value for name, value in options.items() if name in FOR_TORCH}
        settings = [
            f"engine.options.{name}={json.dumps(value)}"
            for name, value in options.items()
            if name != "dtype"
        ]
        if "dtype" in options:
            settings.append(f"model.dtype={options['dtype']}")
        if case.workload.task == "embed":
            settings.append("task=embed")
            if not (case.model / "modules.json").is_file():  # dummies do not say how they pool
                settings.append("embedding.pooling=mean")
        else:
            ignored = "false" if case.workload.hidden else "true"
            settings += [
                f"sampling.ignore_eos={ignored}",
                f"sampling.max_tokens={case.told_longest}",
            ]
        command = [
            sys.executable, "-m", "batchwright", "run", str(case.data), "--model", str(case.model),
            "--dir", str(folder), "--format", "jsonl", "--json",
        ]  # fmt: skip
        for setting in [*settings, *self._settings]:
            command += ["--set", setting]
        return command


def wait(process: subprocess.Popen[Any], timeout_s: float) -> int:
    """Wait for the end of a process.

    Raises:
        RunProblem: it took longer, and was killed with all its children.
    """
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        raise RunProblem(f"not done after {timeout_s:.0f} s") from None


def read_times(folder: Path) -> dict[str, float]:
    """When the engine was up and when the last receipt was written, in seconds since the epoch."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    ready = [event["at"] for event in events if event["event"] == "engine_up"]
    if not ready:
        raise RunProblem("no engine came up")
    receipts = (folder / "receipts").iterdir()
    return {"ready": min(ready), "last receipt": max(path.stat().st_mtime for path in receipts)}


def telemetry_of(folder: Path) -> list[list[Reading]]:
    """The readings of each worker that had an engine."""
    found = read_readings(Storage(folder)).values()
    return [mine for mine in found if any(one.engine for one in mine)]


def count_preemptions(folder: Path) -> int | None:
    """As the engines counted them; None without telemetry of an engine."""
    workers = telemetry_of(folder)
    return sum(preemptions(mine) for mine in workers) if workers else None


def count_steps(folder: Path) -> int | None:
    """Steps of all engines, as of the last reading; None without telemetry of an engine."""
    workers = telemetry_of(folder)
    if not workers:
        return None
    return sum(max(one.engine.steps for one in mine if one.engine) for mine in workers)


def ran_on_vllm(folder: Path) -> bool:
    """Whether a run had vLLM's engine: another's settings say nothing to vLLM's own tools."""
    from batchwright.rundir.manifest import existing_run

    return bool(existing_run(folder)[1].job["engine"]["kind"] == "vllm")


def engine_arguments_of(folder: Path) -> dict[str, Any]:
    """What the engine of a run was started with, for systems that are to be set up like it."""
    from batchwright.config.job import Job
    from batchwright.core.plan import default_batched_tokens
    from batchwright.engines import vllm_setup
    from batchwright.equip.equipment import engine_settings
    from batchwright.machine.hardware import local_gpus
    from batchwright.rundir.manifest import existing_run
    from batchwright.tokens.byte_level import ByteTokenizer

    _, manifest = existing_run(folder)
    job = Job.model_validate(manifest.job)
    settings = engine_settings(manifest, job, ByteTokenizer())
    gpus = local_gpus()
    tokens = vllm_setup.CPU_BATCHED_TOKENS
    if gpus is not None:
        tokens = default_batched_tokens(gpus.name, gpus.memory_bytes)
    arguments = vllm_setup.engine_arguments(
        settings, on_cpu=gpus is None, batched_tokens=tokens, known=["watermark"]
    )
    return {name: value for name, value in arguments.items() if name not in NOT_FOR_LLM}
