"""The fake engine: answers that depend on the request alone, and faults on request."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.core.errors import JobError
from batchwright.core.outcomes import Outcome
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.engines.fake import FakeEngine
from batchwright.engines.fake_answers import cut_at_stop


def started(vocab_size: int = 256, max_num_seqs: int = 8, **options: Any) -> FakeEngine:
    engine = FakeEngine()
    engine.start(EngineSettings("fake", "", max_num_seqs, 512, (), vocab_size, options))
    return engine


def request(row: int, sampling: str = "{}", max_tokens: int = 100) -> Request:
    return Request(row, [97 + row % 26, 98, 99 + row // 26], max_tokens, sampling)


def run(engine: FakeEngine, requests: list[Request]) -> dict[int, Outcome]:
    engine.submit(requests)
    outcomes: list[Outcome] = []
    while len(outcomes) < len(requests):
        outcomes += engine.step(0.0)
    assert len({outcome.row for outcome in outcomes}) == len(requests)
    return {outcome.row: outcome for outcome in outcomes}


def test_answers_do_not_depend_on_order_batch_or_row_number() -> None:
    requests = [request(row) for row in range(50)]
    together = run(started(max_num_seqs=50), requests)
    apart = run(started(max_num_seqs=1), requests[::-1])
    assert together == apart
    moved = run(started(), [requests[7]._replace(row=1234)])[1234]
    assert moved.token_ids == together[7].token_ids


def test_answers_depend_on_prompt_and_sampling() -> None:
    answers = run(started(), [request(0), request(1), request(0, '{"seed":1}')._replace(row=2)])
    assert len({tuple(outcome.token_ids) for outcome in answers.values()}) == 3


def test_a_known_answer_stays_what_it_was() -> None:
    # A resumed run must give the same bytes, also under the next version of this package.
    answer = run(started(), [Request(0, [1, 2, 3], 100, "{}")])[0]
    assert bytes(answer.token_ids) == KNOWN
    assert answer.finish_reason == "stop"


KNOWN = b"yklhnxwh av q tnbgz"


@pytest.mark.parametrize(("vocab_size", "low", "high"), [(256, 32, 123), (4096, 16, 4096)])
def test_ids_lie_in_the_vocabulary(vocab_size: int, low: int, high: int) -> None:
    for outcome in run(started(vocab_size), [request(row) for row in range(200)]).values():
        assert 8 <= len(outcome.token_ids) <= 24
        assert all(low <= token_id < high for token_id in outcome.token_ids)
        if vocab_size == 256:
            assert bytes(outcome.token_ids).replace(b" ", b"a").islower()


def test_max_tokens_min_tokens_and_ignore_eos() -> None:
    engine = started()
    answers = run(engine, [request(0, max_tokens=3), request(1, '{"min_tokens":60}'),
                           request(2, '{"ignore_eos":true}', 90000)])  # fmt: skip
    assert (len(answers[0].token_ids), answers[0].finish_reason) == (3, "length")
    assert (len(answers[1].token_ids), answers[1].finish_reason) == (60, "stop")
    assert (len(answers[2].token_ids), answers[2].finish_reason) == (90000, "length")


@pytest.mark.parametrize(
    ("sampling", "text", "stop"),
    [
        ('{"stop":["END"]}', "alpha ", "END"),
        ('{"stop":["END","\\n\\n"]}', "alpha ", "END"),
        ('{"stop":["\\n\\n","END"]}', "alpha ", "END"),
        ('{"stop":[]}', "alpha END beta\n\ngamma", None),
        ('{"stop":["END"],"include_stop_str_in_output":true}', "alpha END", "END"),
    ],
)
@pytest.mark.parametrize("vocab_size", [256, 4096])
def test_stop_texts(vocab_size: int, sampling: str, text: str, stop: str | None) -> None:
    engine = started(vocab_size, text="alpha END beta\n\ngamma")
    outcome = run(engine, [request(0, sampling)])[0]
    assert (outcome.text, outcome.stop_reason, outcome.finish_reason) == (text, stop, "stop")


def test_the_fixed_text_is_capped_in_tokens() -> None:
    outcome = run(started(text="alpha beta"), [request(0, max_tokens=5)])[0]
    assert (outcome.text, outcome.finish_reason) == ("alpha", "length")


def test_cut_at_stop_takes_the_earliest() -> None:
    assert cut_at_stop("abcd", ["d", "b"], include=False) == ("a", "b")


@pytest.mark.parametrize(
    "bad",
    [
        Request(1, [], 5, "{}"),
        Request(1, [256], 5, "{}"),
        Request(1, [-1], 5, "{}"),
        Request(1, [97] * 512, 5, "{}"),
        Request(1, [97], 5, "{"),
        Request(1, [97], 5, '{"stop":[""]}'),
    ],
)
def test_bad_requests_fail_alone(bad: Request) -> None:
    answers = run(started(), [request(0), bad, request(2)])
    assert answers[1].error_code == "engine_refused"
    assert answers[1].error
    assert answers[0].error_code is answers[2].error_code is None


def test_refused_aborted_and_hanging_rows() -> None:
    engine = started(refuse_rows=[0], abort_rows=[1], hang_rows=[2])
    engine.submit([request(row) for row in range(4)])
    outcomes = {outcome.row: outcome for _ in range(5) for outcome in engine.step(0.0)}
    codes = {row: outcome.error_code for row, outcome in outcomes.items()}
    assert codes == {0: "engine_refused", 1: "aborted", 3: None}
    assert engine.gauges().running == 1
    engine.abort([2])
    assert engine.gauges().running == 0
    assert engine.step(0.0) == []


def test_rows_per_step() -> None:
    engine = started(rows_per_step=2)
    engine.submit([request(row) for row in range(5)])
    assert [len(engine.step(0.0)) for _ in range(3)] == [2, 2, 1]
    assert engine.gauges().steps == 3


def test_a_small_kv_pool_preempts_and_still_finishes_everything() -> None:
    engine = started(kv_tokens=60)
    assert len(run(engine, [request(row) for row in range(30)])) == 30
    assert engine.gauges().preemptions > 0
    assert 0 < engine.gauges().kv_use <= 1


def test_a_row_larger_than_the_pool_runs_alone() -> None:
    assert len(run(started(kv_tokens=2), [request(0), request(1)])) == 2


def test_unknown_options_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(JobError, match=r"Did you mean kill_rows\?"):
        started(kill_row=[1])
    with pytest.raises(JobError, match="not iterable"):
        started(kill_rows=1)
