"""What a plan of benchmarks says, and which step is next."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import yaml

KEYS = {"name", "command", "cards", "limit_s", "after", "part", "environment"}


class PlanProblem(Exception):
    """A plan that cannot be run; the message says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        name: its log and its folder are called so.
        command: arguments of Python; `$MODELS`, `$OUT`, `$WORK` and other variables are put in at its start.
        limit_s: after which it is killed; also the time that has to be left for it to begin.
        cards: that it has for itself.
        after: steps that have to be over first, whatever came of them.
        part: a label to choose steps by.
        environment: variables for this step.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    cards: int = 1
    after: tuple[str, ...] = ()
    part: str = ""
    environment: dict[str, str] = field(default_factory=dict)


class Choice(NamedTuple):
    """The step that is to be taken off the list, and why it is not run; empty if it is."""

    step: Step
    refusal: str


def read_plan(path: Path) -> list[Step]:
    """The steps of a YAML file.

    Raises:
        PlanProblem: naming the step that is wrong.
    """
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(found, Mapping) or not isinstance(found.get("steps"), list):
        raise PlanProblem(f"{path}: a plan is a mapping with a list of `steps`")
    steps: list[Step] = []
    for number, entry in enumerate(found["steps"], 1):
        step = _read_step(entry, f"{path}, step {number}")
        names = [one.name for one in steps]
        if step.name in names:
            raise PlanProblem(f"{path}: two steps are called {step.name}")
        for earlier in step.after:
            if earlier not in names:
                raise PlanProblem(f"{step.name} is after {earlier}, which is no step above it")
        steps.append(step)
    return steps


def _read_step(entry: Any, where: str) -> Step:
    if not isinstance(entry, Mapping):
        raise PlanProblem(f"{where}: not a mapping")
    unknown = sorted(entry.keys() - KEYS)
    missing = sorted({"name", "command", "limit_s"} - entry.keys())
    if unknown or missing:
        raise PlanProblem(f"{where}: unknown {unknown}, missing {missing}")
    command = entry["command"]
    words = shlex.split(command) if isinstance(command, str) else [str(one) for one in command]
    name, cards = str(entry["name"]), int(entry.get("cards", 1))
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise PlanProblem(f"{where}: {name!r} is no name for a file")
    if cards < 1:
        raise PlanProblem(f"{name}: a step has one card at least, also where there is none")
    environment = {str(key): str(value) for key, value in entry.get("environment", {}).items()}
    return Step(
        name, tuple(words), float(entry["limit_s"]), cards, tuple(entry.get("after", ())),
        str(entry.get("part", "")), environment,
    )  # fmt: skip


def chosen(steps: Sequence[Step], part: str | None, only: Sequence[str]) -> list[Step]:
    """Those of a part, or those that are named.

    Raises:
        PlanProblem: there is no such part or step.
    """
    unknown = set(only) - {step.name for step in steps}
    if unknown:
        raise PlanProblem(f"no step {', '.join(sorted(unknown))}")
    found = [one for one in steps if part in (None, one.part) and (not only or one.name in only)]
    if not found:
        parts = sorted({step.part for step in steps})
        raise PlanProblem(f"no steps to run; there are the parts {', '.join(parts)}")
    return found


def next_choice(
    waiting: Sequence[Step], ended: Collection[str], free: int, total: int, left_s: float
) -> Choice | None:
    """The next step to start or to give up; None to wait for one that runs.

    No step overtakes one that waits for cards: else one that needs two might wait for ever.

    Args:
        waiting: in the order of the plan.
        ended: steps that are over, or not part of this go.
        free: cards.
        total: cards of the machine.
        left_s: of the budget.
    """
    for step in waiting:
        if step.cards > total:
            return Choice(step, f"skipped: it needs {step.cards} cards, and there are {total}")
        if step.limit_s > left_s:
            return Choice(
                step, f"skipped: limit {step.limit_s:.0f} s, {max(0, int(left_s))} s left"
            )
        if any(name not in ended for name in step.after):
            continue
        return Choice(step, "") if step.cards <= free else None
    return None


def shares_of(cores: Sequence[int], streams: int) -> list[frozenset[int]]:
    """The cores of each stream: equal parts, in order; all share all if there are too few."""
    if len(cores) < streams:
        return [frozenset(cores)] * streams
    size = len(cores) // streams
    return [frozenset(cores[number * size : (number + 1) * size]) for number in range(streams)]


def with_variables(texts: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Put variables into a command.

    Raises:
        PlanProblem: one of them is not set.
    """
    try:
        return [Template(text).substitute(variables) for text in texts]
    except KeyError as error:
        raise PlanProblem(
            f"the plan wants the variable {error.args[0]}, which is not set"
        ) from None
