"""Images per second of the batched training transform beside the per-image one on Pillow images, in one run.

Both start from decoded 32×32 images and end with a normalised batch of 512 at 224×224: random resized crop (scale
0.08 to 1, bilinear, antialiased), horizontal flip, normalise. Rounds alternate, so that both meet the same machine.

    python benchmarks/input_pipeline.py --json
    python benchmarks/input_pipeline.py --threads 2 --rounds 10
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

from pliant.data import Augment
from pliant.terms import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--source", type=int, default=32)
    parser.add_argument("--target", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="for both paths")
    parser.add_argument("--json", action="store_true", help="print data only")
    options = parser.parse_args()

    shape = (options.batch, options.source, options.source, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    augment = Augment(Preprocessing(options.target, options.target, None, "bilinear", MEAN, STD, "benchmark"))
    per_image = transforms.Compose(
        [
            transforms.RandomResizedCrop(options.target),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    pool = ThreadPoolExecutor(options.threads)

    def pillow() -> torch.Tensor:
        # One torch thread per image and images spread over the threads: the faster way to use them here.
        torch.set_num_threads(1)
        return torch.stack(list(pool.map(lambda image: per_image(Image.fromarray(image)), images)))

    def batched() -> torch.Tensor:
        torch.set_num_threads(options.threads)
        return augment(list(images))

    times: dict[str, list[float]] = {"batched": [], "pillow": []}
    for work in (batched, pillow):
        work()
    for _ in range(options.rounds):
        times["batched"].append(seconds(batched))
        times["pillow"].append(seconds(pillow))
    rates = {name: options.batch / statistics.median(t) for name, t in times.items()}
    result = {
        "threads": options.threads,
        "batch": options.batch,
        "source": options.source,
        "target": options.target,
        "rounds": options.rounds,
        "images_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio": round(statistics.median(p / b for b, p in zip(times["batched"], times["pillow"], strict=True)), 2),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{options.threads} threads, {options.source} to {options.target} px, batches of {options.batch}")
        print(f"batched {rates['batched']:.0f} images/s, per image {rates['pillow']:.0f}, ratio {result['ratio']}")


if __name__ == "__main__":
    main()
