"""What schemathesis cannot know: who may call what, and what the sample order type takes."""

import os

import schemathesis

# Without tokens a caller says who it is. Nobody approves what they have proposed or submitted.
AGENTS = {
    "checkout", "heartbeat", "heartbeat_many", "submit", "submit_many", "submit_part", "finalize",
    "release", "snooze", "fail",
}
REVIEWERS = {"approve", "reject"}

PAYLOAD = {"names": ["Ada"]}
RESULT = {"text": "Hello, Ada!"}


def operation_of(case):
    return case.operation.definition.raw.get("operationId", "")


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = operation_of(case)
    if operation in AGENTS:
        actor = "agent:schema"
    elif operation in REVIEWERS:
        actor = "user:reviewer"
    else:
        actor = "user:proposer"
    case.headers = {**(case.headers or {}), "Latchwork-Actor": actor}
    body = case.body
    if not isinstance(body, dict):
        return
    # A request that waits would take the time of a hundred others.
    if isinstance(body.get("wait_ms"), int):
        body["wait_ms"] = min(body["wait_ms"], 50)
    # Most payloads, results and filters that can be thought of are refused or find nothing: with these
    # the sequences get to the end. Requests outside of sequences are sent as they were made.
    if "LATCHWORK_SEQUENCES" not in os.environ:
        return
    if operation in ("propose", "plan") and {"type", "payload"} <= body.keys():
        body.update(type="greeting", payload=PAYLOAD)
        for name in ("unique_key", "unique_states"):
            body.pop(name, None)
    if operation == "checkout":
        for name in ("types", "min_priority", "meta", "limit"):
            body.pop(name, None)
    if operation == "submit" and {"lease", "result"} <= body.keys():
        body["result"] = RESULT
    if operation == "approve":
        body.pop("edits", None)
    if operation == "reject" and "errors" in body:
        body.update(errors=[{"code": "tone", "message": "too loud"}])
        body.pop("items", None)
