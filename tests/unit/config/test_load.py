from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright.config.job import Job
from batchwright.config.load import load_job, make_job, parse_settings
from batchwright.core.errors import JobError


def load(tmp_path: Path, text: str | bytes, **overrides: Any) -> Job:
    path = tmp_path / "my-job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_job(path, {key.replace("__", "."): value for key, value in overrides.items()})


def refused(tmp_path: Path, text: str | bytes, **overrides: Any) -> str:
    with pytest.raises(JobError) as caught:
        load(tmp_path, text, **overrides)
    assert caught.value.exit_code == 2
    return caught.value.message.replace(str(tmp_path / "my-job.yaml"), "JOB")


GOOD = "input:\n  path: rows.jsonl\n"


def test_a_job_file_is_read_and_named_after_itself(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD + "model:\n  name: org/model\nsampling: {max_tokens: 9}\n")
    assert job.name == "my-job"
    assert job.model.name == "org/model"
    assert job.sampling.max_tokens == 9
    assert job.run.replicas is None
    assert load(tmp_path, GOOD + "name: other\n").name == "other"


def test_json_is_a_job_file_too(tmp_path: Path) -> None:
    assert load(tmp_path, '{"input": {"path": "x", "limit": 3}}').input.limit == 3


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()).input.path.endswith("rows.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "modle:\n  name: x\n", "JOB:3: unknown key modle; did you mean model?"),
        (GOOD + "run:\n  replicas: 2\n  replica: 3\n",
         "JOB:5: unknown key run.replica; did you mean replicas?"),
        (GOOD + "\n# a comment\nsampling:\n    temprature: 1\n",
         "JOB:6: unknown key sampling.temprature; did you mean temperature?"),
        (GOOD + "max_tokens: 3\n", "JOB:3: unknown key max_tokens; did you mean sampling.max_tokens?"),
        (GOOD + "run: {template: x}\n",
         "JOB:3: unknown key run.template; did you mean prompt.template?"),
        (GOOD + "model: llama\n", "JOB:3: model is a section, with keys of its own: adapter, "),
        ("model: {name: x}\n", "JOB: input is missing"),
        ("input:\n  limit: 3\n", "JOB:1: input.path is missing"),
        (GOOD + "run:\n  replicas: 0\n", "JOB:4: run.replicas: input should be greater than"),
        (GOOD + "run:\n  replicas: many\n", "JOB:4: run.replicas: input should be a valid integer"),
        (GOOD + "engine: {kind: vlm}\n", "JOB:3: engine.kind: input should be 'auto', 'vllm', 'torch', 'openai' or 'fake'"),
        (GOOD + "run: 7\n", "JOB:3: run is a section"),
        (GOOD + "sampling:\n  temperature: -1\n", "JOB:4: sampling.temperature: "),
        (GOOD + "prompt:\n  examples:\n    - {fields: {a: 1}, answer: x}\n    - {answer: y}\n",
         "JOB:6: prompt.examples.1.fields is missing"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_and_the_nearest_key(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refused(tmp_path, text).startswith(message)


def test_every_error_is_named_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "run: {replicas: 0}\nmodle: 1\nengine: {kind: x}\n")
    assert sorted(line.split()[0] for line in message.splitlines()) == [
        "JOB:3:",
        "JOB:4:",
        "JOB:5:",
    ]


def test_a_name_that_is_like_no_other_shows_what_there_is(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "engine: {zzz: 1}\n")
    assert "known here: hang_timeout_s, kind, " in message
    assert "engine.options" in message


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("  template: {{ text }}", "quotes"),
        ("  template: Review: {{ text }}", "quotes"),
        ("  system: Rule: be kind", "quotes"),
        ("\ttemplate: x", "spaces"),
    ],
)
def test_what_mostly_breaks_yaml_has_a_hint(tmp_path: Path, line: str, hint: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{GOOD}prompt:\n{line}\n")
    with pytest.raises(JobError, match="not valid YAML") as caught:
        load_job(path)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- input\n- model\n", "JOB: a job file is"),
        ("just words", "JOB: a job file is"),
        ("", "JOB: a job file is"),
        ("# only a comment\n", "JOB: a job file is"),
        ("input: {path: x\nmodel: y\n", "JOB:2: not valid YAML"),
        ("input:\n\tpath: x\n", "JOB:2: not valid YAML"),
        (b"input: {path: \x00}", "JOB: not valid YAML"),
        (b"\xff\xfei\x00n\x00", "cannot read the job file JOB"),
    ],
)
def test_what_is_no_job_file(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert refused(tmp_path, text).startswith(message)


def test_a_job_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot read the job file"):
        load_job(tmp_path / "nope.yaml")
    with pytest.raises(JobError, match="cannot read the job file"):
        load_job(tmp_path)


def test_a_section_whose_keys_are_all_commented_out_is_an_empty_one(tmp_path: Path) -> None:
    text = GOOD + "engine:\n  # kind: fake\nrun:\n"
    assert load(tmp_path, text) == load(tmp_path, GOOD)
    assert load(tmp_path, text, run__replicas=2).run.replicas == 2


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """YAML keeps the last one in silence: half of the settings would be lost."""
    message = refused(tmp_path, GOOD + "sampling: {seed: 1}\nsampling: {max_tokens: 5}\n")
    assert "JOB:4" in message
    assert "sampling" in message


def test_a_key_within_a_section_may_not_stand_twice_either(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "run:\n  replicas: 1\n  dir: x\n  replicas: 2\n")
    assert message == "JOB:6: the key run.replicas stands there twice, first in line 4"


def test_engine_options_may_be_commented_out(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD + "engine:\n  options:\n    # a: 1\n").engine.options == {}
    assert refused(tmp_path, "input:\n") == "JOB:1: input.path is missing"
    assert refused(tmp_path, GOOD + "modle:\n").startswith("JOB:3: unknown key modle")


def test_paths_are_meant_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    text = (
        "input: {path: data/*.jsonl}\noutput: {path: out}\nrun: {dir: runs/one}\n"
        "model: {name: models/tiny, chat_template: t.jinja, tokenizer: org/other}\n"
    )
    job = load(tmp_path, text)
    assert job.input.path == str(tmp_path / "data/*.jsonl")
    assert job.output.path == str(tmp_path / "out")
    assert job.run.dir == str(tmp_path / "runs/one")
    assert job.model.name == str(tmp_path / "models/tiny")
    assert job.model.chat_template == str(tmp_path / "t.jinja")
    assert job.model.tokenizer == "org/other"


def test_absolute_paths_lists_and_addresses_stay(tmp_path: Path) -> None:
    job = load(tmp_path, "input: {path: [/a/x, b/y, 's3://bucket/z']}\nmodel: {name: org/model}\n")
    assert job.input.path == ["/a/x", str(tmp_path / "b/y"), "s3://bucket/z"]
    assert job.model.name == "org/model"


def test_no_model_is_not_the_folder_of_the_job_file(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD + "model: {name: ''}\n").model.name == ""


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert load(tmp_path, "input: {path: ~/rows.jsonl}\n").input.path in (
        "/home/me/rows.jsonl", "~/rows.jsonl",
    )  # fmt: skip


def test_a_name_that_begins_with_a_tilde_is_no_home_folder(tmp_path: Path) -> None:
    job = load(tmp_path, "input: {path: ~nobody-of-this-name.jsonl}\n")
    assert job.input.path == str(tmp_path / "~nobody-of-this-name.jsonl")


def test_a_model_may_lie_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    assert load(tmp_path, GOOD + "model: {name: ~/tiny}\n").model.name == str(tmp_path / "tiny")


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD + "run: {replicas: 2}\n", run__replicas=3, sampling__seed=1)
    assert (job.run.replicas, job.sampling.seed) == (3, 1)


