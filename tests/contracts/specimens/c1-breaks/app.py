"""A server that holds a lock elsewhere while it works."""

import os
import uuid
from contextlib import asynccontextmanager

import redis
from fastapi import FastAPI

client = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
ME = str(uuid.uuid4())
held: set[str] = set()


@asynccontextmanager
async def lifespan(_app: FastAPI):
    yield
    for resource in held:
        client.delete(f"lock:{resource}")


app = FastAPI(lifespan=lifespan)


@app.get("/ready")
def ready() -> dict:
    return {"ready": client.ping()}


@app.post("/resources/{resource}")
def acquire(resource: str) -> dict:
    client.set(f"lock:{resource}", ME, nx=True)
    is_held = client.get(f"lock:{resource}") == ME
    if is_held:
        held.add(resource)
    return {"held": is_held}
