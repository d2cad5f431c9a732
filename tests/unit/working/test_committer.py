"""Parts of a chunk: finished rows are committed without waiting for the slow ones, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.core.outcomes import Outcome
from batchwright.core.records import Request
from batchwright.pipeline import verify
from batchwright.rundir.storage import Storage
from batchwright.working.committer import ActiveChunk, Committer, set_copies_apart
from tests.unit.rundir.small_runs import ManualClock, SmallRun, prompts, small_run

GREEDY = '{"temperature":0.0}'


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    run = small_run(tmp_path, prompts(6))
    run.prepare()
    run.order()
    return run


def committer(run: SmallRun, name: str = "w") -> Committer:
    return Committer(run.storage, name, ManualClock(), run.tokenizer, None)


def load(run: SmallRun, name: str = "w") -> ActiveChunk:
    return committer(run, name).load(run.state().chunks[0])


def answers(*rows: int) -> list[Outcome]:
    return [Outcome(row, [97, 98, row + 97], finish_reason="stop") for row in rows]


def counts(run: SmallRun) -> tuple[int, int, bool]:
    found = run.state().counts()
    return found.ok, found.chunks_done, found.complete


def test_a_part_of_a_chunk_counts_and_the_chunk_stays_open(run: SmallRun) -> None:
    active = load(run)
    assert committer(run).commit(active, answers(0, 2), last=False)
    assert counts(run) == (2, 0, False)
    assert committer(run).commit(active, answers(1, 3, 4, 5), last=True)
    assert counts(run) == (6, 1, True)
    assert verify(run.storage.root).passed


def test_only_rows_without_a_receipt_are_run_again(run: SmallRun) -> None:
    committer(run).commit(load(run), answers(0, 2), last=False)
    again = load(run, "other")
    assert again.rows.tolist() == [1, 3, 4, 5]
    assert [request.row for request in again.requests] == [1, 3, 4, 5]
    assert committer(run, "other").commit(again, answers(1, 3, 4, 5), last=True)
    assert verify(run.storage.root).passed


def test_two_workers_on_one_chunk_commit_each_row_once(run: SmallRun) -> None:
    mine, theirs = load(run), load(run, "other")
    assert committer(run, "other").commit(theirs, answers(0, 1, 2), last=False)
    assert committer(run).commit(mine, answers(1, 2, 3), last=False)
    assert counts(run)[0] == 4
    assert committer(run, "other").commit(theirs, answers(3, 4, 5), last=True)
    assert not committer(run).commit(mine, answers(0, 4, 5), last=True)
    assert counts(run) == (6, 1, True)
    assert verify(run.storage.root).passed
    assert len(run.storage.names("output")) == 3, "the loser leaves no part behind"


def test_the_loser_of_a_whole_chunk_leaves_nothing(run: SmallRun) -> None:
    mine, theirs = load(run), load(run, "other")
    assert committer(run, "other").commit(theirs, answers(*range(6)), last=True)
    assert not committer(run).commit(mine, answers(*range(6)), last=True)
    assert not committer(run).commit(mine, answers(0), last=False)
    assert len(run.storage.names("output")) == 1
    assert len(run.storage.names("receipts")) == 1


def test_a_chunk_of_which_only_the_last_receipt_lacks_is_closed(run: SmallRun) -> None:
    committer(run).commit(load(run), answers(*range(6)), last=False)
    again = load(run)
    assert again.unfinished == 0
    assert not again.closed
    assert committer(run).commit(again, [], last=True)
    assert counts(run) == (6, 1, True)
    assert verify(run.storage.root).passed
    assert load(run).closed


def test_when_a_chunk_is_stalled(run: SmallRun) -> None:
    active = load(run)
    active.started_at = 100.0
    active.take_in(answers(0)[0], 8, 101.0)
    assert not active.is_stalled(110.0), "rows are still going in"
    active.fed = True
    assert not active.is_stalled(102.5)
    assert active.is_stalled(103.5)
    active.hand_over(103.5)
    active.take_in(answers(1)[0], 8, 104.0)
    assert not active.is_stalled(120.0), "not so soon again"
    assert active.is_stalled(140.0)
    active.started_at = -1000.0
    assert not active.is_stalled(140.0), "an old chunk has patience"


def test_storage_is_the_only_state(run: SmallRun) -> None:
    committer(run).commit(load(run), answers(0), last=False)
    elsewhere = SmallRun(Storage(run.storage.root), run.manifest, run.job, run.tokenizer)
    assert load(elsewhere).rows.tolist() == [1, 2, 3, 4, 5]


def asked(row: int, ids: list[int], max_tokens: int = 5, sampling: str = GREEDY) -> Request:
    return Request(row, ids, max_tokens, sampling)


def test_only_what_is_the_same_request_is_a_copy() -> None:
    requests = [
        asked(0, [1, 2]),
        asked(1, [1, 2]),
        asked(2, [1, 2], max_tokens=6),
        asked(3, [1, 2], sampling='{"temperature":0.0,"min_tokens":1}'),
        asked(4, [1, 258]),
        asked(5, [1, 2]),
        asked(6, [1, 258]),
    ]
    firsts, copies = set_copies_apart(requests)
    assert [request.row for request in firsts] == [0, 2, 3, 4]
    assert copies == {0: [1, 5], 4: [6]}


@pytest.mark.parametrize(
    "sampling", ["", "{}", '{"temperature":0.7,"seed":1}', '{"temperature":0.0,"n":2}']
)
def test_answers_that_may_differ_are_computed_each(sampling: str) -> None:
    firsts, copies = set_copies_apart([asked(row, [1], sampling=sampling) for row in range(3)])
    assert [request.row for request in firsts] == [0, 1, 2]
    assert copies == {}


def test_an_outcome_is_taken_in_for_the_copies_too(run: SmallRun) -> None:
    active = load(run)
    active.copies = {0: [2, 5]}
    found = active.take_in(Outcome(0, [97], cached_tokens=16, attempts=2), 40, 1.0)
    assert [(one.row, one.cached_tokens, one.attempts) for one in found] == [
        (0, 16, 2), (2, 40, 2), (5, 40, 2),
    ]  # fmt: skip
    assert active.unfinished == 3
    failed = active.take_in(Outcome(1, [], error_code="timeout", error="late"), 40, 2.0)
    assert [(one.row, one.cached_tokens) for one in failed] == [(1, 0)]
    assert active.hand_over(3.0) == found + failed


def test_the_same_request_to_another_adapter_is_no_copy() -> None:
    extras = ["", '{"adapter":"one"}', '{"adapter":"two"}', '{"adapter":"one"}']
    requests = [asked(row, [1])._replace(extras=extra) for row, extra in enumerate(extras)]
    firsts, copies = set_copies_apart(requests)
    assert [request.row for request in firsts] == [0, 1, 2]
    assert copies == {1: [3]}


def test_rows_that_are_sent_other_things_are_no_copies() -> None:
    """Equal tokens may stand for different requests: an estimate knows no tools."""
    asked = [Request(row, [1], 5, GREEDY, extras) for row, extras in enumerate(["a", "b", "a"])]
    firsts, copies = set_copies_apart(asked)
    assert [one.row for one in firsts] == [0, 1]
    assert copies == {0: [2]}
