"""What comes with the package: the bundled model's folder and a sample of images to measure with.

`scripts/pretrain_bundled.py` makes both.
"""

from importlib.resources import files
from pathlib import Path

_HERE = Path(str(files(__name__)))

BUNDLED: Path = _HERE / "bundled"
"""Folder of the bundled model, in transformers' format."""

FASHION_SAMPLE: Path = _HERE / "fashion_sample.npz"
"""`images` uint8 (128, 28, 28) and `labels` int64 (128,): Fashion-MNIST test images, balanced over the classes."""
