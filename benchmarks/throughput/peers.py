"""datatrove and Daft as systems under test, in a Python of their own if they are installed there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.throughput.answers import (
    Totals,
    check_answers,
    check_totals,
    of_datatrove,
    read_answers,
)
from benchmarks.throughput.ours import wait
from benchmarks.throughput.records import Case, Measured, RunProblem
from benchmarks.throughput.run_batch import keep_log
from benchmarks.throughput.usage import Usage, kill_tree

ROOT = Path(__file__).parents[2]
MARK = "benchmark: the engine is up"
IN_FLIGHT = 500  # datatrove's own default


class Found(NamedTuple):
    """What a run's files tell, once they are known to be right."""

    cached_tokens: int | None
    preemptions: int | None = None
    engine_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """How one of the two is driven.

    Attributes:
        package: what has to be installed, beside vLLM.
        mark: in the log when the engine is up.
        refuse: why it cannot run a case; empty if it can.
        request: what its process is told, from a case, the engine's options and its folder.
        check: the answers of a folder, which raises RunProblem.
    """

    package: str
    mark: str
    refuse: Callable[[Case], str]
    request: Callable[[Case, Mapping[str, Any], Path], dict[str, Any]]
    check: Callable[[Case, Path], Found]


class Peer:
    """A peer in a process of its own, with its own defaults or with batchwright's engine options.

    Args:
        name: of the system.
        python: interpreter of an environment that has the package and vLLM.
    """

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self._python = python
        self._kind = KINDS[name.removesuffix("-tuned")]
        self._tuned = name.endswith("-tuned")

    def run(self, case: Case, repeat: int, timeout_s: float) -> Measured:
        """One run in a fresh folder.

        Raises:
            RunProblem: it cannot run this, failed, took too long, or its answers are wrong.
        """
        if problem := refuse(self._kind, case):
            raise RunProblem(problem)
        folder = case.folder / f"{self.name}-{repeat}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = {**case.conditions, **(case.tuned if self._tuned else {})}
        request = folder / "request.json"
        request.write_text(json.dumps(self._kind.request(case, options, folder)))
        log = case.folder / f"{self.name}-{repeat}.log"
        began_at = time.time()
        process = subprocess.Popen(
            [self._python, "-m", f"benchmarks.throughput.{self._kind.package}_child", str(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=self.environment(case, os.environ),
        )
        ready: list[float] = []
        watched = (process.stdout, log, self._kind.mark.encode(), ready)
        reader = threading.Thread(target=keep_log, args=watched, daemon=True)
        reader.start()
        code, left_behind, usage = followed(process, timeout_s)
        ended_at = time.time()
        reader.join(5.0)
        if code != 0:
            raise RunProblem(f"exit code {code}, see {log}")
        found = self._kind.check(case, folder)
        written_at = max(path.stat().st_mtime for path in answer_files(folder))
        return Measured(
            ready_s=ready[0] - began_at if ready else None,
            work_s=written_at - ready[0] if ready else None,
            wall_s=ended_at - began_at,
            cpu_s=round(sum(usage.cpu_by_role().values()), 2),
            peak_rss_bytes=usage.peak_rss_bytes,
            cached_tokens=found.cached_tokens,
            preemptions=found.preemptions,
            details={
                "work_cpu_s": usage.spent_between(ready[0], written_at) if ready else None,
                "engine_steps": found.engine_steps,
                "left_behind": left_behind,
            },
        )

    def close(self) -> None:
        """Nothing stays after a run."""

    def environment(self, case: Case, mine: Mapping[str, str]) -> dict[str, str]:
        """What its processes get; a tuned one has as many threads as ours, and as free to move."""
        # datatrove starts `vllm` by name: of the peers' environment, or else of ours.
        places = [str(Path(one).parent) for one in (self._python, sys.executable)]
        found = {
            **mine,
            "PATH": os.pathsep.join([*places, mine.get("PATH", "")]),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            **case.environment,
        }
        if case.on_cpu and self._tuned:
            threads = case.conditions.get("omp_num_threads") or max(1, (os.cpu_count() or 1) - 1)
            found |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return found


def followed(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, int, Usage]:
    """Wait for a process, and end what it leaves behind however it ended.

    Returns:
        Its exit code, how many processes it left, and what it all used.
    """
    with Usage(process.pid) as usage:
        try:
            code = wait(process, timeout_s)
            left_behind = usage.end_rest()
        except BaseException:
            kill_tree(process.pid)
            usage.end_rest()
            raise
    return code, left_behind, usage


def is_there(name: str, python: str) -> str:
    """Why a peer cannot run in this Python; empty if it can."""
    wanted = [KINDS[name.removesuffix("-tuned")].package, "vllm"]
    test = (
        "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
    )
    try:
        found = subprocess.run(
            [python, "-c", test, *wanted], capture_output=True, text=True, check=True, cwd=ROOT
        )
    except (OSError, subprocess.CalledProcessError):
        return f"no Python at {python}"
    missing = found.stdout.split()
    return f"not installed: {', '.join(missing)}" if missing else ""


def refuse(kind: Kind, case: Case) -> str:
    """Why this case cannot be run; empty if it can."""
    if case.workload.task != "generate":
        return f"embeddings through {kind.package} are not measured"
    return kind.refuse(case)


def answer_files(folder: Path) -> list[Path]:
    """Files with answers, as both of them name theirs."""
    return sorted((folder / "answers").glob("*.json"))


def request_of(case: Case, folder: Path) -> dict[str, Any]:
    """What both are told alike."""
    return {
        "model": str(case.model.resolve()),
        "input": str(case.data.resolve()),
        "output": str((folder / "answers").resolve()),
        "ignore_eos": case.workload.hidden is None,
    }


def datatrove_request(case: Case, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """For datatrove: options as flags of `vllm serve`, and never fewer requests than the engine runs."""
    return {
        **request_of(case, folder),
        "max_model_len": options["max_model_len"],
        "in_flight": max(IN_FLIGHT, 2 * int(options.get("max_num_seqs") or 0)),
        "engine": {**as_flags(options), "enable-prompt-tokens-details": True},
        "logs": str((folder / "logs").resolve()),
        "names": str((folder / "names").resolve()),
    }


def as_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as datatrove writes flags: one `--name=value` each, so a longer list cannot be passed."""
    found = {}
    for name, value in options.items():
        if name in ("max_model_len", "omp_num_threads") or value is None:
            continue
        if isinstance(value, list) and len(value) != 1:
            raise RunProblem(f"datatrove cannot pass a list to vllm serve: {name}={value}")
        plain = value[0] if isinstance(value, list) else value
        if isinstance(value, dict):
            plain = json.dumps(value)
        found[name.replace("_", "-")] = plain
    return found


def datatrove_check(case: Case, folder: Path) -> Found:
    """Every document with its one answer."""
    answers = read_answers(answer_files(folder), of_datatrove)
    return Found(check_answers(case.workload.rows, answers, case.workload.task))


def daft_refuse(case: Case) -> str:
    """Daft has one set of sampling parameters for all rows, and tells no row's tokens."""
    if case.workload.hidden is not None:
        return "daft tells no row's tokens, so hidden lengths cannot be checked"
    lengths = {row.max_tokens for row in case.workload.rows}
    return "daft has one max_tokens for all rows" if len(lengths) > 1 else ""


def daft_request(case: Case, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """For Daft: options as engine arguments, as they are."""
    engine = {name: value for name, value in options.items() if name != "omp_num_threads"}
    return {
        **request_of(case, folder),
        "engine": engine,
        "max_tokens": case.told_longest,
        "mark": MARK,
        "counts": str((folder / "counts.json").resolve()),
    }


def daft_check(case: Case, folder: Path) -> Found:
    """Every row with a text, and the sums of tokens as the engine counted them."""
    counts = json.loads((folder / "counts.json").read_text())
    lines = (line for path in answer_files(folder) for line in path.read_text().splitlines())
    totals = Totals(counts["requests"], counts["prompt_tokens"], counts["output_tokens"])
    check_totals(case.workload.rows, (json.loads(line)["id"] for line in lines), totals)
    return Found(counts["cached_tokens"], counts["preemptions"], counts["engine_steps"])


KINDS = {
    # Its runner polls the server every five seconds: this is when it begins to ask.
    "datatrove": Kind(
        "datatrove", "server is ready.", lambda _: "", datatrove_request, datatrove_check
    ),
    "daft": Kind("daft", MARK, daft_refuse, daft_request, daft_check),
}
