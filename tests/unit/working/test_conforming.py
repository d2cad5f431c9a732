from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from batchwright.core.errors import EngineDied
from batchwright.core.ids import canonical_json
from batchwright.core.outcomes import More, Outcome, Sample
from batchwright.core.ports import EngineInfo, EngineSettings
from batchwright.core.records import Request
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor
from batchwright.engines.reading import RawAnswer, ReadAnswer
from batchwright.tokens.byte_level import ByteTokenizer
from batchwright.worker import Worker
from batchwright.working.conforming import Conformer, changed
from batchwright.working.finishing import Finisher
from tests.unit.rundir.small_runs import Row, SmallRun, small_run
from tests.unit.test_worker import TickingClock, WatchedEngine, parts, work

NUMBER = {"json": '{"type":"integer","multipleOf":2}'}


def request(row: int = 0, structured: Any = NUMBER, **sampling: Any) -> Request:
    fields = {"temperature": 0.0, **sampling}
    if structured is not None:
        fields["structured_outputs"] = structured
    return Request(row, [1, 2], 50, canonical_json(fields))


def answer(text: str, row: int = 0, reason: str = "stop", **fields: Any) -> Outcome:
    return Outcome(row, list(text.encode()), finish_reason=reason, **fields)


def watching(*requests: Request, retries: int = 2) -> Conformer:
    conformer = Conformer(Finisher(ByteTokenizer()), retries)
    for one in requests:
        conformer.watch(one)
    return conformer


def test_rows_without_constraint_pass_untouched() -> None:
    conformer = watching(request(structured=None), request(1))
    outcomes = [answer("anything", 0)]
    settled, again = conformer.judge(outcomes)
    assert settled == outcomes
    assert not again


def test_a_valid_answer_is_parsed() -> None:
    (settled,), again = watching(request()).judge([answer(" 4 ")])
    assert (settled.text, settled.more, again) == (" 4 ", More(parsed="4"), [])
    assert settled.error_code is None


def test_an_invalid_answer_is_asked_for_again_until_there_are_no_retries_left() -> None:
    conformer = watching(request(), retries=2)
    seen = set()
    for _ in range(2):
        settled, (again,) = conformer.judge([answer("3")])
        assert settled == []
        assert (again.row, again.token_ids, again.max_tokens) == (0, [1, 2], 50)
        seen.add(again.sampling)
    assert len(seen) == 2, "a greedy row is asked differently each time"
    (failed,), again_too = conformer.judge([answer("5", attempts=2)])
    assert not again_too
    assert (failed.error_code, failed.text, failed.attempts) == ("invalid_output", "5", 4)
    assert failed.error == "$: 5 is not a multiple of 2"
    assert conformer.judge([answer("5")])[0] == [answer("5")], "the row is forgotten"


def test_without_retries_the_first_answer_decides() -> None:
    (failed,), again = watching(request(), retries=0).judge([answer("x")])
    assert failed.error_code == "invalid_output"
    assert not again


def test_an_invalid_answer_may_be_kept_as_it_is() -> None:
    conformer = Conformer(Finisher(ByteTokenizer()), 0, "keep")
    conformer.watch(request())
    (kept,), again = conformer.judge([answer("3", reason="length")])
    assert (kept.text, kept.error_code, kept.more, again) == ("3", None, None, [])


def test_a_cut_answer_is_not_asked_for_again() -> None:
    (failed,), again = watching(request()).judge([answer("[1, 2", reason="length")])
    assert not again
    assert "cut at max_tokens 50; raise sampling.max_tokens" in str(failed.error)
    assert failed.text == "[1, 2"
    (valid,), _ = watching(request()).judge([answer("12", reason="length")])
    assert valid.error_code is None, "it is valid as it is"


def test_a_failure_of_the_engine_stays_what_it_is() -> None:
    conformer = watching(request())
    conformer.judge([answer("x")])
    dead = Outcome(0, [], error_code="engine_killed", error="dead", attempts=2)
    assert conformer.judge([dead]) == ([dead._replace(attempts=3)], [])


