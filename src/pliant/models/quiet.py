"""Loading without talk: libraries' warnings and bars are held back and what they would say is checked instead."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back transformers' log lines and progress bars inside the block; put both back as they were after it.

    Only for steps whose outcome pliant checks itself (missing tensors, shapes), so that nothing is lost with the text.
    """
    verbosity = transformers_logging.get_verbosity()
    bars, hub_bars = transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    with warnings.catch_warnings():  # where HF_HUB_DISABLE_PROGRESS_BARS is set, the switches warn that it wins
        warnings.simplefilter("ignore")
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if bars:
                transformers_logging.enable_progress_bar()
            if hub_bars:
                enable_progress_bars()
            else:
                disable_progress_bars()


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Draw from a CPU generator started at `seed` inside the block; outside nothing seems to have been drawn."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also reset the generators of accelerators, which fork_rng does not keep here.
        torch.default_generator.manual_seed(seed)
        yield