def test_an_override_that_is_wrong_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    text = GOOD + "run:\n  replicas: 2\n"
    assert refused(tmp_path, text, run__replicas=0).startswith("options: run.replicas: ")
    assert refused(tmp_path, text, run__replica=2).startswith("options: unknown key run.replica; ")


def test_an_override_of_a_key_with_several_types_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    text = GOOD + "output:\n  columns: all\n"
    message = refused(tmp_path, text, output__columns=3)
    assert all(line.startswith("options: output.columns") for line in message.splitlines())


def test_a_key_with_several_types_is_called_by_its_own_name(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD + "output:\n  columns: 3\n")
    assert "literal[" not in message
    assert "list[" not in message
    assert message.startswith("JOB:4: output.columns: ")


def test_a_value_that_fits_no_type_is_reported_once(tmp_path: Path) -> None:
    message = refused(tmp_path, "input:\n  path: 3\n")
    assert message == "JOB:2: input.path: input should be a valid string or a valid list (got 3)"
    message = refused(tmp_path, GOOD + "output:\n  columns: [a, 1]\n")
    assert message == "JOB:4: output.columns.1: input should be a valid string (got 1)"


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="--set input.path.x: path is not a section"):
        load(tmp_path, GOOD, input__path__x=1)


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("run.replicas=2", "run.replicas", 2),
        ("sampling.temperature=0.5", "sampling.temperature", 0.5),
        ("prompt.chat=true", "prompt.chat", True),
        ("sampling.stop=[a, 'b c']", "sampling.stop", ["a", "b c"]),
        ("engine.options={max_num_seqs: 4}", "engine.options", {"max_num_seqs": 4}),
        ("input.limit=null", "input.limit", None),
        ("prompt.template=a = {{ b }}", "prompt.template", "a = {{ b }}"),
        ("name=", "name", None),
        ("input.id='007'", "input.id", "007"),
    ],
)
def test_settings_are_read_as_yaml(setting: str, key: str, value: Any) -> None:
    assert parse_settings([setting]) == {key: value}


