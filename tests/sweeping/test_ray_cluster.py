"""Ray: two nodes on one machine, one of which is lost while the sweep goes on; and what Ray is told."""

import os
import sys
from pathlib import Path

import pytest

from pliant.errors import ConfigError, MissingExtraError
from pliant.runs import Store
from pliant.sweeping import Event, Settings, make_engine, sweep
from sweeping.small_sweep import make_recipe, outcomes


def test_without_ray_the_message_says_how_to_install_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "pliant\[ray\]"'):
        sweep(make_recipe(model), out=tmp_path, engine="ray")


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def test_a_node_is_lost_during_the_sweep(cluster, model: Path, tmp_path: Path):
    recipe = make_recipe(model, components=["mha", "ln1", "fc1"], seed=[0, 1], steps=[150], eval_every=[15])
    alone = tmp_path / "alone"
    assert sweep(recipe, out=alone).complete
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    events: list[Event] = []
    running: set[object] = set()

    def listener(event: Event, standing: object) -> None:
        events.append(event)
        if event.job != "cell":
            return
        if event.kind == "started":
            running.add(event.cell)
        else:
            running.discard(event.cell)
        if len(running) == 2 and node in cluster.worker_nodes:  # both nodes are at work
            cluster.remove_node(node, allow_graceful=False)

    result = sweep(recipe, out=tmp_path / "out", engine="ray", address=cluster.address, listener=listener)
    assert result.complete
    assert [event.kind for event in events].count("lost") == 1
    assert outcomes(Store(tmp_path / "out")) == outcomes(Store(alone))
    assert {record.environment["threads"] for record in result.records} == {1}
    assert result.probes[0].test == sweep(recipe, out=alone).probes[0].test


def test_what_the_cluster_cannot_give_is_refused(cluster):
    for settings, message in (
        (Settings(address=cluster.address, device="cuda"), "asks for a GPU .device cuda., and the cluster has none"),
        (Settings(address=cluster.address, gpus_per_cell=0.5), "no machine with CPU 1, GPU 0.5 for a worker"),
        (Settings(address=cluster.address, threads=64), "no machine with CPU 64 for a worker; it has CPU"),
        (Settings(address="127.0.0.1:1"), "no Ray cluster at '127.0.0.1:1'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_engine("ray", settings)
