from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoTokenizer

from batchwright.core.errors import JobError
from batchwright.core.ports import Tokenizer as Port
from batchwright.tokens import files
from batchwright.tokens.byte_level import ByteTokenizer
from batchwright.tokens.hf import HfTokenizer
from batchwright.tokens.load import load_tokenizer

TEXTS = ["the question is", " lead", "Grüße 你好 🎉", "a <|im_end|> b", "x" * 50, "   \n", "1 2"]


def load(name: str | Path, **options: Any) -> Port:
    settings = {
        "tokenizer": None, "revision": None, "trust_remote_code": False, "chat_template_path": None
    }  # fmt: skip
    return load_tokenizer(name=str(name), **{**settings, **options})


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Port:
    return load(tiny_model)


@pytest.fixture(scope="module")
def spm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer in the manner of Llama-2: word marks, byte fallback, BOS, Strip decoder."""
    folder = tmp_path_factory.mktemp("models") / "spm"
    folder.mkdir()
    words = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    vocab = {word: index for index, word in enumerate([*words, *letters, "th", "▁th", "▁the"])}
    tokenizer = Tokenizer(
        models.BPE(
            vocab, [("t", "h"), ("▁", "th"), ("▁th", "e")],
            unk_token="<unk>", byte_fallback=True, fuse_unk=True,
        )
    )  # fmt: skip
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    tokenizer.enable_truncation(8)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_facts(tiny: Port) -> None:
    assert tiny.vocab_size == 4096
    assert tiny.exact
    assert tiny.eos_token_ids == (0, 2)
    assert set(tiny.special_tokens) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert tiny.has_chat_template


def test_encode_is_what_transformers_does(tiny: Port, tiny_model: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tiny_model)
    for special in (True, False):
        expected = [reference(text, add_special_tokens=special)["input_ids"] for text in TEXTS]
        assert tiny.encode(TEXTS, add_special_tokens=special) == expected
    assert tiny.encode([], add_special_tokens=True) == []
    assert tiny.encode([""], add_special_tokens=True) == [[]]


def test_decode(tiny: Port) -> None:
    rows = tiny.encode(TEXTS, add_special_tokens=False)
    texts = [text.replace("<|im_end|>", "") for text in TEXTS]
    assert tiny.decode(rows, [[1]] * len(rows)) == texts
    (ids,) = tiny.encode(["🎉"], add_special_tokens=False)
    half = tiny.encode(["\U0001f9ff"], add_special_tokens=False)[0][:-1]
    assert tiny.decode([ids, half, []], [[], [], []])[0] == "🎉"
    assert "\ufffd" in tiny.decode([half], [[]])[0]


def test_exactly_one_bos(spm_folder: Path) -> None:
    spm = load(spm_folder)
    plain, marked = spm.encode(["the", "<s>the"], add_special_tokens=True)
    assert plain[0] == 1
    assert plain.count(1) == marked.count(1) == 1
    assert spm.encode(["the"], add_special_tokens=False) == [plain[1:]]
    reference = AutoTokenizer.from_pretrained(spm_folder)
    assert plain == reference("the")["input_ids"]


def test_tokenizer_files_truncation_is_off(spm_folder: Path) -> None:
    assert len(load(spm_folder).encode(["abc " * 50], add_special_tokens=True)[0]) > 100


def test_leading_space_is_kept(spm_folder: Path) -> None:
    spm = load(spm_folder)
    prompt, answer = spm.encode(["abc", "the cat"], add_special_tokens=True)
    answer = answer[1:]
    assert spm.decode([answer], [prompt]) == [" the cat"]
    assert spm.decode([answer], [[]]) == ["the cat"], "nothing before it: the start of a text"
    joined = spm.encode(["abc the cat"], add_special_tokens=True)[0]
    for cut in range(1, len(joined)):
        head, tail = joined[:cut], joined[cut:]
        whole = spm.decode([joined], [[]])[0]
        assert spm.decode([head], [[]])[0] + spm.decode([tail], [head])[0] == whole


def test_character_split_between_prompt_and_answer(spm_folder: Path) -> None:
    spm = load(spm_folder)
    (ids,) = spm.encode(["a é the"], add_special_tokens=False)
    split = next(i for i, token in enumerate(ids) if token >= 3 + 0x80) + 1
    assert spm.decode([ids[split:]], [ids[:split]])[0].endswith("é the")


def test_vocab_and_eos_come_from_the_models_configs(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "config.json").write_text(
        json.dumps({"text_config": {"vocab_size": 5000, "eos_token_id": 9}, "eos_token_id": 7})
    )
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    tokenizer = load(folder)
    assert tokenizer.eos_token_ids == (2, 7, 8, 9)
    assert tokenizer.vocab_size == 5000
    other = load(folder, tokenizer=str(tiny_model))
    assert other.eos_token_ids == (2, 7, 8, 9)


def test_no_such_folder(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(JobError, match="there is no folder"):
            load(name)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    with pytest.raises(JobError, match="is a file"):
        load(file)


def test_no_tokenizer_files(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no tokenizer can be loaded") as caught:
        load(tmp_path)
    assert "tokenizer.json" in caught.value.hint
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(JobError, match="no tokenizer can be loaded"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(JobError, match=r"config\.json cannot be read"):
        load(tmp_path)


def test_hub_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError("We couldn't connect\nmore")

    monkeypatch.setattr("transformers.utils.hub.cached_file", refuse)
    with pytest.raises(JobError, match="no/such-model is no folder here, and the hub"):
        load("no/such-model")


def remote_model(folder: Path, *, standard_config: bool) -> Path:
    folder.mkdir()
    for name in ("configuration_toy", "tokenization_toy"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('imported {name}')\n")
    config = {"model_type": "toy", "auto_map": {"AutoConfig": "configuration_toy.ToyConfig"}}
    if standard_config:
        config = {"model_type": "qwen2"}
    tokenizer = {
        "tokenizer_class": "ToyTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_toy.ToyTokenizer", None]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("standard_config", [True, False])
def test_remote_code_is_not_run_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standard_config: bool
) -> None:
    folder = remote_model(tmp_path / "toy", standard_config=standard_config)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(JobError, match=r"toy needs model\.trust_remote_code"):
        load(folder)
    assert not list(folder.glob("__pycache__"))


def test_remote_code_is_run_when_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    folder = remote_model(tmp_path / "toy", standard_config=False)
    with pytest.raises(JobError, match="imported configuration_toy"):
        load(folder, trust_remote_code=True)


def test_a_standard_model_with_auto_map_needs_no_trust(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_x.X"}
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).vocab_size == 4096


class Slow:
    """What HfTokenizer needs of a tokenizer without a Rust backend."""

    is_fast = False
    chat_template = None
    special_tokens_map: ClassVar[dict[str, str]] = {}
    eos_token_id = 2
    all_special_tokens = ("<s>",)
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __len__(self) -> int:
        return 300

    def __call__(self, texts: list[str], *, add_special_tokens: bool) -> dict[str, Any]:
        head = [299] if add_special_tokens else []
        return {"input_ids": [head + list(text.encode()) for text in texts]}

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return bytes(i for i in ids if i < 256).decode()


def test_slow_tokenizer() -> None:
    slow = HfTokenizer(Slow(), ())
    assert slow.encode(["ab"], add_special_tokens=True) == [[299, 97, 98]]
    assert slow.decode([[97, 299]], [[97]]) == ["a"]
    assert (slow.vocab_size, slow.has_chat_template) == (300, False)


def test_nothing_named_gives_bytes() -> None:
    tokenizer = load("")
    assert isinstance(tokenizer, ByteTokenizer)
    assert files.is_folder("gpt2") is False
