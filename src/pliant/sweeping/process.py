"""A worker process: jobs come in as lines of JSON, events go out as such; it ends when its owner does.

Started as `python -m pliant.sweeping.process THREADS DEVICE CHECKPOINT_SECONDS`.
"""

import json
import os
import queue
import sys
import threading
from typing import IO, Any

from pliant.errors import StoreError
from pliant.sweeping.desk import Desk, attend
from pliant.sweeping.events import Event
from pliant.sweeping.jobs import job_from_json
from pliant.sweeping.worker import Worker, limit_threads

OWNER_IS_GONE = 3


def main(threads: int, device: str, checkpoint_seconds: float) -> None:
    """Do jobs until there are no more owners to do them for."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not get among the answers
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen_to_owner, args=(sys.stdin.buffer, requests), daemon=True).start()
    limit_threads(threads)
    _say(answers, {"started": os.getpid()})
    worker = Worker(device=device, checkpoint_seconds=checkpoint_seconds)

    def tell(event: Event) -> None:
        _say(answers, {"event": event.to_json()})

    desk = Desk(tell)
    while True:
        request = requests.get()
        try:
            if "finish" in request:
                desk.finish()
            else:
                attend(job_from_json(request), worker, desk=desk, listen=tell)
        except StoreError as error:
            _say(answers, {"trouble": str(error), "errno": error.errno})
        else:
            _say(answers, {"free": True})


def _listen_to_owner(stdin: IO[bytes], requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Pass requests on. The end of the input means that the owner is dead: whatever goes on here is for nobody."""
    for line in stdin:
        requests.put(json.loads(line))
    os._exit(OWNER_IS_GONE)


def _say(answers: IO[str], values: dict[str, Any]) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
