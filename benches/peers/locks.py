"""Locks of redis-py and python-redis-lock: how often a second, and how long a wait.

Each worker is a thread with a connection of its own, as these libraries are used. The figures go
to standard output, one JSON object a line, as those of all peers do.
"""

import json
import os
import sys
import threading
import time
import uuid

import redis
import redis_lock

SPAN = float(os.environ["LATCHWORK_PEERS_SPAN"])
TTL = 30
NAME = sys.argv[1]
ROOM = f"peers-{uuid.uuid4()}"


def connect():
    return redis.Redis.from_url(os.environ["LATCHWORK_TEST_REDIS"])


def lock(client, key):
    """A lock that waits until it is granted."""
    if NAME == "redis-py":
        return client.lock(key, timeout=TTL)
    if NAME == "redis-py-1ms":
        return client.lock(key, timeout=TTL, sleep=0.001)
    if NAME == "python-redis-lock":
        return redis_lock.Lock(client, key, expire=TTL)
    raise SystemExit(f"unknown peer: {NAME}")


def together(workers, work):
    """Runs the work in so many threads at once; what each returned, and how long all took."""
    ready, found, over = threading.Barrier(workers + 1), [None] * workers, threading.Event()

    def run(worker):
        client = connect()
        client.ping()
        ready.wait()
        found[worker] = work(worker, client, over)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    time.sleep(SPAN)
    over.set()
    took = time.perf_counter() - began
    for thread in threads:
        thread.join()
    return found, took


def distinct(workers):
    """Acquire and release on keys of their own."""

    def work(worker, client, over):
        count = 0
        while not over.is_set():
            held = lock(client, f"{ROOM}/{worker}/{count % 8}")
            assert held.acquire(blocking=True)
            held.release()
            count += 1
        return count

    counts, took = together(workers, work)
    tell(what="distinct", workers=workers, rate=sum(counts) / took)


def hot(workers):
    """One key that all want."""

    def work(_, client, over):
        waits = []
        while not over.is_set():
            held = lock(client, f"{ROOM}/hot")
            asked = time.perf_counter()
            assert held.acquire(blocking=True)
            waits.append(time.perf_counter() - asked)
            held.release()
        return waits

    found, took = together(workers, work)
    # The last one of each came after the end.
    tell(what="hot", workers=workers, rate=sum(len(waits) - 1 for waits in found) / took, waits=found)


def tell(**figures):
    print(json.dumps({"name": NAME, **figures}), flush=True)


distinct(1)
distinct(64)
hot(64)
