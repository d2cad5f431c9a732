"""A plan's steps run on cards of their own, within their limits and the budget, and nothing outlives them."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from benchmarks.suite.__main__ import Stream, Suite, main, report, streams_of
from benchmarks.suite.plan import (
    PlanProblem,
    Step,
    chosen,
    next_choice,
    read_plan,
    shares_of,
    with_variables,
)
from benchmarks.throughput.records import Measured, Record
from benchmarks.throughput.report import read_records

PLANS = Path(__file__).parents[3] / "benchmarks" / "plans"
HANG = "import signal; print('up', flush=True); signal.pause()"


def step(name: str, *command: str, limit_s: float = 30.0, **more: Any) -> Step:
    return Step(name, command or ("-c", "pass"), limit_s, **more)


def write_plan(folder: Path, *steps: dict[str, Any]) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"steps": list(steps)}))
    return path


def run(folder: Path, *steps: Step, streams: int = 1, budget_s: float = 60.0) -> Suite:
    places = [Stream(str(n) if streams > 1 else None, frozenset()) for n in range(streams)]
    suite = Suite(steps, places, folder / "out", folder / "work", budget_s, grace_s=5.0)
    suite.run()
    return suite


def is_gone(pid: int) -> bool:
    """Or waits for whoever it was left to."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def states(suite: Suite) -> dict[str, str]:
    return {one.step.name: one.state for one in suite.results}


def test_a_plan_is_read_with_its_defaults(tmp_path: Path) -> None:
    first = {"name": "a", "command": "-m x --say 'two words'", "limit_s": 5}
    second = {"name": "b", "command": ["-c", 1], "limit_s": 1.5, "cards": 2, "after": ["a"],
              "part": "P", "environment": {"N": 1}}  # fmt: skip
    assert read_plan(write_plan(tmp_path, first, second)) == [
        Step("a", ("-m", "x", "--say", "two words"), 5.0),
        Step("b", ("-c", "1"), 1.5, 2, ("a",), "P", {"N": "1"}),
    ]


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([{"name": "a", "limit_s": 1}], "missing .*command"),
        ([{"name": "a", "command": "x", "limit_s": 1, "card": 2}], "unknown .*card"),
        ([{"name": "a/b", "command": "x", "limit_s": 1}], "no name for a file"),
        ([{"name": "a", "command": "x", "limit_s": 1, "after": ["b"]}], "no step above it"),
        ([{"name": "a", "command": "x", "limit_s": 1}] * 2, "two steps are called a"),
        ([{"name": "a", "command": "x", "limit_s": 1, "cards": 0}], "one card at least"),
        (["a"], "not a mapping"),
    ],
)
def test_a_wrong_plan_is_refused(tmp_path: Path, steps: list[Any], complaint: str) -> None:
    with pytest.raises(PlanProblem, match=complaint):
        read_plan(write_plan(tmp_path, *steps))


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_plans_that_come_with_it_are_right(path: Path) -> None:
    for one in read_plan(path):
        assert one.part in ("A", "B", "C", "D")
        assert one.limit_s <= 330
        assert with_variables(one.command, {"MODELS": "m", "OUT": "o", "WORK": "w"})[0] == "-m"


def test_steps_are_chosen_by_part_or_name() -> None:
    steps = [step("a", part="A"), step("b", part="B"), step("c", part="A")]
    assert [one.name for one in chosen(steps, "A", [])] == ["a", "c"]
    assert [one.name for one in chosen(steps, None, ["c", "b"])] == ["b", "c"]
    with pytest.raises(PlanProblem, match="no step d"):
        chosen(steps, None, ["d"])
    with pytest.raises(PlanProblem, match="the parts A, B"):
        chosen(steps, "C", [])


def test_nothing_overtakes_a_step_that_waits_for_cards() -> None:
    steps = [step("two", cards=2), step("one")]
    assert next_choice(steps, (), free=1, total=2, left_s=99) is None
    assert next_choice(steps, (), free=2, total=2, left_s=99) == (steps[0], "")
    choice = next_choice(steps, (), free=1, total=1, left_s=99)
    assert choice == (steps[0], "skipped: it needs 2 cards, and there are 1")


def test_a_step_waits_for_those_before_it_and_lets_others_pass() -> None:
    steps = [step("late", after=("early",)), step("other")]
    assert next_choice(steps, (), free=1, total=1, left_s=99) == (steps[1], "")
    assert next_choice(steps, {"early"}, free=1, total=1, left_s=99) == (steps[0], "")


def test_a_step_whose_limit_does_not_fit_is_skipped() -> None:
    choice = next_choice([step("a", limit_s=300)], (), free=1, total=1, left_s=120)
    assert choice is not None
    assert choice.refusal == "skipped: limit 300 s, 120 s left"


