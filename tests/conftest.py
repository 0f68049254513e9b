"""Settings for all tests: no hub, one thread each, shapes and types of the numerical code checked at run time."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

install_import_hook(["pliant.numerics", "pliant.measuring.capture", "pliant.measuring.shared"], "beartype.beartype")
