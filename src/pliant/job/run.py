"""The main job: advice, then the training of what was chosen, its evaluation, the saved model."""

import time
from pathlib import Path
from typing import Any

from pliant import models
from pliant.errors import DivergedError
from pliant.job.advice import Advisor
from pliant.job.config import TuneConfig
from pliant.job.result import TuneResult
from pliant.job.tables import summary_note, summary_table
from pliant.measuring.subject import pick_device
from pliant.reporting import report
from pliant.runs import Record, write_atomically
from pliant.talk import Silent, Talk
from pliant.tuning import train


def tune(
    model: str = "bundled",
    data: str = "digits",
    *,
    out: str | Path | None = None,
    device: str = "auto",
    talk: Talk | None = None,
    **options: Any,
) -> TuneResult:
    """Fine-tune a pretrained model on your images: find out which components are worth training, and train those.

    Finished training runs in `out` are kept: calling this again with the same arguments goes on where it was stopped.

    Args:
        model: `bundled`, a folder, or a hub id.
        data: `digits`, `folder:PATH`, `fashion-mnist`, `hub:ORG/NAME`, ...
        out: folder for everything that is written; by default named after model, data and configuration.
        device: `auto`, `cpu`, `cuda`, ...
        talk: is told what happens; by default nobody is.
        **options: fields of `TuneConfig`: components (`auto` races mha, fc1, fc2, ln1, ln2 and full; or roles joined by
            `+`, `full`, `head`), budget (`10%`, `2M`), source (data like that of pretraining, for the measurement),
            train, validation, test (at most so many images), image_size, optimizer, learning_rate, momentum,
            weight_decay, warmup_steps, clip_norm, steps, race_steps, race_validation, batch_size, accumulation,
            eval_every, precision, augmentation, normalization, measure_items, energy_images, skip_unreadable, seed.

    Raises:
        ConfigError: an option that does not exist or cannot be.
        UnknownNameError, DataError, ModelError: names and data that lead nowhere.
        DivergedError: the loss stopped being finite.
    """
    config = TuneConfig(model=model, data=data, **options)
    return _Job(config, out=out, device=pick_device(device), talk=talk or Silent()).run()


class _Job(Advisor):
    """The steps of `tune`."""

    def run(self) -> TuneResult:
        began = time.monotonic()
        advice = self.advise()
        record = self._train(advice.chosen, advice.learning_rate)
        result = TuneResult(advice=advice, record=record, seconds=time.monotonic() - began)
        write_atomically(self.folder / "result.json", result.to_json())
        self.talk.table("Result", summary_table(result), note=summary_note(result))
        with self.talk.bar("Writing the report") as bar:
            report(self.folder, progress=bar)
        self.talk.say(
            f"Written to {self.folder}: model/, result.json, report.html, measurement.parquet, config.json, cells/"
        )
        return result

    def _train(self, chosen: str, rate: float) -> Record:
        """Train the chosen set and save the model; its record says "done" only when the model is in place."""
        cell = self.config.cell(components=chosen, learning_rate=rate)
        if (known := self._known(cell)) is not None and (
            known.status == "diverged" or (self.folder / "model").is_dir()
        ):
            return _converged(known)
        with self._claimed(cell) as claim, self.talk.bar(f"Training {chosen}") as bar:
            record = train(
                cell,
                self.loaded,
                self.data,
                out=claim.checkpoint,
                metrics=claim.metrics,
                device=self.device,
                progress=lambda done, total, point: bar(done, total),
            )
            if record.status == "done" and self.loaded.preprocessing is not None:
                models.save(self.loaded.model, self.folder / "model", preprocessing=self.loaded.preprocessing)
            claim.finish(record)
        return _converged(record)


def _converged(record: Record) -> Record:
    """Return a record that is done.

    Raises:
        DivergedError: it is of a run whose loss stopped being finite.
    """
    if record.status == "diverged":
        rate = record.cell.learning_rate
        raise DivergedError(
            f"diverged at step {record.diverged_at}: the loss of {record.cell.variant} at learning rate {rate:g} was "
            f"not finite. Lower the learning rate, or leave --learning-rate out: then the best of a grid is taken."
        )
    return record
