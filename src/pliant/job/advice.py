"""Advice: from a model and data to a choice of what to train, with the evidence."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from pliant import models
from pliant.advising.budget import CANDIDATES, Budget, Candidate, candidate, within
from pliant.advising.criteria import Evidence, agreement
from pliant.advising.energy import energy_by_role, gradient_energy
from pliant.advising.race import Race, run_race
from pliant.components import find_components
from pliant.data import ImageData, cache_folder, load, normalized
from pliant.data.splits import limited
from pliant.errors import ConfigError, ModelError, StoreError
from pliant.job.config import TuneConfig
from pliant.job.result import Advice
from pliant.job.tables import by_role_table, race_table
from pliant.measuring import Measurement, measure
from pliant.measuring.subject import pick_device
from pliant.runs import CellConfig, Claim, Record, Score, Store, write_atomically
from pliant.talk import Silent, Talk
from pliant.terms import BLOCK_ROLES, Role, parse_components
from pliant.tuning import ProbeResult, probe, train


def advise(
    model: str = "bundled",
    data: str = "digits",
    *,
    out: str | Path | None = None,
    device: str = "auto",
    talk: Talk | None = None,
    **options: Any,
) -> Advice:
    """Find out which components are worth training on your images, and stop there: the first half of `tune`.

    `tune` with the same arguments goes on in the same folder.

    Args:
        model: `bundled`, a folder, or a hub id.
        data: `digits`, `folder:PATH`, `fashion-mnist`, `hub:ORG/NAME`, ...
        out: folder for the runs of the race and the measurement; see `tune`.
        device: `auto`, `cpu`, `cuda`, ...
        talk: is told what happens; by default nobody is.
        **options: fields of `TuneConfig`, see `tune`.

    Raises:
        ConfigError: an option that does not exist or cannot be.
        UnknownNameError, DataError, ModelError: names and data that lead nowhere.
        DivergedError: no run of the race stayed finite.
    """
    config = TuneConfig(model=model, data=data, **options)
    return Advisor(config, out=out, device=pick_device(device), talk=talk or Silent()).advise()


class Advisor:
    """The steps from a model and data to a choice of what to train, and what they share with the training after it."""

    def __init__(self, config: TuneConfig, *, out: str | Path | None, device: str, talk: Talk) -> None:
        """Check everything that can be checked before anything is loaded."""
        self.config, self.device, self.talk = config, device, talk
        self.roles: tuple[Role, ...] | None = (
            None if config.components == "auto" else parse_components(config.components)
        )
        self.budget = None if config.budget is None else Budget.parse(config.budget)
        prefix = config.cell(components="mha", learning_rate=config.learning_rate or 1.0).name.split("-mha-")[0]
        self.folder = Path(out) if out is not None else Path(f"pliant-{prefix}-{config.id}")
        self.notes: list[str] = []

    def advise(self) -> Advice:
        """Load, measure, probe, race, choose."""
        self._check_folder()
        self.data = self._load_data()
        self.loaded = self._load_model()
        self.anatomy = find_components(self.loaded.model)
        candidates = self._candidates()
        self._claim_folder()
        self._introduce()
        measurement = self._measure()
        found = self._probe()
        energy = self._energy(candidates)
        race = self._race(candidates, energy)
        criteria = self._hold_to_race(race, measurement, energy)
        chosen, rate, reason = self._choice(race, candidates)
        return Advice(
            folder=self.folder,
            chosen=chosen,
            learning_rate=rate,
            reason=reason,
            probe=found,
            measurement=measurement,
            energy=energy,
            race=race,
            criteria=criteria,
            notes=tuple(self.notes),
        )

    def _load_model(self) -> models.Loaded:
        c = self.config
        loaded = models.load(c.model, classes=self.data.classes, image_size=c.image_size, seed=c.seed)
        if loaded.preprocessing is None:
            raise ModelError(f"{c.model} takes no images; tune and advise need a vision model")
        # what the images are turned into is settled once: measured, trained and saved with the same
        return replace(loaded, preprocessing=normalized(loaded.preprocessing, c.normalization))

    def _check_folder(self) -> None:
        """Refuse a folder that holds something else; nothing is written yet."""
        path = self.folder / "config.json"
        if path.exists():
            before = TuneConfig.from_json(path.read_bytes())
            if before != self.config:
                old, new = before.model_dump(), self.config.model_dump()
                changed = [f"{key}: {old[key]!r} there, {new[key]!r} now" for key in new if old[key] != new[key]]
                raise ConfigError(
                    f"{self.folder} holds a run with another configuration ({'; '.join(changed)}). Choose another "
                    "folder with --out; nothing is overwritten."
                )
            self.talk.say(f"Going on in {self.folder}: what is finished there is kept")
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(
                f"{self.folder} is not empty and holds no run of pliant. Choose another folder with --out."
            )

    def _claim_folder(self) -> None:
        """Make the folder: data and model are there, so a mistyped name leaves nothing behind."""
        self.store = Store(self.folder)
        write_atomically(self.folder / "config.json", self.config.to_json())

    def _load_data(self) -> ImageData:
        c = self.config
        with self.talk.bar(f"Reading {c.data}") as bar:
            data = load(
                c.data,
                train=c.train,
                validation=c.validation,
                test=c.test,
                seed=c.seed,
                skip_unreadable=c.skip_unreadable,
                progress=bar,
            )
        data.require_splits()
        self.notes += data.notes
        return data

    def _candidates(self) -> tuple[Candidate, ...]:
        sets = [parse_components(name) for name in CANDIDATES] if self.roles is None else [self.roles]
        total = sum(p.numel() for p in self.loaded.model.parameters())
        return within(tuple(candidate(self.anatomy, s) for s in sets), self.budget, total=total)

    def _introduce(self) -> None:
        d, p = self.data, self.loaded.preprocessing
        self.notes += self.loaded.notes
        self.talk.say(f"Data {d.name}: {len(d.classes)} classes; {_sizes(d)} images for training, validation, test")
        self.talk.say(f"Model {self.loaded.name}: {self.anatomy.family.name}, {len(self.anatomy.blocks)} blocks")
        if p is not None:
            self.talk.say(
                f"Images as the checkpoint expects: {p.height}×{p.width}, mean {p.mean}, std {p.std} ({p.origin})"
            )
        for note in self.notes:
            self.talk.say(f"Note: {note}")
        self.talk.table("Components", by_role_table(self.anatomy))

    def _measure(self) -> Measurement:
        source = self.config.source
        if source is None and self.config.model == "bundled":
            source = "fashion-sample"
        with self.talk.bar("Measuring plasticity") as bar:
            found = measure(
                self.loaded,
                source,
                self.data.train,
                convention="insitu",
                items=self.config.measure_items,
                seed=self.config.seed,
                device=self.device,
                progress=bar,
            )
        found = replace(found, provenance={**found.provenance, "target": self.data.name})
        found.save(self.folder / "measurement.parquet")
        pairs = f"{source} against {self.data.name}" if source else f"pairs within {self.data.name}"
        self.talk.table(
            "Plasticity",
            found.by_role[["role", "plasticity", "stderr", "ci_low", "ci_high", "spread", "n_pairs"]],
            note=f"in situ, all pairs, {pairs}; mean over blocks with its 95 % interval; spread: std over blocks",
        )
        return found

    def _probe(self) -> ProbeResult:
        with self.talk.bar("Linear probe") as bar:
            found = probe(self.loaded, self.data, device=self.device, progress=bar, cache=cache_folder() / "features")
        self.talk.say(f"Linear probe: {_score(found.test)}")
        return found

    def _energy(self, candidates: tuple[Candidate, ...]) -> dict[str, float]:
        if len(candidates) < 2 or self.loaded.preprocessing is None:
            return {}
        with self.talk.bar("Gradient energy") as bar:
            table = gradient_energy(
                self.anatomy,
                limited(self.data.train, self.config.energy_images, seed=self.config.seed, purpose="energy"),
                self.loaded.preprocessing,
                batch_size=self.config.batch_size,
                device=self.device,
                progress=bar,
            )
        return energy_by_role(table)

    def _race(self, candidates: tuple[Candidate, ...], energy: Mapping[str, float]) -> Race | None:
        c = self.config
        if len(candidates) == 1 and c.learning_rate is not None:
            return None
        fixed = {x.components: (c.learning_rate,) for x in candidates} if c.learning_rate is not None else None
        ordered = sorted(candidates, key=lambda x: -sum(energy.get(r, 0.0) for r in x.roles if r in BLOCK_ROLES))
        short = min(c.race_steps, c.steps)
        limit = min(c.race_validation, len(self.data.validation))
        base = c.cell(
            components="mha", learning_rate=1.0, steps=short, eval_every=short, validation=limit, read_test=False
        )
        chosen = limited(self.data.validation, limit, seed=c.seed, purpose="validation")
        data = ImageData(self.data.name, self.data.classes, self.data.train, chosen, self.data.test)
        label = f"Race: {len(candidates)} component sets, runs of {short} steps"
        with self.talk.bar(label) as bar:
            race = run_race(
                ordered,
                base,
                train=lambda cell: self._trial(cell, data),
                fixed=fixed,
                progress=lambda done, total, line: bar(done, total),
            )
        self.talk.table(
            "Race", race_table(race), note=f"best of its learning rates after {short} steps; test images unread"
        )
        for warning in race.warnings:
            self.talk.say(f"Note: {warning}")
        self.notes += race.warnings
        return race

    def _hold_to_race(self, race: Race | None, measurement: Measurement, energy: Mapping[str, float]) -> pd.DataFrame:
        if race is None or len(race.best) < 2:
            return pd.DataFrame()
        evidence = Evidence(
            plasticity=dict(zip(measurement.by_role["role"], measurement.by_role["plasticity"], strict=True)),
            energy=energy,
            parameters={r: self.anatomy.count([r]) for r in BLOCK_ROLES if r in self.anatomy.roles},
            seed=self.config.seed,
        )
        table = agreement(evidence, race.outcome)
        values = pd.DataFrame(
            [{"role": r, "plasticity": evidence.plasticity.get(r), "gradient energy": energy.get(r),
              "parameters": evidence.parameters.get(r), "validation": race.outcome.get(r)} for r in BLOCK_ROLES]
        )  # fmt: skip
        self.talk.table("What was known before the race, beside its outcome", values)
        self.talk.table(
            "Do these orders agree with the race's?",
            table[["criterion", "order", "same", "spearman", "p"]],
            note="rank correlation over roles with the race's validation accuracy, p two-sided over all orders",
        )
        return table

    def _choice(self, race: Race | None, candidates: tuple[Candidate, ...]) -> tuple[str, float, str]:
        if race is None:
            rate = self.config.learning_rate or 0.0
            return candidates[0].components, rate, "component set and learning rate were given"
        reason = race.reason
        if self.roles is not None:
            reason = f"the component set was given; the learning rate {race.learning_rate:g} was the best of its grid"
        self.talk.say(f"Chosen: {race.chosen} at learning rate {race.learning_rate:g}, because {reason}")
        return race.chosen, race.learning_rate, reason

    def _trial(self, cell: CellConfig, data: ImageData) -> Record:
        """Train a cell of the race from the pretrained weights, unless the store has its record."""
        if (known := self._known(cell)) is not None:
            return known
        with self._claimed(cell) as claim:
            record = train(cell, self.loaded, data, device=self.device, keep=False)
            claim.finish(record)
        return record

    def _known(self, cell: CellConfig) -> Record | None:
        self.store.retry(cell)  # a cell that failed in an earlier call is tried again
        return self.store.record(cell)

    def _claimed(self, cell: CellConfig) -> Claim:
        claim = self.store.claim(cell)
        if claim is None:
            raise StoreError(
                f"{self.store.path(cell)} is being trained by another process. Wait for it, or choose another --out."
            )
        return claim


def _sizes(data: ImageData) -> str:
    return " + ".join(f"{len(images):,}" for images in data.splits.values())


def _score(score: Score) -> str:
    return f"{score.accuracy:.1%} of {score.n} test images (95 % interval {score.ci_low:.1%} to {score.ci_high:.1%})"
