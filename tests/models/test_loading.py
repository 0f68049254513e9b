import pytest

from pliant import models
from pliant.errors import ModelNotFoundError


def test_bundled_gets_a_classifier_and_comes_back(tmp_path):
    loaded = models.load("bundled", classes=["a", "b", "c"])
    folder = models.save(loaded.model, tmp_path / "model", preprocessing=loaded.preprocessing)
    back = models.load(str(folder))
    assert back.fingerprint == loaded.fingerprint
    assert back.model.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_unknown_name_names_the_nearest():
    with pytest.raises(ModelNotFoundError, match="unknown model 'bundeld'.*Did you mean 'bundled'"):
        models.load("bundeld")
