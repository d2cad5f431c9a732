"""Compare batchwright with every other way to run the same rows, on this machine, in one go.

    python -m benchmarks.throughput --model FOLDER --workloads W1,W3 --budget-s 540 --out raw.jsonl
    python -m benchmarks.throughput --tiny 25m --workloads W1-short,W3-1.2

Prints a Markdown table at the end; every run is a line in --out. Rules: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from benchmarks.throughput import schedule
from benchmarks.throughput.lengths import PROCESSOR, RUNNER
from benchmarks.throughput.limits import is_encoder, kv_bytes, limit_s, read_facts
from benchmarks.throughput.llm import Llm
from benchmarks.throughput.ours import Batchwright, engine_arguments_of, ran_on_vllm
from benchmarks.throughput.peers import Peer, is_there
from benchmarks.throughput.records import Case, Measured, Record, RunProblem, Workload
from benchmarks.throughput.report import seconds, table
from benchmarks.throughput.run_batch import RunBatch
from benchmarks.throughput.tiny import SHAPES, make_model
from benchmarks.throughput.words import Words
from benchmarks.throughput.workloads import CPU, GPU, KINDS, make_workload, names_of, reveal

from batchwright.core.plan import GpuFacts
from batchwright.machine.hardware import local_gpus
from batchwright.plan.gpus import find_gpu

RUN_TIMEOUT_S = 1800.0
CPU_POOL_BYTES = 512 << 20
SYSTEMS = (
    "batchwright", "batchwright-file", "batchwright-prefix", "batchwright-longest",
    "batchwright-vllm", "batchwright-torch", "batchwright-torch-padded", "batchwright-3",
    "llm-tuned", "llm-default",
    "run-batch", "run-batch-tuned", "transformers", "ray",
    "datatrove", "datatrove-tuned", "daft", "daft-tuned",
)  # fmt: skip
# batchwright as it comes (embeddings of encoders on torch if there is a GPU), with its engine named,
# and with several engines on a card.
BATCHWRIGHT = {
    "batchwright": (),
    "batchwright-vllm": ("engine.kind=vllm",),
    "batchwright-torch": ("engine.kind=torch",),
    "batchwright-torch-padded": ("engine.kind=torch", "engine.options.attention=sdpa"),
    "batchwright-3": ("run.engines_per_gpu=3",),
}
USUAL = (
    "batchwright,batchwright-file,llm-tuned,llm-default,run-batch,ray,datatrove-tuned,daft-tuned"
)


class System(Protocol):
    """Something that answers rows."""

    name: str

    def run(self, case: Case, repeat: int, timeout_s: float) -> Measured:
        """One run. Raises RunProblem."""

    def close(self) -> None:
        """Free the card."""


class NotThere:
    """A peer that is asked for and cannot run here: it stands in the table all the same."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    def run(self, *_: object) -> Measured:
        """Say why there is no run."""
        raise RunProblem(self._why)

    def close(self) -> None:
        """Nothing is open."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", type=Path, help="folder with config.json and tokenizer.json")
    model.add_argument("--tiny", choices=SHAPES, help="make a small random model of this size")
    parser.add_argument("--workloads", default="W1-short,W3-1.2", help=", ".join(KINDS))
    parser.add_argument("--systems", default=USUAL, help=", ".join(SYSTEMS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=int, default=100, help="percent of the usual rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv-tokens", type=int, help="cut the KV pool to this for every workload")
    parser.add_argument("--condition", action="append", default=[], metavar="NAME=VALUE",
                        help="engine option for every system, e.g. max_model_len=4096")  # fmt: skip
    parser.add_argument("--engine", action="append", default=[], metavar="NAME=VALUE",
                        help="engine option for batchwright and the tuned systems; with none, "
                        "batchwright chooses and the others are set up like its run")  # fmt: skip
    parser.add_argument("--budget-s", type=float, help="skip runs that do not fit, and say so")
    parser.add_argument("--share", action=argparse.BooleanOptionalAction, default=None,
                        help="LLM's engine serves all its runs (default on a GPU)")  # fmt: skip
    parser.add_argument("--llm-stats", action="store_true", help="count LLM's preemptions too")
    parser.add_argument("--real-weights", action="store_true", help="load the model's weights")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH",
                        help="Python that has datatrove and daft beside vLLM; else this one")  # fmt: skip
    parser.add_argument("--dir", type=Path, help="where data, runs and logs go; else a new folder")
    parser.add_argument(
        "--out", type=Path, help="raw figures; raw.jsonl in the folder unless given"
    )
    return parser.parse_args()


def options_of(texts: list[str]) -> dict[str, Any]:
    """`name=value` to a dict; values are JSON where they can be."""
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def make_system(name: str, *, share: bool, stats: bool, peer_python: str) -> System:
    """The system of this name, or a stand-in that says what is missing."""
    if name in BATCHWRIGHT:
        return Batchwright(name, BATCHWRIGHT[name])
    if name.startswith("batchwright-"):
        return Batchwright(name, (f"run.order={name.removeprefix('batchwright-')}",))
    if name.startswith("llm-"):
        return Llm(name, tuned=name == "llm-tuned", share=share, stats=stats)
    if name == "transformers":
        return Llm(name, tuned=False, share=share, stats=False, module="encoder_child")
    if name.startswith("run-batch"):
        return RunBatch(name, tuned=name == "run-batch-tuned")
    if name == "ray":
        return NotThere(name, "not in this table: see benchmarks/ray.py")
    missing = is_there(name, peer_python)
    return NotThere(name, missing) if missing else Peer(name, peer_python)


class Bench:
    """One go: the cases as files, the systems, and a record of each run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder: Path = args.dir or Path(tempfile.mkdtemp(prefix="throughput-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        local = local_gpus()
        self.gpu: GpuFacts | None = find_gpu(local.name) if local else None
        self.model: Path = args.model or make_model(self.folder / f"tiny-{args.tiny}", args.tiny)
        dtype = str(options_of(args.condition).get("dtype", "auto"))
        self.facts = None if is_encoder(self.model) else read_facts(self.model, dtype)
        self.share = args.share if args.share is not None else local is not None
        self.tuned = options_of(args.engine)
        self.names = list(dict.fromkeys(names_of(args.workloads)))
        self.cases = self.make_cases()
        self.records: list[Record] = []
        self.out: Path = args.out or self.folder / "raw.jsonl"
        self.began_at = time.monotonic()

    def make_cases(self) -> dict[str, Case]:
        """Write every workload's rows; the context is the same for all, so that engines can be shared."""
        args, sizes = self.args, GPU if self.gpu else CPU
        workloads = [
            make_workload(name, sizes, scale=args.scale, seed=args.seed, kv_tokens=args.kv_tokens)
            for name in self.names
        ]
        conditions = options_of(args.condition)
        longest = max(workload.longest for workload in workloads)
        conditions.setdefault("max_model_len", -(-longest // 64) * 64)
        if not args.real_weights:
            conditions.setdefault("load_format", "dummy")
        if self.gpu is None:
            conditions.setdefault("enforce_eager", True)
            # vLLM's own default is nearly all memory of the machine, which others use too.
            conditions.setdefault("kv_cache_memory_bytes", CPU_POOL_BYTES)
        words = Words(self.model)
        return {one.name: self.make_case(one, conditions, words) for one in workloads}

    def make_case(self, workload: Workload, conditions: dict[str, Any], words: Words) -> Case:
        folder = self.folder / workload.name
        folder.mkdir(exist_ok=True)
        data = folder / "rows.jsonl"
        workload = with_true_lengths(workload, words, self.args.seed)
        with data.open("w") as file:
            for row, prompt in words.prompts(workload.rows, self.args.seed):
                line: dict[str, Any] = {"id": row.id, "prompt": prompt}
                if workload.task == "generate":
                    line["max_tokens"] = workload.told_max_tokens(row)
                file.write(json.dumps(line) + "\n")
        conditions = dict(conditions)
        if workload.hidden:
            conditions["logits_processors"] = [PROCESSOR]
        if workload.kv_tokens and self.facts:
            conditions["kv_cache_memory_bytes"] = kv_bytes(self.facts, workload.kv_tokens)
        say(
            f"{workload.name}: {len(workload.rows):,} rows, {workload.prompt_tokens:,} prompt and "
            f"{workload.output_tokens:,} output tokens, {workload.shareable_tokens():,} shareable; "
            f"{workload.purpose}"
        )
        return Case(
            workload, self.model, data, conditions, self.tuned, folder, self.gpu is None,
            environment_of(workload),
        )  # fmt: skip

    def run(self) -> None:
        """Make every run that the time allows, and print the table."""
        args = self.args
        systems = args.systems.split(",")
        unknown = [name for name in systems if name not in SYSTEMS]
        if unknown:
            raise SystemExit(f"no system {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
        plan = schedule.by_system if self.share else schedule.rotated
        turns = plan(self.names, systems, args.repeats)
        made = {
            name: make_system(
                name, share=self.share, stats=args.llm_stats, peer_python=args.peer_python
            )
            for name in systems
        }
        able = sum(not isinstance(one, NotThere) for one in made.values())
        budget = schedule.Budget(args.budget_s, able if self.share else 1)
        refused = self.pass_over(turns, made, budget)
        if refused:  # what other systems left of their shares
            budget.begin_block(self.now_s())
            for turn in self.pass_over(refused, made, budget):
                self.note(turn, None, budget.refusal(turn, self.now_s()))
        print("\n".join(table(self.records)))
        say(f"raw figures in {self.out}, data and logs in {self.folder}")

    def pass_over(
        self, turns: list[schedule.Turn], made: dict[str, System], budget: schedule.Budget
    ) -> list[schedule.Turn]:
        """Make these runs; returns those that there was no time for."""
        refused = []
        current: System | None = None
        for place, turn in enumerate(turns):
            system = made[turn.system]
            if current is not None and current is not system:
                current.close()
                if self.share and not isinstance(current, NotThere):
                    budget.begin_block(self.now_s())
            current = system
            if not isinstance(system, NotThere) and budget.refusal(turn, self.now_s()):
                refused.append(turn)
                continue
            self.take(turn, system, budget)
            say(f"  {place + 1} of {len(turns)} after {self.now_s():.0f} s")
        if current is not None:
            current.close()
        return refused

    def take(self, turn: schedule.Turn, system: System, budget: schedule.Budget) -> None:
        """One run, and what came of it."""
        began_s = self.now_s()
        try:
            measured = system.run(
                self.case_for(turn), turn.repeat, budget.left_s(began_s, RUN_TIMEOUT_S)
            )
        except RunProblem as error:
            self.note(turn, None, str(error))
        else:
            budget.took(turn, self.now_s() - began_s)
            self.note(turn, measured, "")

    def note(self, turn: schedule.Turn, measured: Measured | None, problem: str) -> None:
        """Keep a record, and say it."""
        record = self.record(turn, measured, problem)
        self.records.append(record)
        with self.out.open("a") as file:
            file.write(json.dumps(record.as_json()) + "\n")
        result = f"{record.rows / seconds(measured):,.1f} rows/s" if measured else problem
        say(f"{turn.workload} {turn.system} run {turn.repeat + 1}: {result}")

    def case_for(self, turn: schedule.Turn) -> Case:
        """The case; a tuned system gets the options of a batchwright run, unless they were given."""
        case = self.cases[turn.workload]
        if self.tuned or not turn.system.endswith("-tuned"):
            return case
        runs = [
            one
            for one in sorted(case.folder.glob("batchwright*-[0-9]/manifest.json"))
            if ran_on_vllm(one.parent)
        ]
        if not runs:
            return case
        arguments = engine_arguments_of(runs[0].parent)
        return Case(
            case.workload, case.model, case.data, case.conditions, arguments, case.folder, case.on_cpu,
            case.environment,
        )  # fmt: skip

    def record(self, turn: schedule.Turn, measured: Measured | None, problem: str) -> Record:
        workload = self.cases[turn.workload].workload
        share = None
        if self.gpu and self.facts and measured and workload.task == "generate":
            longest = int(self.cases[turn.workload].conditions["max_model_len"])
            share = limit_s(self.facts, self.gpu, workload, longest) / seconds(measured)
        return Record(
            turn.workload, turn.system, turn.repeat, len(workload.rows), workload.prompt_tokens,
            workload.output_tokens, problem, measured, share,
        )  # fmt: skip

    def now_s(self) -> float:
        """Seconds since the first run could begin."""
        return time.monotonic() - self.began_at


def with_true_lengths(workload: Workload, words: Words, seed: int) -> Workload:
    """The workload as we check it: hidden lengths follow from the prompts' tokens."""
    if workload.hidden is None:
        return workload
    rows, prompts = zip(*words.prompts(workload.rows, seed), strict=True)
    ids = words.token_ids(prompts)
    return reveal(workload, {row.id: one for row, one in zip(rows, ids, strict=True)})


def environment_of(workload: Workload) -> dict[str, str]:
    """What every system's processes are told: of the law of lengths, and where its code is."""
    if workload.hidden is None:
        return {}
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, **RUNNER, **workload.hidden.as_environment()}


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    Bench(parse()).run()
