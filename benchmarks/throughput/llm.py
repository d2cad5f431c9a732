"""vLLM's `LLM` class as a system under test, as it comes or set up like batchwright."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.throughput.answers import check_answers, of_harness, read_answers
from benchmarks.throughput.ours import wait
from benchmarks.throughput.records import Case, Measured, RunProblem
from benchmarks.throughput.usage import Usage, kill_tree

END_S = 60.0


class Llm:
    """`LLM.generate(texts)` in a process of its own, which several runs may share.

    Args:
        name: of the system.
        tuned: with batchwright's engine options; else with vLLM's own defaults.
        share: keep the engine for the next run, if that has the same arguments.
        stats: have vLLM keep statistics (preemptions), which costs it a little.
        module: what the process runs, if it is not vLLM.
    """

    def __init__(
        self, name: str, *, tuned: bool, share: bool, stats: bool, module: str = "llm_child"
    ) -> None:
        self.name = name
        self._module = module
        self._tuned = tuned
        self._share = share
        self._stats = stats
        self._child: Child | None = None

    def arguments(self, case: Case) -> dict[str, Any]:
        """What LLM is called with."""
        found = {**case.conditions, **(case.tuned if self._tuned else {}), "model": str(case.model)}
        found.pop("omp_num_threads", None)
        if case.workload.task == "embed":
            found["runner"] = "pooling"
        if self._stats:
            found["disable_log_stats"] = False
        return found

    def run(self, case: Case, repeat: int, timeout_s: float) -> Measured:
        """One run; the engine is started first unless the last one fits.

        Raises:
            RunProblem: it failed, took too long, or its answers are wrong.
        """
        if self._module == "encoder_child" and case.workload.task != "embed":
            raise RunProblem("for embeddings only")
        deadline = time.monotonic() + timeout_s
        arguments, environment = self.arguments(case), self._environment(case)
        if self._child is None or not self._child.fits(arguments, environment):
            self.close()
            log = case.folder / f"{self.name}-{repeat}.log"
            self._child = Child(self._module, arguments, log, environment)
            self._child.start(timeout_s)
        child, output = self._child, case.folder / f"{self.name}-{repeat}.jsonl"
        command = {
            "input": str(case.data),
            "output": str(output),
            "task": case.workload.task,
            "ignore_eos": case.workload.hidden is None,
        }
        with Usage(child.pid) as usage:
            reply = child.ask(command, deadline - time.monotonic())
        work_s = reply["ended_at"] - reply["began_at"]
        ready_s, wall_s = child.ready_s, child.ready_s + work_s
        if not self._share:
            self.close()
            wall_s = time.time() - child.began_at
        cached = check_answers(
            case.workload.rows, read_answers([output], of_harness), case.workload.task
        )
        spent = usage.spent_s() if self._share else usage.cpu_by_role()
        return Measured(
            ready_s=ready_s,
            work_s=work_s,
            wall_s=wall_s,
            cpu_s=round(sum(spent.values()), 2),
            peak_rss_bytes=usage.peak_rss_bytes,
            cached_tokens=cached,
            preemptions=reply["preemptions"],
            details={
                "generate_s": reply["generate_s"],
                "engine_steps": reply["engine_steps"],
                "work_cpu_s": usage.spent_between(reply["began_at"], reply["ended_at"]),
                "kv_tokens": child.kv_tokens,
                "shared_engine": self._share,
            },
        )

    def close(self) -> None:
        """End the engine's process, so that the card is free."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _environment(self, case: Case) -> dict[str, str]:
        """The case's; on a CPU, a tuned LLM runs its engine where batchwright does: in process."""
        if not (case.on_cpu and self._tuned):
            return case.environment
        threads = case.conditions.get("omp_num_threads") or max(1, (os.cpu_count() or 1) - 1)
        own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(threads)}
        return {**case.environment, **own}


class Child:
    """The process behind it; its lines come through a thread, so that waiting for one can end."""

    def __init__(
        self, module: str, arguments: dict[str, Any], log: Path, environment: dict[str, str]
    ) -> None:
        self.arguments = arguments
        self._environment = environment
        self._log = log
        self.began_at = time.time()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.throughput.{module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "VLLM_NO_USAGE_STATS": "1", **environment},
            )
        self.pid = self._process.pid
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="llm-replies", daemon=True).start()
        self.ready_s = 0.0
        self.kv_tokens = 0

    def fits(self, arguments: dict[str, Any], environment: dict[str, str]) -> bool:
        """Whether an engine that is wanted is this one."""
        return self.arguments == arguments and self._environment == environment

    def start(self, timeout_s: float) -> None:
        """Wait until the engine is up."""
        reply = self.ask(self.arguments, timeout_s)
        self.ready_s = reply["ready_at"] - self.began_at
        self.kv_tokens = reply["kv_tokens"]

    def ask(self, value: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a line and wait for one.

        Raises:
            RunProblem: the process ended, or gave no answer in time and was killed.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
            reply = self._replies.get(timeout=max(1.0, timeout_s))
        except (queue.Empty, BrokenPipeError):
            self.stop()
            raise RunProblem(f"no answer in {timeout_s:.0f} s, see {self._log}") from None
        if not reply:
            self.stop()
            raise RunProblem(f"the process ended, see {self._log}")
        found: dict[str, Any] = json.loads(reply)
        return found

    def stop(self) -> None:
        """Let it end by itself, else kill it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            wait(self._process, END_S if self.ready_s else 1.0)
        except RunProblem:
            kill_tree(self.pid)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put("")
