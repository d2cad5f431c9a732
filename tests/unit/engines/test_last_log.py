from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.core.errors import EngineDied, EngineError, JobError
from batchwright.engines.last_log import LastLog, ended_before, find_starts, start_line

FULL = "OSError: [Errno 28] No space left on device\n"


def log_of(tmp_path: Path, text: str, earlier: str = "") -> LastLog:
    path = tmp_path / "engine.log"
    path.write_text(earlier + text)
    log = LastLog(path)
    log.begin(len(earlier.encode()))
    return log


def test_a_death_names_its_cause_and_what_to_do(tmp_path: Path) -> None:
    death = log_of(tmp_path, "at work\n" + FULL, "é\nmore\n").died("the engine process ended")
    assert isinstance(death, EngineDied)
    assert death.message == "the engine process ended: a disk is full [disk_full]"
    assert death.hint.startswith("Free some space")
    assert death.hint.endswith("engine.log, line 4")


def test_an_unknown_death_says_where_its_last_words_are(tmp_path: Path) -> None:
    death = log_of(tmp_path, "never seen before\n").died("the engine process ended")
    assert death.message == "the engine process ended"
    assert "last words" in death.hint


def test_the_signal_alone_may_tell(tmp_path: Path) -> None:
    death = log_of(tmp_path, "").died("the engine process was killed by SIGKILL")
    assert "[host_memory]" in death.message
    assert "line" not in death.hint.rpartition("Log:")[2]


def test_a_start_that_only_the_job_can_mend_is_an_error_of_the_job(tmp_path: Path) -> None:
    line = "ValueError: LoRA rank 64 is greater than max_lora_rank 16.\n"
    error = log_of(tmp_path, line).did_not_start("exit code 1")
    assert isinstance(error, JobError)
    assert "max_lora_rank: 64" in error.hint


def test_an_unknown_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    error = log_of(tmp_path, "one\ntwo\n", "before\n").did_not_start("exit code 1")
    assert isinstance(error, EngineError)
    assert error.message == "the engine did not start: exit code 1\n  | one\n  | two"


@pytest.mark.parametrize("kind", [EngineError, JobError])
def test_the_engines_own_error_is_read_too(
    tmp_path: Path, kind: type[EngineError | JobError]
) -> None:
    error = log_of(tmp_path, "").explained(kind("vLLM did not start: No space left on device"))
    assert type(error) is kind
    assert "vLLM did not start: a disk is full [disk_full]\n  | No space left" in error.message


def test_an_error_that_says_what_to_do_stays(tmp_path: Path) -> None:
    error = JobError("there are no weights", "Download them.")
    assert log_of(tmp_path, FULL).explained(error) is error


def test_a_core_that_died_politely_is_a_death(tmp_path: Path) -> None:
    error = log_of(tmp_path, FULL).explained(EngineDied("vLLM's engine core died: see above"))
    assert isinstance(error, EngineDied)
    assert error.message == "vLLM's engine core died: a disk is full [disk_full]"


def test_without_a_log_nothing_is_made_up(tmp_path: Path) -> None:
    death = LastLog(tmp_path / "none.log").died("gone")
    assert death.message == "gone"


def starts_of(*starts: tuple[float, str], ahead: str = "") -> str:
    return ahead + "".join(start_line(at).decode() + text for at, text in starts)


def test_a_log_comes_apart_by_its_starts() -> None:
    log = starts_of((1000.25, FULL), (2000.5, "up\nat wo"), (3000.0, ""), ahead="cut off ")
    ahead, *starts = find_starts(log)
    assert ahead == (0.0, "cut off ")
    assert starts == [(1000.25, FULL), (2000.5, "up\nat wo"), (3000.0, "")]


def test_a_log_without_starts_is_all_one() -> None:
    assert find_starts(FULL) == [(0.0, FULL)]
    assert ended_before(find_starts(FULL), 50.0).text == FULL


def test_the_start_that_ended_is_the_one_before_the_engine_was_up_again() -> None:
    starts = find_starts(starts_of((10.0, "old"), (20.0, FULL), (30.0, "good"), (90.0, "later")))
    assert ended_before(starts, 35.0).text == FULL
    assert ended_before(starts, 25.0).text == "old"
