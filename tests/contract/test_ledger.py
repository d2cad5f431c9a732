"""What every ledger must keep, checked on the ledger of a run directory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import psutil
import pytest

from batchwright.rundir import layout
from batchwright.rundir.heartbeat import declare_dead
from batchwright.rundir.ledger import Ledger, new_worker_name, read_heartbeat
from batchwright.rundir.storage import Storage
from tests.unit.rundir.small_runs import ManualClock

LEASE_S = 60.0


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def ledger(storage: Storage, name: str, clock: ManualClock) -> Ledger:
    return Ledger(storage, name, clock, LEASE_S)


def elsewhere(storage: Storage, name: str, beat: int, **more: object) -> None:
    """A heartbeat of a worker on another machine."""
    state = {"host": "far-away", "boot": 1, "pid": 1, "started": 1.0, "beat": beat, **more}
    storage.put(layout.heartbeat(name), orjson.dumps(state))


def test_a_unit_is_claimed_once_among_many(storage: Storage, clock: ManualClock) -> None:
    ledgers = [ledger(storage, f"w{number}", clock) for number in range(8)]
    for one in ledgers:
        one.heartbeat({})
    together = threading.Barrier(8)

    def race(one: Ledger) -> list[bool]:
        together.wait()
        return [one.claim(f"chunk-{number}") for number in range(10)]

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, ledgers))
    assert [sum(column) for column in zip(*won, strict=True)] == [1] * 10


def test_a_worker_does_not_claim_its_own_unit_twice(storage: Storage, clock: ManualClock) -> None:
    mine = ledger(storage, "me", clock)
    assert mine.claim("unit")
    assert not mine.claim("unit")
    clock.sleep(10 * LEASE_S)
    assert not mine.claim("unit")


def test_a_silent_worker_loses_its_claim_after_the_lease_and_not_before(
    storage: Storage, clock: ManualClock
) -> None:
    elsewhere(storage, "them", 5)
    storage.create(layout.claim("unit", 0), b'{"worker":"them"}')
    mine = ledger(storage, "me", clock)
    mine.refresh()
    assert not mine.claim("unit")
    clock.sleep(LEASE_S)
    assert not mine.claim("unit")
    clock.sleep(0.1)
    assert mine.claim("unit")
    assert orjson.loads(storage.read(layout.claim("unit", 1))) == {"worker": "me"}


def test_a_heartbeat_that_changes_renews_the_lease(storage: Storage, clock: ManualClock) -> None:
    storage.create(layout.claim("unit", 0), b'{"worker":"them"}')
    mine = ledger(storage, "me", clock)
    mine.refresh()
    for beat in range(5):
        elsewhere(storage, "them", beat)
        assert not mine.claim("unit")
        clock.sleep(LEASE_S - 1)
    assert not mine.claim("unit")
    clock.sleep(2)
    assert mine.claim("unit")


def test_the_clock_of_the_other_machine_does_not_matter(
    storage: Storage, clock: ManualClock
) -> None:
    elsewhere(storage, "them", 5, at=clock.now() - 1e6)
    assert not ledger(storage, "me", clock).is_silent("them")


def test_a_worker_that_never_gave_a_sign_of_life_gets_one_lease(
    storage: Storage, clock: ManualClock
) -> None:
    storage.create(layout.claim("unit", 0), b'{"worker":"them"}')
    mine = ledger(storage, "me", clock)
    mine.refresh()
    assert not mine.claim("unit")
    clock.sleep(LEASE_S + 1)
    assert mine.claim("unit")


def test_a_worker_that_ended_loses_its_claims_at_once(storage: Storage, clock: ManualClock) -> None:
    theirs = ledger(storage, "them", clock)
    theirs.heartbeat({})
    assert theirs.claim("unit")
    mine = ledger(storage, "me", clock)
    mine.refresh()
    assert not mine.claim("unit")
    theirs.heartbeat({}, ended=True)
    assert mine.claim("unit")


def test_a_worker_that_is_known_to_be_gone_loses_its_claims_at_once(
    storage: Storage, clock: ManualClock
) -> None:
    """Ray tells that a node is gone: its chunks need not wait for the lease."""
    storage.create(layout.claim("chunk", 0), orjson.dumps({"worker": "gone"}))
    elsewhere(storage, "gone", beat=7, rows=3)
    mine = ledger(storage, "mine", clock)
    assert not mine.claim("chunk")
    declare_dead(storage, "gone")
    declare_dead(storage, "never-began")
    assert mine.claim("chunk")
    assert read_heartbeat(storage, "gone")["rows"] == 3, "what it did still counts"
    assert read_heartbeat(storage, "never-began") == {}


def test_a_stolen_unit_is_stolen_by_one(storage: Storage, clock: ManualClock) -> None:
    storage.create(layout.claim("unit", 0), b'{"worker":"gone"}')
    elsewhere(storage, "gone", 1, ended=True)
    thieves = [ledger(storage, f"w{number}", clock) for number in range(4)]
    for thief in thieves:
        thief.heartbeat({})
        thief.refresh()
    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(lambda thief: thief.claim("unit"), thieves))
    assert won.count(True) == 1


def _heartbeat_of_process(storage: Storage, name: str, process: psutil.Process) -> None:
    """A heartbeat as if that process of this machine had written it."""
    ledger(storage, name, ManualClock()).heartbeat({})
    state = read_heartbeat(storage, name)
    state |= {"pid": process.pid, "started": process.create_time()}
    storage.put(layout.heartbeat(name), orjson.dumps(state))


def test_a_dead_process_of_this_machine_loses_its_claims_at_once(
    storage: Storage, clock: ManualClock
) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        _heartbeat_of_process(storage, "child", psutil.Process(child.pid))
        storage.create(layout.claim("unit", 0), b'{"worker":"child"}')
        mine = ledger(storage, "me", clock)
        mine.refresh()
        assert not mine.claim("unit")
        child.kill()
    assert mine.claim("unit")


def test_a_process_number_that_was_given_again_is_not_the_worker(
    storage: Storage, clock: ManualClock
) -> None:
    _heartbeat_of_process(storage, "them", psutil.Process())
    state = read_heartbeat(storage, "them")
    state["started"] -= 3600
    storage.put(layout.heartbeat("them"), orjson.dumps(state))
    assert ledger(storage, "me", clock).is_silent("them")


@pytest.mark.parametrize("set_by_s", [-4, -2, 2, 4])
def test_a_clock_that_is_set_makes_no_living_worker_dead(
    storage: Storage, clock: ManualClock, set_by_s: int
) -> None:
    """The kernel tells the time at which it was started, and so all others, by the clock of now."""
    _heartbeat_of_process(storage, "them", psutil.Process())
    state = read_heartbeat(storage, "them")
    state |= {"started": state["started"] + set_by_s, "boot": state["boot"] + set_by_s}
    storage.put(layout.heartbeat("them"), orjson.dumps(state))
    assert not ledger(storage, "me", clock).is_silent("them")


def test_a_living_process_of_this_machine_keeps_its_claims(
    storage: Storage, clock: ManualClock
) -> None:
    theirs = ledger(storage, "them", clock)
    mine = ledger(storage, "me", clock)
    for _ in range(4):
        theirs.heartbeat({})
        assert not mine.is_silent("them")
        clock.sleep(LEASE_S - 1)


def test_a_machine_that_was_started_again_says_nothing_of_the_process(
    storage: Storage, clock: ManualClock
) -> None:
    _heartbeat_of_process(storage, "them", psutil.Process())
    state = read_heartbeat(storage, "them") | {"boot": 1, "pid": 2**22 - 1}
    storage.put(layout.heartbeat("them"), orjson.dumps(state))
    assert not ledger(storage, "me", clock).is_silent("them")


IN_ANOTHER_NAMESPACE = """
import sys
from tests.unit.rundir.small_runs import ManualClock
from batchwright.rundir.ledger import Ledger
from batchwright.rundir.storage import Storage
print(Ledger(Storage(sys.argv[1]), "me", ManualClock(), 60).is_silent("them"))
"""


def _own_namespace(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *command],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_a_living_worker_in_another_container_of_the_host_keeps_its_claims(
    storage: Storage, clock: ManualClock
) -> None:
    """Pods with hostNetwork share host name and boot time, but not process numbers."""
    try:
        if _own_namespace("true").returncode:
            pytest.skip("process namespaces are not allowed here")
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    ledger(storage, "them", clock).heartbeat({})
    seen = _own_namespace(sys.executable, "-c", IN_ANOTHER_NAMESPACE, str(storage.root))
    assert seen.stdout.strip() == "False", seen.stderr


def test_claims_survive_in_a_ledger_opened_again(storage: Storage, clock: ManualClock) -> None:
    theirs = ledger(storage, "them", clock)
    theirs.heartbeat({})
    assert theirs.claim("split-000001")
    mine = ledger(storage, "me", clock)
    assert not mine.is_claimed("split-000001")
    mine.refresh()
    assert mine.is_claimed("split-000001")
    assert not mine.claim("split-000001")


def test_refresh_looks_at_the_folder_no_more_often_than_asked(
    storage: Storage, clock: ManualClock
) -> None:
    mine = ledger(storage, "me", clock)
    mine.refresh(5)
    storage.create(layout.claim("unit", 0), b'{"worker":"them"}')
    mine.refresh(5)
    assert not mine.is_claimed("unit")
    clock.sleep(5)
    mine.refresh(5)
    assert mine.is_claimed("unit")


def test_the_newest_of_several_claims_holds(storage: Storage, clock: ManualClock) -> None:
    for epoch, worker in enumerate(["gone", "gone", "alive"]):
        storage.create(layout.claim("unit", epoch), orjson.dumps({"worker": worker}))
    elsewhere(storage, "gone", 1, ended=True)
    elsewhere(storage, "alive", 1)
    mine = ledger(storage, "me", clock)
    assert not mine.claim("unit")
    mine.refresh()
    assert not mine.claim("unit")
    elsewhere(storage, "alive", 2, ended=True)
    assert mine.claim("unit")
    assert storage.names(layout.CLAIMS)[-1] == "unit.3"


@pytest.mark.parametrize("torn", [b"", bytes(20), b'{"wor'])
def test_a_claim_torn_by_a_power_cut_is_free(
    storage: Storage, clock: ManualClock, torn: bytes
) -> None:
    storage.create(layout.claim("unit", 0), torn)
    mine = ledger(storage, "me", clock)
    mine.refresh()
    assert mine.claim("unit")


@pytest.mark.parametrize("torn", [b"", bytes(100), b'{"beat":'])
def test_a_heartbeat_torn_by_a_power_cut_is_as_good_as_none(storage: Storage, torn: bytes) -> None:
    storage.put(layout.heartbeat("them"), torn)
    assert read_heartbeat(storage, "them") == {}


def test_a_heartbeat_tells_who_and_how_far(storage: Storage, clock: ManualClock) -> None:
    mine = ledger(storage, "me", clock)
    mine.heartbeat({"phase": "running"})
    mine.heartbeat({"phase": "stopping"}, ended=True)
    state = read_heartbeat(storage, "me")
    assert state["phase"] == "stopping"
    assert state["ended"] is True
    assert state["beat"] == 2
    assert state["pid"] == os.getpid()


def test_names_of_workers_are_never_the_same() -> None:
    assert len({new_worker_name("infer") for _ in range(100)}) == 100
