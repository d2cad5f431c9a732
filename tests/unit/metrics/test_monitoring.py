"""The rules and the dashboard under `monitoring/` ask for what is exported, and mean what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchwright.metrics.server import FAMILIES

FOLDER = Path(__file__).parents[3] / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())

with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def targets() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield from panel.get("targets", [])


def test_every_metric_that_is_asked_for_is_exported() -> None:
    queries = [one["expr"] for one in [*rules(), *targets()]]
    texts = json.dumps(RULES) + "".join(queries)
    asked = set(re.findall(r"(?<![:\w])batchwright_\w+", texts))
    assert len(asked) > 50
    assert asked <= {one.name for one in FAMILIES}


def test_every_recorded_series_that_is_asked_for_is_recorded() -> None:
    asked = {
        name for one in rules() for name in re.findall(r"\w+:batchwright_\w+:\w+", one["expr"])
    }
    assert asked <= {one["record"] for one in rules() if "record" in one}


def test_every_alert_says_what_is_the_matter() -> None:
    alerts = [one for one in rules() if "alert" in one]
    assert len(alerts) > 10
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert "{{ $labels.run }}" in alert["annotations"]["summary"]


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert DASHBOARD["uid"] == "batchwright"
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for one in [*targets(), variables["run"]]:
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all('run=~"$run"' in one["expr"] for one in targets())


def test_panels_stand_beside_each_other_and_not_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


@with_promtool
@pytest.mark.parametrize(
    "command",
    [
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules_test.yml"],
        ["check", "config", "--syntax-only", "prometheus.yml"],
    ],
    ids=lambda command: command[0] + " " + command[1],
)
def test_promtool_is_content(command: list[str]) -> None:
    found = subprocess.run(
        ["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_pods_that_have_ended_are_not_asked() -> None:
    config = yaml.safe_load((FOLDER / "prometheus-kubernetes.yml").read_text())
    (scraped,) = config["scrape_configs"]
    dropped = [
        one["regex"] for one in scraped["relabel_configs"]
        if one.get("action") == "drop" and one["source_labels"] == ["__meta_kubernetes_pod_phase"]
    ]  # fmt: skip
    assert dropped == ["Succeeded|Failed"]
