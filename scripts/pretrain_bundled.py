"""Pretrain the bundled model: a small ViT on Fashion-MNIST, in the format of transformers, with its card.

    python scripts/pretrain_bundled.py                  # train, evaluate, write the folder
    python scripts/pretrain_bundled.py --sample         # only write the sample of test images beside it
    python scripts/pretrain_bundled.py --plasticity     # only measure again and fill in the card's section

The four IDX files of Fashion-MNIST must be in --data (Debian: `apt install dataset-fashion-mnist`).
"""

import argparse
import math
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    set_seed,
)
from transformers import __version__ as transformers_version

from pliant.assets import BUNDLED, FASHION_SAMPLE
from pliant.data.idx import read_idx

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
PIXELS = 28
MEAN, STD = 0.5, 0.5
SHIFT = 2
ERASE_PROBABILITY, ERASE_SIDES = 0.25, (4, 10)
LEARNING_RATE, WEIGHT_DECAY, WARM_UP, SMOOTHING, BATCH, CLIP = 2e-3, 0.1, 0.05, 0.1, 256, 1.0
SAMPLE = 128
PRECISIONS = {
    "float32": "float32",
    "bfloat16": "weights and optimiser float32, matrix products bfloat16 (autocast)",
}
INITIAL_STD = 0.1  # about 1/√dim; transformers' 0.02 suits wide models and is slow to start here
BEGIN, END = "<!-- plasticity: begin -->", "<!-- plasticity: end -->"


