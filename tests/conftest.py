"""Settings for all tests: no hub, one thread each, shapes and types of the numerical code checked at run time."""

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from jaxtyping import install_import_hook

os.environ["PLIANT_CACHE"] = tempfile.mkdtemp(prefix="pliant-cache-")
atexit.register(shutil.rmtree, os.environ["PLIANT_CACHE"], ignore_errors=True)
CHECKED = (
    "pliant.numerics",
    "pliant.measuring.capture",
    "pliant.measuring.shared",
    "pliant.data.augment",
    "pliant.data.sets",
    "pliant.tuning.batches",
    "pliant.tuning.classifier",
    "pliant.tuning.evaluate",
)
install_import_hook(CHECKED, "beartype.beartype")


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


@pytest.fixture
def mounted_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts small file systems in memory, of a size such as `320k`; skips where that is not allowed."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {found.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)
