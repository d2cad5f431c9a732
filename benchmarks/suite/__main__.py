"""Run a plan of benchmarks: a step at a time on each card, each within its limit, all within a budget.

    MODELS=/models python -m benchmarks.suite benchmarks/plans/one_gpu.yaml --part A --out DIR --budget-s 570

What a step prints is in DIR/NAME.log. At the end, or when it is told to stop (SIGTERM), it prints which steps
ran and the table of every raw.jsonl. How plans are written: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from benchmarks.suite.plan import (
    Choice,
    PlanProblem,
    Step,
    chosen,
    next_choice,
    read_plan,
    shares_of,
    with_variables,
)
from benchmarks.suite.processes import GRACE_S, Running
from benchmarks.throughput.report import read_records, table

from batchwright.executors.local import visible_gpus

POLL_S = 0.2
LAST_LINES = 5


class Result(NamedTuple):
    """What came of a step."""

    step: Step
    state: str
    seconds: float


class Stream(NamedTuple):
    """A card (None on a machine without) and the cores that go with it."""

    card: str | None
    cores: frozenset[int]


class Suite:
    """Makes the steps of a plan.

    Args:
        steps: in order.
        streams: one for each card, at least one.
        out: for logs and figures, a folder for each step.
        work: for what the steps write besides.
        budget_s: for everything.
        grace_s: from being asked to end to being killed.
    """

    def __init__(
        self, steps: Sequence[Step], streams: Sequence[Stream], out: Path, work: Path,
        budget_s: float = math.inf, grace_s: float = GRACE_S,
    ) -> None:  # fmt: skip
        self._waiting = list(steps)
        self._streams = list(streams)
        self._free = list(streams)
        self._running: dict[str, tuple[Step, Running, list[Stream]]] = {}
        self._out, self._work, self._grace_s = out, work, grace_s
        self._end_at = time.monotonic() + budget_s
        self._stopping = False
        self._known = {step.name for step in steps}
        self.results: list[Result] = []

    def request_stop(self, *_: int | FrameType | None) -> None:
        """End what runs and begin nothing more."""
        self._stopping = True

    def run(self) -> None:
        """Make all steps, or as many as there is time for."""
        while (self._waiting or self._running) and not self._stopping:
            self._look()
            choice = self._choose()
            if choice is None:
                time.sleep(POLL_S)
            elif choice.refusal:
                self._waiting.remove(choice.step)
                self._end(choice.step, choice.refusal, 0.0)
            else:
                self._waiting.remove(choice.step)
                self._start(choice.step)
        for step, process, _ in list(self._running.values()):
            self._stop(step, process, "stopped")
        for step in self._waiting:
            self._end(step, "not run: the suite was stopped", 0.0)

    def _choose(self) -> Choice | None:
        others = {name for step in self._waiting for name in step.after} - self._known
        ended = {result.step.name for result in self.results} | others
        left_s = self._end_at - time.monotonic()
        return next_choice(
            self._waiting, ended, len(self._free), len(self._streams), left_s
        )  # fmt: skip

    def _start(self, step: Step) -> None:
        streams, self._free = self._free[: step.cards], self._free[step.cards :]
        cores = frozenset[int]().union(*(stream.cores for stream in streams))
        environment = self._environment(step, streams)
        command = with_variables(step.command, environment)
        say(f"{step.name}: starts on {', '.join(one.card or 'no card' for one in streams)}")
        process = Running(command, self._out / f"{step.name}.log", environment, cores)
        self._running[step.name] = step, process, streams

    def _environment(self, step: Step, streams: Sequence[Stream]) -> dict[str, str]:
        out, work = self._out / step.name, self._work / step.name
        for folder in (out, work):
            folder.mkdir(parents=True, exist_ok=True)
        found = {**os.environ, **step.environment, "OUT": str(out), "WORK": str(work)}
        cards = [stream.card for stream in streams if stream.card is not None]
        return {**found, "CUDA_VISIBLE_DEVICES": ",".join(cards)} if cards else found

    def _look(self) -> None:
        """Take note of steps that are over, and end those past their limit."""
        for step, process, _ in list(self._running.values()):
            code = process.poll()
            if code is not None:
                state = "done" if code == 0 else f"failed: exit code {code}"
                self._release(step)
                self._end(step, state, process.seconds)
            elif process.seconds > step.limit_s:
                self._stop(step, process, f"killed after its limit of {step.limit_s:g} s")

    def _stop(self, step: Step, process: Running, state: str) -> None:
        process.stop(self._grace_s)
        self._release(step)
        self._end(step, state, process.seconds)

    def _release(self, step: Step) -> None:
        *_, streams = self._running.pop(step.name)
        self._free += streams
        self._free.sort(key=self._streams.index)

    def _end(self, step: Step, state: str, seconds: float) -> None:
        self.results.append(Result(step, state, seconds))
        say(f"{step.name}: {state}" + (f", {seconds:.0f} s" if seconds else ""))


def report(results: Sequence[Result], out: Path) -> list[str]:
    """Which steps ran, the end of the log where one did not end well, and the figures of all."""
    lines = ["", "| step | cards | state | seconds |", "| --- | --- | --- | --- |"]
    for step, state, seconds in results:
        lines.append(f"| {step.name} | {step.cards} | {state} | {seconds:.1f} |")
    for step, state, _ in results:
        log = out / f"{step.name}.log"
        if state != "done" and log.is_file():
            lines += ["", f"The end of {log}:", ""]
            lines += log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    for step, *_ in results:
        records = [
            record
            for path in sorted((out / step.name).rglob("raw.jsonl"))
            for record in read_records(path)
        ]
        if records:
            lines += ["", f"{step.name}:", "", *table(records)]
    return lines


def streams_of(cards: Sequence[str], cores: Sequence[int]) -> list[Stream]:
    """A stream for each card with its part of the cores; one for all cores where there is no card."""
    if not cards:
        return [Stream(None, frozenset(cores))]
    return [Stream(*pair) for pair in zip(cards, shares_of(cores, len(cards)), strict=True)]


def own_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def check_variables(steps: Sequence[Step], variables: Mapping[str, str]) -> None:
    """Before anything runs. Raises PlanProblem for a variable that is not set."""
    for step in steps:
        with_variables(step.command, {**variables, **step.environment, "OUT": "", "WORK": ""})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="logs and figures")
    parser.add_argument("--work", type=Path, help="what steps write besides; OUT/work unless given")
    parser.add_argument("--part", help="only steps of this part")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="only these steps")
    parser.add_argument("--cards", type=int, help="use so many; all that are visible unless given")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="for everything")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    cards = visible_gpus()
    try:
        only = [name for name in args.only.split(",") if name]
        steps = chosen(read_plan(args.plan), args.part, only)
        check_variables(steps, os.environ)
        if args.cards is not None and args.cards > len(cards):
            raise PlanProblem(f"--cards {args.cards}, and there are {len(cards)}")
    except (PlanProblem, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2
    streams = streams_of(cards[: args.cards], own_cores())
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work = (args.work or out / "work").resolve()
    suite = Suite(steps, streams, out, work, args.budget_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, suite.request_stop)
    suite.run()
    lines = report(suite.results, out)
    (out / "report.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    return 0 if all(result.state == "done" for result in suite.results) else 1


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
