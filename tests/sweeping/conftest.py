from pathlib import Path

import pytest

from sweeping.small_sweep import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny")
