"""Settings for all tests: no hub, one thread each, shapes and types of the numerical code checked at run time."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from jaxtyping import install_import_hook

install_import_hook(["pliant.numerics", "pliant.measuring.capture", "pliant.measuring.shared"], "beartype.beartype")


@pytest.fixture
def tiny_vit():
    """A ViT with random weights: 16 px images, 2 blocks of 16 features, 10 classes."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        num_labels=10,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ViTForImageClassification(config).eval()
