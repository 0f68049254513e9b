import os
import subprocess
import sys
import time

import datasets
import httpx2
import huggingface_hub
import PIL.Image
import pytest

import pliant.data as data
from pliant.data import hub
from pliant.errors import DataError

FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})


def small(count: int) -> datasets.Dataset:
    rows = {"image": [PIL.Image.new("RGB", (3, 3), (i, i, i)) for i in range(count)], "label": [0, 1] * (count // 2)}
    return datasets.Dataset.from_dict(rows, features=FEATURES)


@pytest.fixture
def online(monkeypatch):
    """The hub answers, or so it seems; what is asked of the datasets library is recorded."""
    asked = []

    def load_dataset(*arguments):
        asked.append((arguments, datasets.config.HF_HUB_OFFLINE))
        return datasets.DatasetDict({"train": small(20), "test": small(4)})

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, *a, **k: object())
    return asked


def test_a_hub_name_with_a_configuration(online):
    loaded = data.load("hub:org/name:plain")
    assert [len(v) for v in loaded.splits.values()] == [16, 4, 4]
    assert loaded.name == "hub:org/name:plain"
    assert online == [(("org/name", "plain"), False)]


def test_no_answer_means_the_cache_and_no_further_request(online, monkeypatch):
    def unreachable(self, *arguments, **options):
        raise httpx2.ConnectError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    assert len(data.load("hub:org/name").test) == 4
    assert online == [(("org/name", None), True)]
    assert not datasets.config.HF_HUB_OFFLINE


def test_an_answer_that_never_comes_is_not_waited_for(online, monkeypatch):
    monkeypatch.setattr(hub, "DEADLINE_SECONDS", 0.1)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, *a, **k: time.sleep(1))
    monkeypatch.setattr(datasets, "load_dataset", lambda *a: (_ for _ in ()).throw(FileNotFoundError("no copy")))
    with pytest.raises(DataError, match=r"hub:org/name cannot be had: .*no answer within 0.1 s.*digits"):
        data.load("hub:org/name")


@pytest.mark.parametrize("name", ["hub:", "hub:a/b/c", "hub:a b"])
def test_a_name_that_is_none(name):
    with pytest.raises(DataError, match="expected hub:ORG/NAME"):
        data.load(name)


def test_a_local_folder_is_never_taken_for_a_hub_name(tmp_path, monkeypatch, online):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="there is also a local org/name"):
        data.load("hub:org/name")
    assert online == []


def test_offline_is_one_message_within_fifteen_seconds():
    """Where nothing answers, no retry of the hub's client may be printed or waited for."""
    code = (
        "import time, datasets; from pliant import data, errors; start = time.monotonic()\n"
        "try: data.load('hub:org/name')\n"
        "except errors.DataError as error: print(error, time.monotonic() - start, sep='\\n')"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")}
    env |= {"HF_ENDPOINT": "http://127.0.0.1:9"}  # a port where nothing listens
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stderr == ""
    message, seconds = done.stdout.splitlines()
    assert message.startswith("hub:org/name cannot be had: the hub could not be reached")
    assert float(seconds) < 15
