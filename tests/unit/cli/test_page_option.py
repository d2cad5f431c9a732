"""`--page` writes a page beside what the terminal shows."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.unit.cli.test_app import batchwright
from tests.unit.pages.samples import read_page
from tests.unit.plan.model_configs import QWEN_7B
from tests.unit.rundir.small_runs import write_rows

ROWS = [
    {"prompt": f"You are helpful & <b>kind</b>. Question {n % 30}: {'why? ' * n}"}
    for n in range(40)
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", ROWS)


def test_profile(data: Path, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "profile.html"
    answer = batchwright("profile", data, "--page", page, "--json")
    assert answer.exit_code == 0, answer.stderr
    shown = read_page(page.read_text(encoding="utf-8"))
    assert f"{answer.json['prompt_tokens']['total']:,}" in shown.text
    assert "You are helpful & <b>kind</b>." in shown.all("pre")[0].text


def test_plan(data: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_bytes(orjson.dumps(QWEN_7B))
    page = tmp_path / "plan.html"
    answer = batchwright(
        "plan", data, "--gpu", "H100", "--page", page, "--json",
        "--set", f"model.name={model}", "--set", "engine.kind=fake",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.stderr
    shown = read_page(page.read_text(encoding="utf-8"))
    assert f"{answer.json['kv_capacity_tokens']:,}" in shown.text
    assert "max_num_batched_tokens" in shown.text


def test_pilot(data: Path, tmp_path: Path) -> None:
    page = tmp_path / "pilot.html"
    answer = batchwright(
        "pilot", data, "--engine", "fake", "--rows", "20", "--page", page, "--json",
        "--dir", tmp_path / "run",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.stderr
    shown = read_page(page.read_text(encoding="utf-8"))
    assert f"{answer.json['rows']} of 40 rows" in shown.text


def test_a_page_that_cannot_be_written_costs_no_figures(data: Path) -> None:
    answer = batchwright("profile", data, "--page", data / "page.html")
    assert answer.exit_code != 0
    assert "prompt tokens" in answer.stdout
    assert "the page cannot be written" in answer.stderr