def test_every_answer_of_a_row_must_be_valid() -> None:
    good, bad = Sample(list(b"6"), finish_reason="stop"), Sample(list(b"7"), finish_reason="stop")
    conformer = watching(request(n=3), retries=1)
    settled, (again,) = conformer.judge([answer("4", more=More(samples=(good, bad)))])
    assert settled == []
    assert orjson.loads(again.sampling)["n"] == 3
    (failed,), _ = conformer.judge([answer("4", more=More(samples=(good, bad)))])
    assert failed.error == "answer 3 of 3: $: 7 is not a multiple of 2"
    assert failed.more is not None
    assert [one.text for one in failed.more.samples] == ["6", "7"]
    (valid,), _ = watching(request(n=2)).judge([answer("4", more=More(samples=(good,)))])
    assert valid.more is not None
    assert valid.more.parsed == "4"
    assert [one.more and one.more.parsed for one in valid.more.samples] == ["6"]


def test_log_probabilities_outlive_the_check() -> None:
    (valid,), _ = watching(request()).judge([answer("4", more=More(logprobs=()))])
    assert valid.more == More(logprobs=(), parsed="4")


def test_random_rows_are_asked_again_as_they_are() -> None:
    sampling = '{"temperature":0.7}'
    assert changed(sampling, 1) == sampling
    assert changed('{"top_p":0.9}', 2) == '{"top_p":0.9}', "vLLM's own temperature is 1"


def test_a_seed_is_counted_on_and_greedy_rows_get_warm() -> None:
    seeded = '{"seed":7,"temperature":0.7}'
    assert [orjson.loads(changed(seeded, k))["seed"] for k in (1, 2)] == [8, 9]
    assert orjson.loads(changed(seeded, 1))["temperature"] == 0.7
    greedy = [orjson.loads(changed('{"temperature":0.0}', k)) for k in (1, 2, 20)]
    assert [one["temperature"] for one in greedy] == [0.3, 0.6, 1.0]
    assert [one["seed"] for one in greedy] == [1, 2, 20]
    top = changed(f'{{"seed":{2**63 - 1},"temperature":1.0}}', 3)
    assert orjson.loads(top)["seed"] < 2**63


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}}
TEXTS = {0: ['{"n":1}', '{"n":2}'], 1: ['{"n":1}', "nonsense", '{"n": 4}'], 2: ['{"n":3}']}


def structured_run(tmp_path: Path, rows: int = 6, **settings: Any) -> SmallRun:
    data: list[Row] = [{"id": f"r{n}", "prompt": f"prompt {n}"} for n in range(rows)]
    sampling = {"sampling.structured_outputs": {"json": SCHEMA}}
    run = small_run(tmp_path, data, run__chunk_rows=4, **sampling, **settings)
    run.prepare()
    run.order()
    return run


class DyingEngine(WatchedEngine):
    """Answers like the fake engine, and is dead for the caller at some of its steps."""

    def __init__(self, deaths: Sequence[int]) -> None:
        super().__init__(self._maybe_die)
        self._deaths = set(deaths)

    def start(self, settings: EngineSettings) -> EngineInfo:
        self._queue.clear()
        return super().start(settings)

    def _maybe_die(self, step: int) -> None:
        if step in self._deaths:
            raise EngineDied("killed in a test")


def check_rows(found: dict[int, dict[str, Any]], rows: int = 6) -> None:
    assert sorted(found) == list(range(rows))
    assert [found[row]["status"] for row in (0, 1, 2)] == ["ok", "ok", "failed"]
    assert [found[row]["parsed"] for row in (0, 1, 2)] == ['{"n":2}', '{"n":4}', None]
    assert (found[2]["error_code"], found[2]["text"]) == ("invalid_output", '{"n":3}')


