#!/usr/bin/env python3
"""Verifies an exported audit trail of Latchwork, with Python's standard library only.

usage: verify.py EXPORT [CHECKPOINTS]

EXPORT has one sealed event a line, as JSON, in the order of positions. CHECKPOINTS, for a trail whose
beginning was pruned, has one line for each order with events before that: {"order_id": …, "seal":
{"position": …, "hash": …}}. Exit code 0: the trail verifies; 1: it does not, with a line for each
finding; 2: it cannot be read.

The bytes under a hash are described in the documentation of `latchwork_work::audit`.
"""

import hashlib
import json
import sys

FIRST = "0" * 64


def netstring(field):
    if field is None:
        return b"-,"
    data = str(field).encode("utf-8")
    return str(len(data)).encode("ascii") + b":" + data + b","


def hash_of(event, previous):
    fields = ["latchwork-event-1", previous, event["position"], event["id"], event["order_id"]]
    fields += [event.get("item_id"), event["event"], event["actor_type"], event.get("actor_id")]
    fields += [event["created_at"]]
    fields += [event.get(name) for name in ("payload", "diff", "message", "provenance")]
    return hashlib.sha256(b"".join(map(netstring, fields))).hexdigest()


def lines(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def findings(events, checkpoints):
    chains = {each["order_id"]: each["seal"]["hash"] for each in checkpoints}
    position = None
    for event in events:
        if position is not None and event["position"] != position + 1:
            yield f"position {event['position']} follows {position}"
        elif position is None and not checkpoints and event["position"] != 1:
            yield f"the trail begins at position {event['position']}, and there are no checkpoints"
        position = event["position"]
        if event["hash"] != hash_of(event, chains.get(event["order_id"], FIRST)):
            yield f"position {position}: the hash does not fit (order {event['order_id']})"
        chains[event["order_id"]] = event["hash"]


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        events = list(lines(arguments[0]))
        checkpoints = list(lines(arguments[1])) if len(arguments) == 2 else []
        found = list(findings(events, checkpoints))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"verify.py: cannot read the export: {error!r}", file=sys.stderr)
        return 2
    for finding in found:
        print(finding)
    print(f"{len(events)} events, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
