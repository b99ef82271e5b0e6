#!/usr/bin/env python3
"""Walks an order from its proposal to its end with nothing but Python's standard library.

    latchwork serve &
    examples/http/walk.py http://127.0.0.1:8420

With LATCHWORK_TOKEN (an admin's) it makes a token for an agent and one for a reviewer, and revokes them at
the end. Without tokens each request names its actor. It ends with 0 if the server did everything as it
should, and says otherwise what it did not.
"""

import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request


class Failed(Exception):
    """The server did not do what it should."""


class Server:
    """One caller of a server."""

    def __init__(self, base, headers):
        self.base, self.headers = base, headers

    def request(self, method, path, body=None, headers=None, status=200, code=None):
        """Sends a request, checks the status and the code of a refusal, and gives body and headers."""
        data = None if body is None else json.dumps(body).encode()
        sent = {**self.headers, **(headers or {})}
        if data is not None:
            sent["Content-Type"] = "application/json"
        request = urllib.request.Request(self.base + path, data=data, headers=sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                got, head, text = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as refusal:
            got, head, text = refusal.code, refusal.headers, refusal.read()
        except urllib.error.URLError as error:
            raise Failed(f"{self.base} cannot be reached: {error.reason}") from error
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise Failed(f"{method} {path} gave {got} and no JSON: {text[:200]!r}") from error
        if got != status or (code and answer.get("code") != code):
            raise Failed(f"{method} {path} gave {got} instead of {status} {code or ''}: {answer}")
        return answer, head

    def get(self, path, **expected):
        return self.request("GET", path, **expected)[0]

    def post(self, path, body, **expected):
        return self.request("POST", path, body, **expected)[0]


def check(holds, what):
    if not holds:
        raise Failed(what)


def until(look, what, seconds=60):
    """Looks again until there is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.2)
    raise Failed(f"{what} did not happen within {seconds} s")


def callers(base, token):
    """The proposer, the agent and the reviewer, and the ids of their tokens."""
    if not token:
        actors = ("user:walk-proposer", "agent:walk-agent", "user:walk-reviewer")
        return *(Server(base, {"Latchwork-Actor": actor}) for actor in actors), []
    admin, made = Server(base, {"Authorization": f"Bearer {token}"}), []
    for role in ("agent", "reviewer"):
        name = f"walk-{role}-{secrets.token_hex(4)}"
        made.append(admin.post("/v1/tokens", {"name": name, "role": role}, status=201))
    agent, reviewer = (Server(base, {"Authorization": f"Bearer {one['secret']}"}) for one in made)
    return admin, agent, reviewer, [one["token"]["id"] for one in made]


def propose(user):
    """Proposes an order once, however often it is sent."""
    key = {"Idempotency-Key": f"walk-{secrets.token_hex(8)}"}
    proposal = {"type": "greeting", "payload": {"names": ["Grace", "Alan"]}}
    order, _ = user.request("POST", "/v1/orders", proposal, key, status=201)
    again, head = user.request("POST", "/v1/orders", proposal, key, status=201)
    check(again == order, "a replay is another answer")
    check(head["Idempotent-Replayed"] == "true", "a replay is not marked")
    other = {"type": "greeting", "payload": {"names": ["Eve"]}}
    user.request("POST", "/v1/orders", other, key, status=422, code="idempotency_conflict")
    empty = {"type": "greeting", "payload": {"names": []}}
    user.post("/v1/orders", empty, status=422, code="payload_invalid")
    return order["order"]["id"]


def take_lock(agent, key):
    """Locks what the agent works on; nobody else gets in."""
    token = secrets.token_hex(16)
    held = agent.post("/v1/locks/acquire", {"key": key, "token": token, "ttl_ms": 60_000})
    second = {"key": key, "token": secrets.token_hex(16)}
    agent.post("/v1/locks/acquire", second, status=409, code="lock_taken")
    return token, held["fence"]


def greet(agent, order, text):
    """Leases the items of an order and submits a greeting for each; gives the leases."""
    wanted = {"order": order, "limit": 10, "wait_ms": 5_000}
    leases = agent.post("/v1/items/checkout", wanted)["leases"]
    check(leases, "there is nothing to lease")
    for lease in leases:
        agent.post("/v1/items/heartbeat", {"lease": lease["id"]})
        empty = {"lease": lease["id"], "result": {"text": ""}}
        agent.post("/v1/items/submit", empty, status=422, code="result_invalid")
    results = [
        {"lease": lease["id"], "result": {"text": text.format(name=lease["input"]["name"])}}
        for lease in leases
    ]
    done = agent.post("/v1/items/submit-many", {"submissions": results})
    check(all("submitted" in one for one in done["outcomes"]), f"a result was refused: {done}")
    return leases


def send_back(reviewer, order, leases):
    """Rejects one of the results, and gives what the reviewer had seen."""
    seen = reviewer.get(f"/v1/orders/{order}/preview")
    item = leases[0]["item_id"]
    error = {"code": "impersonal", "message": "greet by name", "field": "/text", "item": item}
    rework = {"rework": True, "items": [item], "errors": [error]}
    reviewer.post(f"/v1/orders/{order}/reject", {"errors": []}, status=400, code="invalid_argument")
    reviewer.post(f"/v1/orders/{order}/reject", rework)
    return seen


def approve(user, reviewer, order, before):
    """Approves what was seen; not what has changed, and not by the proposer."""
    path = f"/v1/orders/{order}/approve"
    old = {"content_version": before["content_version"], "digest": before["digest"]}
    preview = reviewer.get(f"/v1/orders/{order}/preview")
    changed = reviewer.post(path, old, status=409, code="content_changed")
    check("greet" in str(changed["changes"]).lower() or changed["changes"], "no difference is told")
    seen = {"content_version": preview["content_version"], "digest": preview["digest"]}
    user.post(path, seen, status=403, code="reviewer_refused")
    approved = reviewer.post(path, seen)
    check(approved["order"]["state"] == "approved", f"it is not approved: {approved}")
    return preview


def receipt(user, order, preview):
    """The receipt says who approved what; it comes when the events are sealed."""

    def look():
        try:
            return user.get(f"/v1/orders/{order}/receipt")
        except Failed as error:
            if "not_sealed" not in str(error):
                raise
            return None

    found = until(look, "the receipt")
    check(found["digest"] == preview["digest"], "the receipt has another digest")
    check(found["diff"]["after"] == preview["diff"]["after"], "another thing was applied")


def refused(caller):
    try:
        return caller.get("/v1/orders", status=401)
    except Failed:
        return None


def walk(base, token):
    user, agent, reviewer, tokens = callers(base, token)
    try:
        order = propose(user)
        print(f"ok  proposed {order}")
        key = f"walk/{order}"
        lock, fence = take_lock(agent, key)
        print(f"ok  locked {key} with fence {fence}")
        leases = greet(agent, order, "Hi!")
        before = send_back(reviewer, order, leases)
        again = greet(agent, order, "Hello, {name}!")
        told = json.dumps(again[0].get("previous"))
        check(len(again) == 1 and "greet by name" in told, f"the agent was not told: {told}")
        print("ok  sent back, and done again")
        preview = approve(user, reviewer, order, before)
        print("ok  approved what was seen")
        path = f"/v1/orders/{order}"
        until(lambda: user.get(path)["order"]["state"] == "completed", "the end of the order")
        receipt(user, order, preview)
        print("ok  completed, with a receipt")
        agent.post("/v1/locks/release", {"key": key, "token": lock})
        follower = secrets.token_hex(16)
        held = agent.post("/v1/locks/acquire", {"key": key, "token": follower})
        check(held["fence"] > fence, "the fence did not grow")
        agent.post("/v1/locks/release", {"key": key, "token": follower})
        print("ok  released")
    finally:
        for one in tokens:
            user.post(f"/v1/tokens/{one}/revoke", {})
    if tokens:
        until(lambda: refused(agent), "the end of a revoked token", 10)  # remembered for a second
        print("ok  tokens revoked")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        walk(sys.argv[1].rstrip("/"), os.environ.get("LATCHWORK_TOKEN"))
    except Failed as error:
        sys.exit(f"FAILED: {error}")


if __name__ == "__main__":
    main()
