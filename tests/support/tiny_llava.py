"""Makes a tiny random LLaVA model folder without torch: a CLIP of three layers before a Qwen2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support import tiny_model

HIDDEN, LAYERS, INTER, HEADS = 32, 3, 64, 4
SIZE, PATCH = 32, 8
IMAGE_TOKENS = (SIZE // PATCH) ** 2
IMAGE_TOKEN = "<image>"

TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- else %}{%- for part in message['content'] %}"
    "{%- if part['type'] == 'image' %}{{- '<image>\\n' }}"
    "{%- elif part['type'] == 'text' %}{{- part['text'] }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def make_tiny_llava(folder: Path) -> Path:
    """Write config, weights, tokenizer, template and processor into `folder` and return it."""
    specials = [*tiny_model.SPECIALS, IMAGE_TOKEN]
    tiny_model.make_tokenizer(folder, chat_template=TEMPLATE, specials=specials)
    config = {**tiny_model._config(), "tie_word_embeddings": False}
    architectures = config.pop("architectures")
    assert architectures == ["Qwen2ForCausalLM"]
    vision = {
        "model_type": "clip_vision_model", "hidden_size": HIDDEN, "intermediate_size": INTER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "image_size": SIZE,
        "patch_size": PATCH, "projection_dim": HIDDEN, "num_channels": 3,
        "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "vocab_size": 100,
    }  # fmt: skip
    whole = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
        "image_token_index": specials.index(IMAGE_TOKEN), "image_seq_length": IMAGE_TOKENS,
        "projector_hidden_act": "gelu", "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default", "text_config": config,
        "vision_config": vision, "torch_dtype": "float32", "tie_word_embeddings": False,
    }  # fmt: skip
    processor = {
        "image_processor_type": "CLIPImageProcessor", "crop_size": {"height": SIZE, "width": SIZE},
        "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True,
        "do_resize": True, "image_mean": [0.48, 0.45, 0.40], "image_std": [0.26, 0.26, 0.27],
        "resample": 3, "rescale_factor": 1 / 255, "size": {"shortest_edge": SIZE},
    }  # fmt: skip
    both = {
        "processor_class": "LlavaProcessor", "image_token": IMAGE_TOKEN, "patch_size": PATCH,
        "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
    }  # fmt: skip
    generation = {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False}
    tiny_model._write(folder / "config.json", whole)
    tiny_model._write(folder / "generation_config.json", generation)
    tiny_model._write(folder / "preprocessor_config.json", processor)
    tiny_model._write(folder / "processor_config.json", both)
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    def layer_norm(name: str) -> dict[str, np.ndarray]:
        return {
            f"{name}.weight": np.ones(HIDDEN, np.float32),
            f"{name}.bias": np.zeros(HIDDEN, np.float32),
        }

    def linear(name: str, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        weight = normal(outputs, inputs)
        return {f"{name}.weight": weight, f"{name}.bias": np.zeros(outputs, np.float32)}

    text = tiny_model._weights(0)
    weights = {f"language_model.{name}": value for name, value in text.items()}
    weights["language_model.lm_head.weight"] = text["model.embed_tokens.weight"].copy()
    tower = "vision_tower.vision_model."
    weights |= {
        f"{tower}embeddings.class_embedding": normal(HIDDEN),
        f"{tower}embeddings.patch_embedding.weight": normal(HIDDEN, 3, PATCH, PATCH),
        f"{tower}embeddings.position_embedding.weight": normal(IMAGE_TOKENS + 1, HIDDEN),
        **layer_norm(f"{tower}pre_layrnorm"),
        **layer_norm(f"{tower}post_layernorm"),
    }
    for layer in range(LAYERS):
        at = f"{tower}encoder.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            weights |= linear(f"{at}self_attn.{name}", HIDDEN, HIDDEN)
        weights |= layer_norm(f"{at}layer_norm1") | layer_norm(f"{at}layer_norm2")
        weights |= linear(f"{at}mlp.fc1", INTER, HIDDEN) | linear(f"{at}mlp.fc2", HIDDEN, INTER)
    weights |= linear("multi_modal_projector.linear_1", tiny_model.HIDDEN, HIDDEN)
    return weights | linear("multi_modal_projector.linear_2", tiny_model.HIDDEN, tiny_model.HIDDEN)
