#!/usr/bin/env python3
"""Verifies an exported audit trail of Latchwork, with Python's standard library only.

usage: verify.py EXPORT [CHECKPOINTS] [--receipt RECEIPT]

EXPORT has one sealed event a line, as JSON, in the order of positions. CHECKPOINTS, for a trail whose
beginning was pruned, has one line for each order with events before that: {"order_id": …, "seal":
{"position": …, "hash": …}}. Exit code 0: the trail verifies; 1: it does not, with a line for each
finding; 2: it cannot be read. With --receipt it is also checked that the receipt of an order, as JSON,
says nothing but what stands in the trail.

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


def receipt_findings(receipt, events):
    """What a receipt says, beside the events that it names."""
    by_position = {event["position"]: event for event in events}
    told = {}
    for named in receipt["events"]:
        event = by_position.get(named["position"])
        if event is None:
            yield f"receipt: position {named['position']} is not in the trail"
        elif any(event[name] != named[name] for name in ("id", "event", "hash")):
            yield f"receipt: position {named['position']} is another event"
        elif event["order_id"] != receipt["order_id"]:
            yield f"receipt: position {named['position']} is of another order"
        else:
            told[event["event"]] = event
    for name in ("approved", "applied"):
        if name not in told:
            yield f"receipt: no event says that the order was {name}"
            return
    approved = json.loads(told["approved"]["payload"])
    applied = json.loads(told["applied"]["payload"])
    said = {name: approved.get(name) for name in ("content_version", "digest", "results_digest", "rule")}
    said |= {name: approved.get(name) for name in ("approvals", "auto_approve")}
    said |= {"applied": applied, "diff": json.loads(told["applied"].get("diff") or "null")}
    if approved.get("outcome") != "approved":
        yield "receipt: the approval that it names did not decide"
    for name, value in said.items():
        if receipt.get(name) != value:
            yield f"receipt: {name} is not what the trail says"
    for name in ("content_version", "digest", "results_digest"):
        if applied.get(name) != approved.get(name):
            yield f"receipt: {name} was approved as one thing and applied as another"
    preview = receipt.get("preview")
    if preview is not None and hashlib.sha256(preview.encode("utf-8")).hexdigest() != receipt["digest"]:
        yield "receipt: the preview is not that of the digest"


def main(arguments):
    receipt_path = None
    if "--receipt" in arguments[:-1]:
        at = arguments.index("--receipt")
        receipt_path = arguments[at + 1]
        arguments = arguments[:at] + arguments[at + 2 :]
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        events = list(lines(arguments[0]))
        checkpoints = list(lines(arguments[1])) if len(arguments) == 2 else []
        found = list(findings(events, checkpoints))
        if receipt_path:
            with open(receipt_path, encoding="utf-8") as file:
                found += receipt_findings(json.load(file), events)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"verify.py: cannot read the export: {error!r}", file=sys.stderr)
        return 2
    for finding in found:
        print(finding)
    print(f"{len(events)} events, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