def test_a_worker_asks_again_and_commits_each_row_once(tmp_path: Path) -> None:
    run = structured_run(tmp_path)
    work(run, row_texts=TEXTS, text="{}")
    found = parts(run)
    check_rows(found)
    assert [found[row]["attempts"] for row in range(4)] == [2, 3, 3, 1]
    assert found[2]["completion_tokens"] == 7


@pytest.mark.parametrize("deaths", [[2], [3], [4], [2, 4, 7], [3, 5]])
def test_a_death_between_two_attempts_loses_no_row(tmp_path: Path, deaths: list[int]) -> None:
    run = structured_run(tmp_path)
    work(run, DyingEngine(deaths), row_texts=TEXTS, text="{}", rows_per_step=1)
    check_rows(parts(run))


def test_copies_wait_for_the_answer_that_counts(tmp_path: Path) -> None:
    run = small_run(
        tmp_path,
        [{"id": f"r{n}", "prompt": f"prompt {n % 2}"} for n in range(6)],
        run__repeat_once=True,
        **{"sampling.structured_outputs": {"json": SCHEMA}},
    )
    run.prepare()
    run.order()
    work(run, row_texts={0: ['{"n":1}', '{"n":8}'], 1: ['{"n":1}']})
    found = parts(run)
    assert [found[row]["parsed"] for row in (0, 2, 4)] == ['{"n":8}'] * 3
    assert {found[row]["error_code"] for row in (1, 3, 5)} == {"invalid_output"}


def test_rows_that_are_asked_again_are_in_flight_all_the_time(tmp_path: Path) -> None:
    """The worker may not end, and the chunk not close, while a retry is in the engine."""
    run = structured_run(tmp_path, rows=1)
    clock = TickingClock()
    settings = EngineSettings("fake", "", 2, 8192, options={"row_texts": {0: ["x", "y", "{}"]}})
    supervisor = Supervisor(FakeEngine, settings, monotonic=lambda: clock.seconds)
    Worker(run.storage, run.job, "w", clock, supervisor, run.tokenizer).run(threading.Event())
    assert supervisor.in_flight == 0
    assert parts(run)[0]["attempts"] == 3


class ThoughtReader:
    """Takes what stands before `</think>` for thoughts, and all of a text without it."""

    def __init__(self) -> None:
        self.reads = 0

    def start(self) -> None: ...

    def wait(self) -> None: ...

    def stop(self) -> None: ...

    def read(self, answers: Sequence[RawAnswer]) -> list[ReadAnswer]:
        self.reads += len(answers)
        read = []
        for one in answers:
            text = one.text if one.text is not None else bytes(one.token_ids).decode()
            thoughts, end, rest = text.partition("</think>")
            read.append(ReadAnswer(rest if end else "", thoughts, None))
        return read


def test_the_check_is_on_what_follows_the_thoughts(tmp_path: Path) -> None:
    run = structured_run(tmp_path, rows=2)
    clock = TickingClock()
    texts = {0: ['{"n":3}</think>{"n":4}'], 1: ['x</think>{"n":1}', 'y</think>{"n":6}']}
    settings = EngineSettings("fake", "", 2, 8192, options={"row_texts": texts})
    supervisor = Supervisor(FakeEngine, settings, monotonic=lambda: clock.seconds)
    reader: Any = ThoughtReader()
    worker = Worker(run.storage, run.job, "w", clock, supervisor, run.tokenizer, reader=reader)
    worker.run(threading.Event())
    found = parts(run)
    assert [found[row]["parsed"] for row in (0, 1)] == ['{"n":4}', '{"n":6}']
    assert [found[row]["reasoning"] for row in (0, 1)] == ['{"n":3}', "y"]
    assert [found[row]["text"] for row in (0, 1)] == ['{"n":4}', '{"n":6}']
    assert reader.reads == 3, "each answer is read once, before its check"


def test_an_answer_that_calls_tools_is_not_checked() -> None:
    more = More(tool_calls=({"id": "c", "type": "function"},))
    (settled,), again = watching(request()).judge([answer("", more=more)])
    assert settled.error_code is None
    assert not again