def test_cores_are_shared_out() -> None:
    assert shares_of([0, 1, 2, 3, 4], 2) == [{0, 1}, {2, 3}]
    assert shares_of([7], 2) == [{7}, {7}]
    assert streams_of([], [0, 1]) == [Stream(None, frozenset({0, 1}))]
    assert streams_of(["4", "5"], [0, 1]) == [
        Stream("4", frozenset({0})),
        Stream("5", frozenset({1})),
    ]


def test_a_variable_that_is_not_set_is_named() -> None:
    assert with_variables(["$A/x", "${A}"], {"A": "1"}) == ["1/x", "1"]
    with pytest.raises(PlanProblem, match="MODELS"):
        with_variables(["$MODELS/x"], {})


def test_each_step_has_its_cards_its_folders_and_a_log(tmp_path: Path) -> None:
    look = (
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OUT'], os.environ['X'])"
    )
    both = step("both", "-c", look, cards=2, environment={"X": "1"})
    one = step("one", "-c", f"{look}; assert '$WORK'", environment={"X": "2"})
    suite = run(tmp_path, both, one, streams=2)
    assert states(suite) == {"both": "done", "one": "done"}
    out = tmp_path / "out"
    assert (out / "both.log").read_text() == f"0,1 {out / 'both'} 1\n"
    assert (out / "one.log").read_text() == f"0 {out / 'one'} 2\n"
    assert (tmp_path / "work" / "one").is_dir()


def test_steps_on_different_cards_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits until it hears of the other."""
    meet = (
        "import pathlib; here = pathlib.Path('$WORK').parent; (here / '{0}.up').touch()\n"
        "while not (here / '{1}.up').exists(): pass"
    )
    first = step("first", "-c", meet.format("first", "second"))
    second = step("second", "-c", meet.format("second", "first"))
    suite = run(tmp_path, first, second, streams=2)
    assert states(suite) == {"first": "done", "second": "done"}


def test_a_step_past_its_limit_is_killed_with_what_leads_its_own_group(tmp_path: Path) -> None:
    deep = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', "
        "'import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()'], "
        "start_new_session=True); print(p.pid, flush=True); p.wait()"
    )
    suite = Suite(
        [step("deep", "-c", deep, limit_s=2.0), step("next")], [Stream(None, frozenset())],
        tmp_path, tmp_path / "work", grace_s=0.3,
    )  # fmt: skip
    suite.run()
    assert states(suite) == {"deep": "killed after its limit of 2 s", "next": "done"}
    assert is_gone(int((tmp_path / "deep.log").read_text()))


def test_a_failed_step_is_named_with_the_end_of_its_log_and_the_next_one_runs(
    tmp_path: Path,
) -> None:
    suite = run(
        tmp_path,
        step("bad", "-c", "raise SystemExit('no card')"),
        step("next", after=("bad",)),
        step("long", limit_s=1e6),
    )
    assert states(suite) == {
        "bad": "failed: exit code 1",
        "long": "skipped: limit 1000000 s, 59 s left",
        "next": "done",
    }
    lines = report(suite.results, tmp_path / "out")
    assert lines[-1] == "no card"


def test_a_suite_that_is_told_to_stop_ends_its_step_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_plan(
        tmp_path,
        {"name": "hang", "command": ["-c", HANG], "limit_s": 50},
        {"name": "never", "command": ["-c", "pass"], "limit_s": 5, "after": ["hang"]},
    )
    log = tmp_path / "out" / "hang.log"

    def tell() -> None:
        while not (log.is_file() and log.read_text()):
            threading.Event().wait(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        assert main([str(plan), "--out", str(tmp_path / "out")]) == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    printed = capsys.readouterr().out
    assert "| hang | 1 | stopped |" in printed
    assert "| never | 1 | not run: the suite was stopped | 0.0 |" in printed


def test_figures_of_all_steps_are_in_the_report(tmp_path: Path) -> None:
    record = Record("W5", "llm-tuned", 0, 10, 100, 50, "", Measured(1.0, 2.0, 3.0, 4.0, 5))
    line = json.dumps(record.as_json())
    raw = tmp_path / "raw"
    raw.write_text(f"{line}\n{line[:40]}")  # killed while it wrote
    assert read_records(raw) == [record]
    copy = f"import shutil; shutil.copy({str(raw)!r}, '$OUT/raw.jsonl')"
    suite = run(tmp_path, step("figures", "-c", copy))
    assert any(
        one.startswith("| W5 | llm-tuned | 1 | 5.0 |")
        for one in report(suite.results, tmp_path / "out")
    )


def test_a_command_line_with_a_mistake_ends_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODELS", raising=False)
    plan = write_plan(tmp_path, {"name": "a", "command": "-m x $MODELS", "limit_s": 1})
    assert main([str(plan), "--out", str(tmp_path / "out")]) == 2
    assert "MODELS" in capsys.readouterr().err
    assert main([str(tmp_path / "no.yaml"), "--out", str(tmp_path / "out")]) == 2
