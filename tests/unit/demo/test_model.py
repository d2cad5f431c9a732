"""The demo's model and rows: everything but the big conversion, which runs once, marked `vllm`."""

from __future__ import annotations

import fcntl
import json
import threading
from pathlib import Path

import pytest

from batchwright.core.errors import JobError, MissingExtra, StorageError
from batchwright.demo import data, model


def ignore(line: str) -> None:
    pass


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversion replaced by one small file; the list holds the folders that were made."""
    made: list[Path] = []

    def convert(source: Path, target: Path) -> None:
        made.append(target)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(model, "_require_packages", lambda: None)
    monkeypatch.setattr(model, "_assemble", ignore)
    monkeypatch.setattr(model, "_convert", convert)
    monkeypatch.setattr(model, "_copy_licence", ignore)
    return made


class TestCacheRoot:
    def test_own_variable_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BATCHWRIGHT_CACHE", "/one")
        monkeypatch.setenv("XDG_CACHE_HOME", "/two")
        assert model.cache_root() == Path("/one")

    def test_shared_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("BATCHWRIGHT_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", "/two")
        assert model.cache_root() == Path("/two/batchwright")

    def test_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("BATCHWRIGHT_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setenv("HOME", "/three")
        assert model.cache_root() == Path("/three/.cache/batchwright")


class TestDemoModel:
    def test_made_once(self, tmp_path: Path, converted: list[Path]) -> None:
        lines: list[str] = []
        first = model.demo_model(tmp_path / "new" / "cache", lines.append)
        said = len(lines)
        assert model.demo_model(tmp_path / "new" / "cache", lines.append) == first
        assert (first / "config.json").is_file()
        assert len(converted) == 1
        assert len(lines) == said

    def test_shows_the_licence(self, tmp_path: Path, converted: list[Path]) -> None:
        lines: list[str] = []
        model.demo_model(tmp_path, lines.append)
        assert any("ai.google.dev/gemma/terms" in line for line in lines)

    def test_nothing_left_when_conversion_fails(
        self, tmp_path: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(source: Path, target: Path) -> None:
            (target / "half").write_text("")
            raise JobError("no")

        monkeypatch.setattr(model, "_convert", fail)
        with pytest.raises(JobError):
            model.demo_model(tmp_path, ignore)
        assert [p.name for p in tmp_path.iterdir()] == [f"{model._FOLDER}.lock"]

    def test_leftovers_of_a_killed_process_go(self, tmp_path: Path, converted: list[Path]) -> None:
        leftover = tmp_path / f"{model._FOLDER}.tmp-killed"
        leftover.mkdir()
        model.demo_model(tmp_path, ignore)
        assert not leftover.exists()

    def test_second_process_waits_for_the_first(
        self, tmp_path: Path, converted: list[Path]
    ) -> None:
        waiting = threading.Event()
        with (tmp_path / f"{model._FOLDER}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            second = threading.Thread(
                target=model.demo_model, args=(tmp_path, lambda line: waiting.set())
            )
            second.start()
            assert waiting.wait(10)
            # The first process finishes its work while the second one waits.
            (tmp_path / model._FOLDER).mkdir()
        second.join(10)
        assert not second.is_alive()
        assert converted == []

    def test_missing_packages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model, "_NEEDED", ("json", "no_such_package"))
        with pytest.raises(MissingExtra) as caught:
            model.demo_model(tmp_path, ignore)
        assert "no_such_package" in caught.value.message
        assert "json" not in caught.value.message
        assert caught.value.hint == "pip install 'batchwright[cpu,demo]'"

    def test_cache_that_cannot_be_written(self, tmp_path: Path, converted: list[Path]) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="cannot be written"):
            model.demo_model(tmp_path / "file", ignore)

    def test_full_disk(
        self, tmp_path: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model, "_DISK_BYTES", 1 << 62)
        with pytest.raises(StorageError, match="less is free"):
            model.demo_model(tmp_path, ignore)


def small_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<eos>", "<bos>", "<unk>", "hello", "world"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(w, special=True) for w in words[:4]])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_add_bos_adds_exactly_one(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    small_tokenizer(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("hello world").input_ids == [4, 5]
    model.add_bos(tmp_path, "<bos>")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    fast = tokenizer.backend_tokenizer
    assert tokenizer("hello world").input_ids == [2, 4, 5]
    assert fast.encode("hello world", add_special_tokens=True).ids == [2, 4, 5]
    assert fast.encode("hello world", add_special_tokens=False).ids == [4, 5]


class TestExample:
    def test_files_are_copied(self, tmp_path: Path) -> None:
        job = data.write_example(tmp_path / "demo")
        assert job == tmp_path / "demo" / "reviews.yaml"
        assert (tmp_path / "demo" / "reviews.jsonl").is_file()

    def test_sixty_rows_half_of_them_positive(self, tmp_path: Path) -> None:
        data.write_example(tmp_path)
        lines = (tmp_path / "reviews.jsonl").read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        assert [row["id"] for row in rows] == [f"r{n:02d}" for n in range(1, 61)]
        assert [row["label"] for row in rows].count("positive") == 30
        assert {row["label"] for row in rows} == {"positive", "negative"}
        assert len({row["text"] for row in rows}) == 60

    def test_job_file_is_a_job(self, tmp_path: Path) -> None:
        import yaml

        from batchwright.config.job import Job

        job = Job.model_validate(yaml.safe_load(data.write_example(tmp_path).read_text("utf-8")))
        texts = (tmp_path / "reviews.jsonl").read_text("utf-8")
        assert job.model.name == "demo"
        assert not any(example.fields["text"] in texts for example in job.prompt.examples)


@pytest.mark.vllm
def test_real_conversion_answers_sensibly() -> None:
    """Uses the user's cache: a minute the first time, seconds afterwards."""
    for package in model._NEEDED:
        pytest.importorskip(package)
    import torch
    from transformers import AutoTokenizer, Gemma3ForCausalLM

    folder = model.demo_model(say=ignore)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("The capital of France is the city of", return_tensors="pt")
    assert inputs.input_ids[0].tolist().count(2) == 1
    network = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    ids = network.generate(**inputs, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(ids[0, -1]).strip() == "Paris"
    assert network.generation_config.eos_token_id == [1, 106]