def test_the_last_of_equal_settings_wins() -> None:
    assert parse_settings(["a=1", "a=2"]) == {"a": 2}


@pytest.mark.parametrize("setting", ["run.replicas", "=3", "", "a=[1", "a={{ x }}"])
def test_settings_that_are_none(setting: str) -> None:
    with pytest.raises(JobError, match="--set"):
        parse_settings([setting])


def test_options_make_a_job_without_a_file() -> None:
    job = make_job({"input": {"path": "x"}}, {"model.name": "m", "engine.kind": "fake"})
    assert (job.input.path, job.model.name, job.engine.kind) == ("x", "m", "fake")
    with pytest.raises(JobError, match="options: unknown key engine.knd; did you mean kind"):
        make_job({"input": {"path": "x"}}, {"engine.knd": "fake"})


def test_a_job_survives_its_own_file(tmp_path: Path) -> None:
    """job.yaml in the run directory is the job as plain data."""
    import yaml

    job = load(tmp_path, GOOD + "sampling: {stop: [a], seed: 2}\nprompt: {template: 'é {{ x }}'}\n")
    again = load(tmp_path, yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False))
    assert again.model_copy(update={"run": job.run}) == job  # where the run lives is not resolved


def test_every_key_has_a_docstring() -> None:
    def check(model: Any, path: str) -> None:
        for name, field in model.model_fields.items():
            assert field.description, f"{path}{name}"
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                check(field.annotation, f"{path}{name}.")

    check(Job, "")


def test_a_budget_in_dollars_needs_a_price_before_anything_is_paid() -> None:
    with pytest.raises(JobError, match="max_usd needs a price"):
        make_job({"input": {"path": "rows.jsonl"}}, {"plan.max_usd": 5})
    job = make_job(
        {"input": {"path": "rows.jsonl"}}, {"plan.max_usd": 5, "plan.usd_per_gpu_hour": 2}
    )
    assert job.plan.max_usd == 5
