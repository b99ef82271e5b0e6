#!/usr/bin/env python3
"""Writes the pages of an approved order to the directory TARGET: an applier in a page.

It may be run twice for one order, by a worker that died and by the next one. So it keeps, by the idempotency
key, the fence that it has seen and what it did: a lower fence is refused, and what is done is told again.
"""
import fcntl
import json
import os
import sys


def text_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)  # a reader sees the old page or the new one


def difference(target, pages):
    before = {path: text_of(os.path.join(target, path)) for path in pages}
    before = {path: text for path, text in before.items() if text is not None}
    return {"before": before, "after": {**before, **pages}, "summary": f"{len(pages)} pages"}


def main():
    request = json.load(sys.stdin)
    target = os.environ["TARGET"]
    pages = {item["input"]["page"]["path"]: item["result"]["text"] for item in request["items"]}
    state = os.path.join(target, ".orders", request["idempotency_key"])
    if request["action"] == "preview":
        # What was begun already: the pages that are there are its own.
        begun = json.loads(text_of(state) or "{}").get("diff")
        return begun or difference(target, pages)
    os.makedirs(os.path.dirname(state), exist_ok=True)
    with open(state + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(text_of(state) or "{}")
        if known.get("fence", 0) > request["fence"]:
            sys.exit("a worker with a higher fence has taken over")
        # The difference is kept before the first page is written, or a second run would not know it.
        diff = known.get("diff") or difference(target, pages)
        write(state, json.dumps({"fence": request["fence"], "diff": diff}))
        for path, text in pages.items():
            write(os.path.join(target, path), text)
    return diff


if __name__ == "__main__":
    print(json.dumps(main()))
