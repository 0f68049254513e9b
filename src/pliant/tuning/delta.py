"""What was trained, as a file of its own: the difference to the pretrained model."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from pliant.runs.atomic import write_atomically

_WORDS = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.int64": "I64"}


def save_delta(tensors: Mapping[str, Tensor], path: Path) -> Path:
    """Write tensors by full name in safetensors format.

    Raises:
        StoreError: it cannot be written.
    """
    write_atomically(path, save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}))
    return path


def delta_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size of the file that `save_delta` writes, without writing it."""
    offset, header = 0, {}
    for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
        size = tensors[name].numel() * tensors[name].element_size()
        kind = _WORDS[str(tensors[name].dtype)]
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + (text + 7) // 8 * 8 + offset
