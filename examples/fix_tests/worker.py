"""A worker process: repairs projects from a store until SIGTERM, or until its stdin closes."""

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

from examples.fix_tests.fixing import build, sandboxes
from examples.fix_tests.script import slowly
from perdure import Runtime
from perdure.agent import Model, OpenAIModel, ScriptedModel


def model_of(url: str | None, name: str, pause_s: float) -> Model:
    """Return the model of an endpoint, or the scripted one."""
    if url is None:
        return ScriptedModel(slowly(pause_s))
    return OpenAIModel(name, base_url=url)


async def work(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    threading.Thread(target=_watch_stdin, args=(loop, stop), daemon=True).start()
    graph = build(model_of(options.model, options.model_name, options.pause_s))
    backend = sandboxes(options.boxes)
    try:
        async with Runtime.open(options.store, graphs=[graph], sandbox=backend) as runtime:
            worker_id = runtime.worker.worker_id if runtime.worker is not None else ""
            print(json.dumps({"worker": worker_id, "pid": os.getpid()}), flush=True)
            await stop.wait()
    finally:
        backend.close()


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    sys.stdin.read()  # ends when whoever started this process ends, however that ends
    loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Repair projects until SIGTERM.")
    parser.add_argument("--store", required=True)
    parser.add_argument("--boxes", required=True, type=Path, help="folder of the sandboxes")
    parser.add_argument("--model", help="base URL of an endpoint; left out: the script")
    parser.add_argument("--model-name", default="")
    parser.add_argument("--pause-s", type=float, default=0.1, help="of the scripted model")
    asyncio.run(work(parser.parse_args()))
