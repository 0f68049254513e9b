"""Hub ids: against a hub of our own on this machine, a cache of our own, and no hub at all."""

import contextlib
import hashlib
import json
import shutil
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest

from models.small_checkpoints import small_model, write
from pliant import models
from pliant.errors import ModelNotFoundError
from pliant.models import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "someone/vit-tiny"


class Hub(BaseHTTPRequestHandler):
    """The few answers of a hub that loading needs; all attributes are set on a subclass for each test."""

    folder = None
    failure = None
    delay = 0.0
    log = None

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, *, body):
        if REPO not in self.path:  # the client has questions of its own
            self.reply(404, b"", {}, body)
            return
        self.log.append(f"{self.command} {self.path}")
        time.sleep(self.delay)
        if self.failure is not None:
            status, code = self.failure
            self.reply(status, b"{}", {"X-Error-Code": code} if code else {}, body)
        elif self.path.startswith("/api/models/"):
            self.reply(200, json.dumps(self.listing()).encode(), {"Content-Type": "application/json"}, body)
        else:
            content = (self.folder / self.path.rpartition("/")[2]).read_bytes()
            tag = hashlib.sha1(content).hexdigest()
            self.reply(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}, body)

    def listing(self):
        files = sorted(self.folder.iterdir())
        if "/tree/" in self.path:
            oids = [hashlib.sha1(f.read_bytes()).hexdigest() for f in files]
            return [
                {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": oid}
                for f, oid in zip(files, oids, strict=True)
            ]
        return {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": [{"rfilename": f.name} for f in files]}

    def reply(self, status, content, headers, body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            with contextlib.suppress(ConnectionError):  # the client may have given up
                self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def online(tmp_path, cache, monkeypatch):
    """A hub that has one repository, and a client that thinks it is the hub."""
    handler = type("ThisHub", (Hub,), {"log": [], "folder": write(small_model("vit"), tmp_path / "remote")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    use_hub(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


def use_hub(monkeypatch, address):
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def fill_cache(cache, folder, *, leave_out=()):
    """Lay a snapshot into a cache as the hub's client does."""
    repository = cache / f"models--{REPO.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / COMMIT, ignore=shutil.ignore_patterns(*leave_out))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def unreachable(cache, monkeypatch):
    use_hub(monkeypatch, f"http://127.0.0.1:{closed_port()}")


def test_what_is_needed_is_fetched_once(online, monkeypatch, capfd):
    (online.folder / "pytorch_model.bin").write_bytes(b"the same weights again, pickled")
    (online.folder / "README.md").write_text("long")
    loaded = models.load(REPO)
    assert loaded.source == f"{REPO}@{COMMIT}"
    assert loaded.fingerprint == models.load(str(online.folder)).fingerprint
    fetched = {line.rpartition("/")[2] for line in online.log if line.startswith("GET") and "/resolve/" in line}
    assert fetched == {"config.json", "preprocessor_config.json", "model.safetensors"}
    online.log.clear()
    capfd.readouterr()
    assert models.load(REPO, classes=["a", "b"]).source == loaded.source
    assert capfd.readouterr() == ("", "")
    assert not [line for line in online.log if line.startswith("GET") and "/resolve/" in line]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert models.load(REPO).fingerprint == loaded.fingerprint


def test_pickled_weights_are_fetched_if_there_are_no_others(online):
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(online.folder / "model.safetensors"), online.folder / "pytorch_model.bin")
    (online.folder / "model.safetensors").unlink()
    assert models.load(REPO).fingerprint == models.load(str(online.folder)).fingerprint


def test_revision_is_part_of_the_name(online):
    assert models.load(f"{REPO}@v1.0").source == f"{REPO}@{COMMIT}"
    assert f"GET /api/models/{REPO}/revision/v1.0" in online.log


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ((401, "RepoNotFound"), r"unknown model 'someone/vit-tiny'.*the hub has no public model of that name"),
        ((404, "RepoNotFound"), r"unknown model 'someone/vit-tiny'.*the hub has no public model of that name"),
        ((403, "GatedRepo"), r"refused access to it; its owner gives access on request.*not in the cache"),
        ((404, "RevisionNotFound"), r"it has no revision"),
        ((403, None), r"answered with status 403; check your login"),
        ((503, None), r"answered with status 503; try again later"),
    ],
)
def test_each_refusal_has_its_own_message(online, failure, message, capfd):
    online.failure = failure
    with pytest.raises(ModelNotFoundError, match=message):
        models.load(REPO)
    assert len(online.log) == 1  # not tried again
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("left_out", "message"), [("config.json", "no config"), ("model.safetensors", "no weights in")]
)
def test_repository_without_a_model_says_what_it_has(online, left_out, message):
    (online.folder / left_out).unlink()
    with pytest.raises(ModelNotFoundError, match=rf"is on the hub but holds {message}.*it has .*preprocessor_config"):
        models.load(REPO)


def test_slow_hub_is_given_up(online, monkeypatch):
    monkeypatch.setattr(hub, "REQUEST_SECONDS", 0.2)
    online.delay = 1.0
    with pytest.raises(ModelNotFoundError, match="the hub could not be reached"):
        models.load(REPO)


def test_name_resolution_that_hangs_is_given_up(online, monkeypatch):
    monkeypatch.setattr(hub, "DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *args, **kwargs: time.sleep(2))
    start = time.monotonic()
    with pytest.raises(ModelNotFoundError, match=r"could not be reached \(no answer within 0\.2 s\)"):
        models.load(REPO)
    assert time.monotonic() - start < 1.5


def test_longest_wait_is_within_fifteen_seconds():
    assert hub.REQUEST_SECONDS <= hub.DEADLINE_SECONDS <= 13


@pytest.mark.usefixtures("unreachable")
def test_unreachable_hub_is_one_message_and_nothing_else(capfd):
    start = time.monotonic()
    with pytest.raises(ModelNotFoundError, match=r"no such folder here; the hub could not be reached \(.*'bundled'"):
        models.load("google/vit-base-patch16-224-in21k")
    assert time.monotonic() - start < 5
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("state", ["unreachable", "offline"])
def test_cached_model_needs_no_hub(state, cache, monkeypatch, tmp_path, capfd):
    if state == "unreachable":
        use_hub(monkeypatch, f"http://127.0.0.1:{closed_port()}")
    folder = write(small_model("vit"), tmp_path / "remote")
    fill_cache(cache, folder)
    capfd.readouterr()
    loaded = models.load(REPO, classes=["a", "b"])
    assert loaded.source == f"{REPO}@{COMMIT}"
    assert models.load(f"{REPO}@{COMMIT}").fingerprint == models.load(str(folder)).fingerprint
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ModelNotFoundError, match="at revision 'other' cannot be had"):
        models.load(f"{REPO}@other")


def test_offline_says_that_the_hub_was_not_asked(cache):
    with pytest.raises(ModelNotFoundError, match=rf"HF_HUB_OFFLINE is set, so the hub was not asked; .* cache {cache}"):
        models.load(REPO)


def test_half_a_copy_is_no_copy(cache, tmp_path):
    fill_cache(cache, write(small_model("vit"), tmp_path / "remote"), leave_out=["model.safetensors"])
    with pytest.raises(ModelNotFoundError, match=r"the copy in .* has no weights"):
        models.load(REPO)


def test_near_names_come_with_the_refusal(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(small_model("vit"), tmp_path / "out" / "model")
    for name, near in (("out/modle", "out/model"), ("facebook/dino2-small", "facebook/dinov2-small")):
        with pytest.raises(ModelNotFoundError, match=rf"Did you mean '{near}'"):
            models.load(name)


def test_what_cannot_be_a_hub_id_is_not_asked_for(online):
    with pytest.raises(ModelNotFoundError, match="cannot be a hub id"):
        models.load("someone/vit--tiny..")
    assert online.log == []
