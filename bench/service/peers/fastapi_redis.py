"""A plain FastAPI service that counts in Redis: redis-py, and the exact sliding window by one script."""

from __future__ import annotations

import os
import time
import uuid

import redis.asyncio as redis
from fastapi import FastAPI, Response

from .fastapi_memory import CheckRequest, CheckResponse, add_headers

SCRIPT = """\
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local window_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now_ms - window_ms)
local count = redis.call('ZCARD', KEYS[1])
if count < limit then
    redis.call('ZADD', KEYS[1], now_ms, ARGV[3])
    redis.call('PEXPIRE', KEYS[1], window_ms)
    return {1, limit - count - 1, 0}
end
local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {0, 0, tonumber(oldest[2]) + window_ms - now_ms}
"""

app = FastAPI()
client = redis.from_url(os.environ["REDIS_URL"])
script = client.register_script(SCRIPT)


@app.post("/check")
async def check(asked: CheckRequest, response: Response) -> CheckResponse:
    """One check."""
    began = time.perf_counter()
    window_ms = int(asked.window * 1000)
    allowed, remaining, retry_ms = await script(
        keys=[f"ratelimit:{asked.key}"], args=[window_ms, asked.limit, uuid.uuid4().hex]
    )
    answer = CheckResponse(
        key=asked.key,
        allowed=bool(allowed),
        limit=asked.limit,
        remaining=remaining,
        algorithm="sliding_log",
        retry_after=retry_ms / 1000,
        reset_after=asked.window,
        backoff_level=0,
        source="engine",
    )
    add_headers(response, answer, asked.window, began)
    return answer
