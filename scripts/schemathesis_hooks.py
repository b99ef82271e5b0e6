"""What schemathesis cannot know: who may call what, and what the sample order type takes."""

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
    # Most payloads and results that can be thought of are refused by the sample type: with these the
    # sequences get to the end. Those of a generated type are sent as they are.
    if operation in ("propose", "plan") and len(str(body.get("type", ""))) % 4 and "payload" in body:
        body.update(type="greeting", payload=PAYLOAD)
        body.pop("unique_states", None)
    if operation == "submit" and len(str(body.get("notes", ""))) % 4 and "result" in body:
        body["result"] = RESULT
