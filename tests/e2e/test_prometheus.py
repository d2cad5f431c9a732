"""A real Prometheus reads a run as it goes on, and knows an answer to every question we ask."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from batchwright.core.ports import EngineSettings
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor
from batchwright.metrics.server import serving
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.heartbeat import Heartbeat
from batchwright.rundir.ledger import Ledger
from batchwright.running import roles
from batchwright.running.drive import Progress
from batchwright.worker import Worker
from tests.unit.metrics.samples import PROGRESS, READING, heartbeat
from tests.unit.pages.samples import REPORT
from tests.unit.rundir.small_runs import SmallRun, prompts, small_run

MONITORING = Path(__file__).parents[2] / "monitoring"
PATIENCE_S = 30.0
ROWS = 2000

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed"
)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def told(run: SmallRun, **changes: Any) -> Progress:
    return replace(PROGRESS, run_dir=run.storage.place, **changes)


@contextmanager
def running(run: SmallRun, port: int) -> Iterator[None]:
    """Rows are prepared and answered, slowly; one in fifty is refused."""
    stop = threading.Event()
    settings = EngineSettings(
        "fake", "", max_num_seqs=8, max_model_len=8192,
        options={"seconds_per_step": 0.02, "rows_per_step": 1, "kv_tokens": 4000,
                 "refuse_rows": list(range(0, ROWS, 50))},
    )  # fmt: skip
    worker = Worker(
        run.storage, run.job, "infer-1", SystemClock(), Supervisor(FakeEngine, settings),
        run.tokenizer,
    )  # fmt: skip

    def infer() -> None:
        with pytest.raises(roles.Stopped):
            worker.run(stop)

    def prepare() -> None:
        roles.prepare(run.storage, run.manifest, run.job, "prepare-1", stop)

    with serving(port, lambda _progress: None) as watch:
        tell = partial(_tell, run, watch, stop)
        threads = [threading.Thread(target=work) for work in (prepare, infer, tell)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _tell(run: SmallRun, watch: Callable[[Progress], None], stop: threading.Event) -> None:
    while not stop.wait(0.5):
        watch(told(run, counts=run.state().counts()))


@contextmanager
def with_cards(run: SmallRun, port: int) -> Iterator[None]:
    """A run that has what this machine lacks: cards, a pilot's estimate, a limit."""
    run.storage.put("pilot.json", orjson.dumps(REPORT.as_json()))
    ledger = Ledger(run.storage, "w", SystemClock(), 60)
    state = {key: one for key, one in heartbeat(READING).items() if key not in ("at", "ended")}
    with serving(port, lambda _progress: None) as watch, Heartbeat(ledger, lambda: state, 60):
        watch(told(run))
        yield


@contextmanager
def prometheus(folder: Path, ports: list[int]) -> Iterator[str]:
    """A server that scrapes these ports often; its address."""
    own = free_port()
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(MONITORING / "rules.yml")]
    targets = [f"127.0.0.1:{port}" for port in ports]
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{own}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{own}"
    finally:
        server.kill()
        server.wait()


def ask(address: str, query: str) -> list[dict[str, Any]]:
    """Series that a query finds now; none while the server is starting."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return list(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 503:
                pytest.fail(f"{query}: {error.read().decode()}")
    except OSError:  # it does not listen yet
        pass
    return []


def queries() -> list[str]:
    """All of the dashboard and the rules; of an alert its figures, whatever they are."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    shown = [
        target["expr"].replace("$__rate_interval", "5m").replace("$run", ".*")
        for panel in panels
        for target in panel.get("targets", [])
    ]
    rules = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]
    recorded = [text for one in rules if "record" in one for text in (one["record"], one["expr"])]
    alerts = [
        re.sub(r" (==|>=|<=|>|<) ", r" \1 bool ", one["expr"]) for one in rules if "alert" in one
    ]
    return [*shown, *recorded, *alerts]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    real = small_run(
        folder / "a", prompts(ROWS), run_dir="runs/real", run__chunk_rows=20, run__grace_s=0
    )
    other = small_run(folder / "b", prompts(4), run_dir="runs/other", plan__max_hours=3)
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        stack.enter_context(with_cards(other, ports[1]))
        stack.enter_context(running(real, ports[0]))
        yield stack.enter_context(prometheus(folder, ports))


def test_every_query_of_the_dashboard_and_the_rules_has_an_answer(address: str) -> None:
    unanswered = queries()
    assert len(unanswered) > 60
    deadline = time.monotonic() + PATIENCE_S
    while unanswered and time.monotonic() < deadline:
        unanswered = [query for query in unanswered if not ask(address, query)]
        time.sleep(0.5)
    assert unanswered == []


def test_the_real_run_is_told_as_it_goes_on(address: str) -> None:
    def first(query: str) -> float:
        found = ask(address, query)
        return float(found[0]["value"][1]) if found else 0.0

    deadline = time.monotonic() + PATIENCE_S
    while not first('run:batchwright_rows_finished:rate5m{run="real"}'):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert first('batchwright_rows{run="real", fate="ok"}') > 0
    assert first('batchwright_failed_rows{run="real", code="engine_refused"}') > 0
    assert first('batchwright_prepared_rows_total{run="real"}') == ROWS
    assert first('batchwright_engine_steps_total{run="real"}') > 0
    assert 0 < first('batchwright_engine_kv_cache_usage_ratio{run="real"}') <= 1
    assert ask(address, 'batchwright_gpu_power_watts{run="real"}') == []
