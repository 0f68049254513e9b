import math

import pytest

from pliant.advising.budget import Candidate
from pliant.advising.race import Trial, decide, learning_rates, run_race
from pliant.errors import DivergedError
from pliant.runs import CellConfig, Record
from pliant.terms import parse_components

SIZES = {"mha": 500, "fc1": 600, "ln1": 20, "full": 5000}


def trial(name: str, rate: float, accuracy: float | None, n: int = 400) -> Trial:
    error = None if accuracy is None else math.sqrt(accuracy * (1 - accuracy) / n)
    return Trial(
        name, SIZES[name], rate, accuracy, error, n, "done" if accuracy is not None else "diverged at step 2", 1.0
    )


def test_the_best_validation_accuracy_wins():
    race = decide([trial("mha", 0.1, 0.9), trial("mha", 0.3, 0.8), trial("ln1", 0.1, 0.7), trial("full", 0.1, 0.85)])
    assert (race.chosen, race.learning_rate, race.tied) == ("mha", 0.1, ("mha",))
    assert race.outcome == {"mha": 0.9, "full": 0.85, "ln1": 0.7}
    assert "90.0% of 400 validation images, by more than one standard error" in race.reason


def test_a_tie_within_one_standard_error_goes_to_fewer_parameters():
    # the standard error of 0.90 over 400 images is 0.015
    race = decide([trial("full", 0.1, 0.90), trial("mha", 0.1, 0.886), trial("ln1", 0.1, 0.884)])
    assert race.chosen == "mha"
    assert set(race.tied) == {"full", "mha"}
    assert "fewest parameters of those within one standard error" in race.reason


def test_equal_accuracies_take_the_lower_rate():
    assert decide([trial("mha", 0.3, 0.9), trial("mha", 0.1, 0.9)]).learning_rate == 0.1


def test_diverged_trials_are_named_and_never_chosen():
    race = decide([trial("mha", 0.1, 0.5), trial("fc1", 1.0, None), trial("fc1", 0.1, 0.3)])
    assert race.chosen == "mha"
    assert "fc1 at 1: diverged at step 2" in race.warnings
    with pytest.raises(DivergedError, match="all 1 trials of the race diverged"):
        decide([trial("fc1", 1.0, None)])


def test_the_edge_of_a_grid_is_a_warning():
    inside = decide([trial("mha", r, a) for r, a in ((0.1, 0.5), (0.3, 0.9), (1.0, 0.6))])
    assert inside.warnings == ()
    edge = decide([trial("mha", r, a) for r, a in ((0.1, 0.5), (0.3, 0.6), (1.0, 0.9))])
    assert edge.warnings == (
        "mha: its best learning rate 1 is at the edge of its grid (0.1 to 1); a better one may lie beyond",
    )


def test_every_candidate_runs_the_same_steps_over_its_own_grid():
    seen: list[CellConfig] = []
    middle = {name: learning_rates(name, parse_components(name), "sgd")[1] for name in SIZES}

    def train(cell: CellConfig) -> Record:
        seen.append(cell)
        return Record(
            cell=cell,
            status="done",
            best_step=7,
            n_validation=10,
            validation_accuracy=0.5
            + 0.1 * (cell.components == "ln1")
            + 0.01 * (cell.learning_rate == middle[cell.components or ""]),
        )

    base = CellConfig(learning_rate=1.0, steps=7, eval_every=7, read_test=False)
    sets = [Candidate(name, parse_components(name), n) for name, n in SIZES.items()]
    race = run_race(sets, base, train=train, fixed={"mha": (0.5,)})
    assert race.chosen == "ln1"
    assert {c.steps for c in seen} == {7}
    assert not any(c.read_test for c in seen)
    assert len({c.id for c in seen}) == len(seen) == len(race.frame)
    for name in SIZES:
        rates = [c.learning_rate for c in seen if c.components == name]
        assert rates == list((0.5,) if name == "mha" else learning_rates(name, parse_components(name), "sgd"))
    assert [c.components for c in seen] == sorted((c.components for c in seen), key=list(SIZES).index)


def raced(accuracy, name: str = "mha"):
    seen: list[float] = []

    def train(cell: CellConfig) -> Record:
        seen.append(cell.learning_rate)
        value = accuracy(cell.learning_rate)
        if value is None:
            return Record(cell=cell, status="diverged", diverged_at=3, n_validation=100)
        return Record(cell=cell, status="done", best_step=4, n_validation=100, validation_accuracy=value)

    base = CellConfig(learning_rate=1.0, steps=4, eval_every=4, read_test=False)
    return run_race([Candidate(name, parse_components(name), 5)], base, train=train), seen


def test_a_grid_is_extended_until_its_best_is_inside():
    race, seen = raced(lambda rate: 0.9 - 0.1 * abs(math.log10(rate) - 1))  # best at 10
    assert seen == [0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
    assert race.learning_rate == 10.0
    assert race.warnings == ()


def test_an_edge_that_moves_away_is_left_with_a_warning():
    race, seen = raced(lambda rate: 0.5 - 0.05 * math.log10(rate))  # the lower the better
    assert seen == [0.1, 0.3, 1.0, 0.03, 0.01, 0.003, 0.001]
    assert "mha: its best learning rate 0.001 is at the edge of its grid (0.001 to 1)" in race.warnings[0]


def test_where_all_diverge_lower_rates_are_tried():
    race, seen = raced(lambda rate: None if rate > 0.05 else 0.7)
    assert seen[:4] == [0.1, 0.3, 1.0, 0.01]
    assert race.learning_rate <= 0.01
    assert sum("diverged at step 3" in w for w in race.warnings) == 3