def fashion_mnist(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Read one part (`train` or `t10k`): images uint8 (n, 28, 28), labels int64 (n,)."""

    def read(kind: str) -> Tensor:
        plain = folder / f"{part}-{kind}-ubyte"
        return torch.from_numpy(read_idx(plain if plain.exists() else plain.with_name(plain.name + ".gz")))

    return read("images-idx3"), read("labels-idx1").long()


def shifted(images: Tensor, *, most: int) -> Tensor:
    """Move each image by its own number of pixels, up to `most` in each direction, over black."""
    count, height, width = images.shape
    padded = torch.nn.functional.pad(images, (most,) * 4)
    rows = torch.randint(2 * most + 1, (count, 1, 1)) + torch.arange(height)[None, :, None]
    columns = torch.randint(2 * most + 1, (count, 1, 1)) + torch.arange(width)[None, None, :]
    return padded[torch.arange(count)[:, None, None], rows, columns]


def erased(images: Tensor, *, probability: float, sides: tuple[int, int]) -> Tensor:
    """Cover, in some of the images, one rectangle with one random grey."""
    count, height, width = images.shape

    def inside(length: int) -> Tensor:
        side = torch.randint(sides[0], sides[1] + 1, (count, 1))
        start = (torch.rand(count, 1) * (length - side + 1)).long()
        places = torch.arange(length)[None]
        return (places >= start) & (places < start + side)

    covered = inside(height)[:, :, None] & inside(width)[:, None, :] & (torch.rand(count, 1, 1) < probability)
    return torch.where(covered, torch.randint(256, (count, 1, 1), dtype=torch.uint8), images)


def augmented(images: Tensor) -> Tensor:
    """Flip, shift and erase a batch of uint8 images (n, height, width), from torch's global random state."""
    images = torch.where(torch.rand(len(images), 1, 1) < 0.5, images.flip(-1), images)
    return erased(shifted(images, most=SHIFT), probability=ERASE_PROBABILITY, sides=ERASE_SIDES)


def pixel_values(images: Tensor) -> Tensor:
    """Scale to [0, 1], normalise, repeat grey to three channels: what preprocessor_config.json says of 28 × 28."""
    return ((images.float() / 255 - MEAN) / STD)[:, None].expand(-1, 3, -1, -1).contiguous()


class Batches(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Images held as uint8 and made into pixel values a whole batch at a time (`__getitems__`)."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        """Hold `images` (n, 28, 28) and `labels` (n,)."""
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        """Count the images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Make a batch of one."""
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """Make a batch; torch's loader prefers this to single items."""
        return {"pixel_values": pixel_values(augmented(self.images[indices])), "labels": self.labels[indices]}


def new_model() -> ViTForImageClassification:
    """Build the architecture with fresh weights."""
    config = ViTConfig(
        image_size=PIXELS,
        patch_size=7,
        num_channels=3,
        hidden_size=96,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=384,
        initializer_range=INITIAL_STD,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: index for index, name in enumerate(CLASSES)},
    )
    # The plain attention is faster than the fused one for 17 tokens on a CPU.
    return ViTForImageClassification._from_config(config, attn_implementation="eager")


def processor() -> ViTImageProcessor:
    """Build the preprocessing that the folder states."""
    return ViTImageProcessor(
        do_resize=True,
        size={"height": PIXELS, "width": PIXELS},
        resample=2,
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=[MEAN] * 3,
        image_std=[STD] * 3,
    )


def train(
    model: ViTForImageClassification, data: Batches, *, epochs: int, seed: int, precision: str
) -> tuple[float, float, int]:
    """Train through transformers' Trainer; return seconds of wall clock, of processor time, and steps."""
    steps = epochs * math.ceil(len(data) / BATCH)
    with tempfile.TemporaryDirectory() as work:
        arguments = TrainingArguments(
            work,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="cosine",
            warmup_steps=round(WARM_UP * steps),
            weight_decay=WEIGHT_DECAY,
            label_smoothing_factor=SMOOTHING,
            max_grad_norm=CLIP,
            use_cpu=not torch.cuda.is_available(),
            bf16=precision == "bfloat16",
            logging_steps=max(1, steps // 200),
            save_strategy="no",
            remove_unused_columns=False,
            seed=seed,
            dataloader_pin_memory=torch.cuda.is_available(),
            report_to="none",
        )
        trainer = Trainer(model, arguments, train_dataset=data, data_collator=lambda batch: batch)
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.train()
        return time.perf_counter() - wall, time.process_time() - cpu, trainer.state.global_step


@torch.inference_mode()
def correct(folder: Path, images: Tensor, labels: Tensor) -> int:
    """Count right answers of the folder as a user loads it, through its own image processor."""
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    prepare = AutoImageProcessor.from_pretrained(folder)
    total = 0
    for start in range(0, len(labels), 500):
        rgb = images[start : start + 500, None].expand(-1, 3, -1, -1)
        inputs = prepare(list(rgb), return_tensors="pt", input_data_format="channels_first")["pixel_values"]
        difference = (inputs - pixel_values(images[start : start + 500])).abs().max().item()
        if difference > 1e-5:
            raise RuntimeError(f"the image processor and the training differ by {difference:.3g} in pixel values")
        total += int((model(inputs).logits.argmax(-1) == labels[start : start + 500]).sum())
    return total


def wilson(right: int, count: int) -> tuple[float, float]:
    """Give the 95 % interval of a share (Wilson 1927)."""
    z, share = 1.959964, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return middle - half, middle + half


def stratified(labels: Tensor, count: int, *, seed: int) -> Tensor:
    """Draw `count` indices, the classes as even as they can be, in random order."""
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=random)
    ranks = torch.empty(len(labels), dtype=torch.long)
    for label in labels.unique():
        own = order[labels[order] == label]
        ranks[own] = torch.arange(len(own))
    # Stable: within a rank (the first of each class, the second ...) the random order stays.
    chosen = order[ranks[order].argsort(stable=True)][:count]
    return chosen[torch.randperm(count, generator=random)]


def write_sample(data: Path, path: Path, *, seed: int) -> None:
    """Write the stratified sample of test images."""
    images, labels = fashion_mnist(data, "t10k")
    chosen = stratified(labels, SAMPLE, seed=seed)
    partial = path.with_name(f".{path.name}.partial.npz")
    np.savez_compressed(partial, images=images[chosen].numpy(), labels=labels[chosen].numpy())
    os.replace(partial, path)


def card(facts: dict[str, Any]) -> str:
    """Write the card from what was done and measured; the plasticity section is left to be filled."""
    low, high = facts["interval"]
    return f"""---
library_name: transformers
pipeline_tag: image-classification
license: apache-2.0
datasets:
- zalando-datasets/fashion_mnist
metrics:
- accuracy
---

# The bundled model: a small ViT pretrained on Fashion-MNIST

The model that `pliant` uses when none is named: small enough to come with the package, pretrained as large models
are, so that measuring, choosing and tuning can be tried in minutes on a laptop. It is no model to build a product on.

## Accuracy

**{100 * facts["right"] / facts["count"]:.2f} %** of the {facts["count"]:,} Fashion-MNIST test images
({facts["right"]:,} right; 95 % interval, Wilson: {100 * low:.2f} to {100 * high:.2f} %), counted on this folder, loaded
by `AutoModelForImageClassification` and `AutoImageProcessor`. On the {facts["train_count"]:,} training images, without
augmentation: {100 * facts["train_right"] / facts["train_count"]:.2f} %. The weights are those after the last step;
no checkpoint was chosen by its accuracy.

## Architecture

`ViTForImageClassification`: {PIXELS} × {PIXELS} RGB, patches of 7 × 7 (16 and a class token: 17 tokens),
{facts["config"].hidden_size} features, {facts["config"].num_hidden_layers} blocks,
{facts["config"].num_attention_heads} heads, {facts["config"].intermediate_size} hidden features,
{facts["parameters"]:,} parameters, float32. Grey images are repeated to three channels, scaled to [0, 1] and
normalised with mean {MEAN} and standard deviation {STD}, as `preprocessor_config.json` says.

## Recipe

| | |
|---|---|
| data | {facts["train_count"]:,} training images of Fashion-MNIST, all of them |
| optimiser | AdamW, learning rate {LEARNING_RATE:g}, weight decay {WEIGHT_DECAY:g} (not on biases and norms), \
gradient norm clipped at {CLIP:g} |
| schedule | {facts["epochs"]} epochs of {BATCH} images ({facts["steps"]:,} steps), warm-up over {100 * WARM_UP:g} %, \
then cosine to zero |
| augmentation | horizontal flip (one half), shift by up to {SHIFT} pixels, one grey rectangle of {ERASE_SIDES[0]} to \
{ERASE_SIDES[1]} pixels a side (one quarter) |
| loss | cross-entropy, label smoothing {SMOOTHING:g} |
| initial weights | normal, standard deviation {INITIAL_STD:g} |
| precision | {PRECISIONS[facts["precision"]]} |
| seed | {facts["seed"]} |
| time | {facts["wall"] / 60:.0f} minutes of wall clock, {facts["cpu"] / 60:.0f} of processor time, \
on {facts["machine"]} |
| software | {facts["software"]} |

Again, in one command: `python scripts/pretrain_bundled.py --epochs {facts["epochs"]} --seed {facts["seed"]} \
--precision {facts["precision"]}`
(transformers' Trainer).

## Plasticity

{BEGIN}
Not measured yet.
{END}

## Licences

The weights: Apache-2.0, as the package. Fashion-MNIST (Xiao, Rasul, Vollgraf 2017), which they were trained on and of
which `fashion_sample.npz` beside this folder holds {SAMPLE} test images: MIT, © 2017 Zalando SE.
"""


def plasticity_text(folder: Path, sample: Path) -> str:
    """Measure each role in both conventions on the sample of test images, as Markdown."""
    # Imported here: pretraining itself needs nothing of the package that measures.
    from pliant.measuring.plasticity import measure

    with np.load(sample) as stored:
        images = pixel_values(torch.from_numpy(stored["images"]))
    cells: dict[str, list[str]] = {}
    for convention in ("insitu", "shared"):
        measured = measure(str(folder), images, convention=convention, pairs="all", batch_size=len(images))
        ranges = measured.frame.groupby("role")["plasticity"].agg(["min", "max"])
        for row in measured.by_role.itertuples():
            low, high = ranges.loc[row.role]
            interval = f"{row.plasticity:.3f} ± {1.96 * row.stderr:.3f}"
            cells.setdefault(str(row.role), []).append(f"{interval} ({low:.3f} to {high:.3f})")
    lines = [
        f"Measured with `pliant.measure` on all pairs of the {len(images)} test images of `fashion_sample.npz` (one",
        "sample): the mean over the six blocks with its 95 % interval, in brackets the least and the greatest block.",
        "In situ, a component gets its own input in the forward pass; shared, the embedded tokens. Numbers of the two",
        "are not comparable. Above 1 a component amplifies a change of its input, below 1 it contracts it.",
        "",
        "| role | in situ | shared |",
        "|---|---|---|",
        *(f"| {role} | {' | '.join(row)} |" for role, row in cells.items()),
    ]
    return "\n".join(lines)


def fill_plasticity(folder: Path, sample: Path) -> None:
    """Replace the card's plasticity section by what is measured now."""
    path = folder / "README.md"
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    write(path, f"{before}{BEGIN}\n{plasticity_text(folder, sample)}\n{END}{after}")


def write(path: Path, text: str) -> None:
    """Write a text file at once or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def machine() -> str:
    """Describe the class of machine, not the machine."""
    if torch.cuda.is_available():
        return "one GPU"
    threads = torch.get_num_threads()
    return f"{os.cpu_count()} CPU cores shared with other work, {threads} thread{'s' if threads > 1 else ''}"


def pretrain(data: Path, out: Path, *, epochs: int, seed: int, precision: str) -> None:
    """Train, evaluate what was saved, replace the folder's files at the very end, then measure its plasticity."""
    images, labels = fashion_mnist(data, "train")
    set_seed(seed)
    model = new_model()
    wall, cpu, steps = train(model, Batches(images, labels), epochs=epochs, seed=seed, precision=precision)
    # A user's new classifier starts small, whatever this model started from.
    model.config.initializer_range = 0.02
    test_images, test_labels = fashion_mnist(data, "t10k")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".pretraining-") as name:
        folder = Path(name)
        model.cpu().save_pretrained(folder)
        processor().save_pretrained(folder)
        right = correct(folder, test_images, test_labels)
        facts: dict[str, Any] = {
            "right": right, "count": len(test_labels), "interval": wilson(right, len(test_labels)),
            "train_right": correct(folder, images, labels), "train_count": len(labels),
            "config": model.config, "parameters": model.num_parameters(),
            "epochs": epochs, "precision": precision,
            "steps": steps, "seed": seed, "wall": wall, "cpu": cpu, "machine": machine(),
            "software": f"Python {platform.python_version()}, torch {torch.__version__}, "
            f"transformers {transformers_version}",
        }  # fmt: skip
        write(folder / "README.md", card(facts))
        for path in sorted(folder.iterdir()):
            path.chmod(0o644)  # safetensors writes files that only their owner can read
            os.replace(path, out / path.name)
    fill_plasticity(out, FASHION_SAMPLE)
    print(f"{right} of {len(test_labels)} test images right, {wall:.0f} s; written to {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=BUNDLED)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--precision", choices=list(PRECISIONS), default="bfloat16", help="float32 is faster on old CPUs"
    )
    parser.add_argument("--sample", action="store_true", help="only write the sample of test images")
    parser.add_argument("--plasticity", action="store_true", help="only fill in the card's plasticity section")
    given = parser.parse_args()
    sample = FASHION_SAMPLE if given.out == BUNDLED else given.out / FASHION_SAMPLE.name
    if given.sample:
        write_sample(given.data, sample, seed=given.seed)
    elif given.plasticity:
        fill_plasticity(given.out, FASHION_SAMPLE)
    else:
        pretrain(given.data, given.out, epochs=given.epochs, seed=given.seed, precision=given.precision)


if __name__ == "__main__":
    main()
