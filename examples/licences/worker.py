"""A worker process: executes licence audits from a store until SIGTERM, or until its stdin closes.

The same as `perdure worker examples.licences.audit:graph --store URL`; this one also prints its
worker id, so that the demo knows which process holds a run.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import threading

from examples.licences.audit import graph
from perdure import Runtime


async def work(store: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    threading.Thread(target=_watch_stdin, args=(loop, stop), daemon=True).start()
    async with Runtime.open(store, graphs=[graph]) as runtime:
        worker_id = runtime.worker.worker_id if runtime.worker is not None else ""
        print(json.dumps({"worker": worker_id, "pid": os.getpid()}), flush=True)
        await stop.wait()


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    sys.stdin.read()  # ends when whoever started this process ends, however that ends
    loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Execute licence audits until SIGTERM.")
    parser.add_argument("--store", required=True, help="for example sqlite:///audit.db")
    asyncio.run(work(parser.parse_args().store))
