"""What a pilot takes from its workers' readings."""

from __future__ import annotations

from batchwright.core.ports import EngineGauges
from batchwright.core.readings import Reading
from batchwright.foresight.piloting import accepted_share, preemptions


def of(**gauges: int) -> Reading:
    return Reading(at=1.0, worker="w", engine=EngineGauges(**gauges))


BARE = Reading(at=1.0, worker="w")


def test_the_share_of_accepted_tokens_is_that_of_the_last_counters() -> None:
    first = [
        BARE,
        of(drafted_tokens=10, accepted_tokens=1),
        of(drafted_tokens=100, accepted_tokens=60),
        BARE,
    ]
    second = [of(drafted_tokens=100, accepted_tokens=40)]
    assert accepted_share([first, second, [], [BARE]]) == 0.5


def test_without_speculative_decoding_there_is_no_such_share() -> None:
    assert accepted_share([[of(), BARE], []]) is None


def test_preemptions_are_counted_by_each_engine_for_itself() -> None:
    assert preemptions([BARE, of(preemptions=3), of(preemptions=1), BARE]) == 3
    assert preemptions([BARE]) == 0
