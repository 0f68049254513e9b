"""Folders with tiny models of many families, written the ways that checkpoints are found in the wild."""

import json
import re
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import save_file
from torch import nn

from pliant.models.quiet import quiet

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SMALL_DINO = {k: v for k, v in SMALL.items() if k != "intermediate_size"} | {"mlp_ratio": 2}
SMALL_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

SMALL_DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
}

CONFIGS = {
    "vit": lambda: tf.ViTConfig(**SMALL),
    "deit": lambda: tf.DeiTConfig(**SMALL),
    "dinov2": lambda: tf.Dinov2Config(**SMALL_DINO),
    "dinov2_with_registers": lambda: tf.Dinov2WithRegistersConfig(**SMALL_DINO, num_register_tokens=2),
    "beit": lambda: tf.BeitConfig(**SMALL, use_relative_position_bias=True, use_mask_token=True, out_indices=[1]),
    "data2vec-vision": lambda: tf.Data2VecVisionConfig(**SMALL, out_indices=[1]),
    "clip": lambda: tf.CLIPConfig(vision_config=SMALL, text_config=SMALL_TEXT),
    "siglip": lambda: tf.SiglipConfig(vision_config=SMALL, text_config=SMALL_TEXT),
    "swin": lambda: tf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    ),
    "vit_msn": lambda: tf.ViTMSNConfig(**SMALL),
    "vit_mae": lambda: tf.ViTMAEConfig(**SMALL, **SMALL_DECODER),
}
"""Families that get a classifier, each by the name of its model type."""

OLD_NAMES = {
    "dinov2": [
        (r"attention\.([qkv])_proj", lambda m: f"attention.attention.{OLD_PROJECTIONS[m[1]]}"),
        (r"attention\.o_proj", "attention.output.dense"),
    ],
}
OLD_NAMES["vit"] = OLD_NAMES["deit"] = [
    *OLD_NAMES["dinov2"],
    (r"(^|\.)layers\.", r"\1encoder.layer."),
    (r"mlp\.fc1", "intermediate.dense"),
    (r"mlp\.fc2", "output.dense"),
]
"""How transformers before 5.9 named what it names differently now; published checkpoints have these names."""

OLD_PROJECTIONS = {"q": "query", "k": "key", "v": "value"}


def scrambled(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Give every tensor numbers of its own, so that none can stand in for another."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def small_model(family: str, *, factory: type = tf.AutoModel, **config: object) -> tf.PreTrainedModel:
    with quiet():
        made = CONFIGS[family]()
        made.update({"architectures": [], **config})
        return scrambled(factory.from_config(made))


def write(model: tf.PreTrainedModel, folder: Path, **processor: object) -> Path:
    """Write a folder the way `save_pretrained` does, with a processor for 32x32 images."""
    with quiet():
        model.save_pretrained(folder)
        tf.ViTImageProcessor(**{"size": {"height": 32, "width": 32}, **processor}).save_pretrained(folder)
    return folder


def write_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def old_name(family: str, name: str) -> str:
    for pattern, replacement in OLD_NAMES[family]:
        name = re.sub(pattern, replacement, name)
    return name


def edit_config(folder: Path, **entries: object) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text()) | entries
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def images(*, size: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))
