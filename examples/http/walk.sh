#!/bin/sh
# Walks an order from its proposal to its end with nothing but curl: a lock, a lease, a refused result, a
# rework, an approval of what was seen, and the receipt.
#
#   latchwork serve &
#   examples/http/walk.sh http://127.0.0.1:8420
#
# With LATCHWORK_TOKEN (an admin's) it makes a token for an agent and one for a reviewer, and revokes them
# at the end. Without tokens each request names its actor. It ends with 0 if the server did everything as
# it should, and says otherwise what it did not.
set -eu

if [ $# -ne 1 ]; then
  echo "usage: walk.sh BASE_URL, such as http://127.0.0.1:8420" >&2
  exit 64
fi
base=${1%/}
command -v curl >/dev/null || { echo "walk.sh needs curl" >&2; exit 69; }
umask 077
scratch=$(mktemp -d)
agent_id='' reviewer_id=''

# ---- requests ----------------------------------------------------------------------------------

# Tokens go to curl in files: an argument could be seen by every process of the machine.
if [ -n "${LATCHWORK_TOKEN:-}" ]; then
  printf 'Authorization: Bearer %s\n' "$LATCHWORK_TOKEN" >"$scratch/user"
else
  echo 'Latchwork-Actor: user:walk-proposer' >"$scratch/user"
  echo 'Latchwork-Actor: agent:walk-agent' >"$scratch/agent"
  echo 'Latchwork-Actor: user:walk-reviewer' >"$scratch/reviewer"
fi

# request WHO METHOD PATH [JSON [HEADER]] : the status, body and headers of an answer.
request() {
  who=$1 method=$2 path=$3 json=${4:-} extra=${5:-}
  set -- -sS -m 90 -X "$method" -H "@$scratch/$who" -o "$scratch/body" -D "$scratch/head" -w '%{http_code}'
  [ -z "$json" ] || { printf '%s' "$json" >"$scratch/json"; set -- "$@" -H 'Content-Type: application/json' --data-binary "@$scratch/json"; }
  [ -z "$extra" ] || set -- "$@" -H "$extra"
  status=$(curl "$@" "$base$path") || fail "$base cannot be reached"
  body=$(cat "$scratch/body")
}

# field NAME : the first value of that name in the body, a text or a number.
field() {
  printf '%s\n' "$body" | sed -n '/"'"$1"'":/{
    s/"'"$1"'":"\{0,1\}/\
/
    s/.*\n//
    s/[",}].*//p
    q
  }'
}

fail() {
  echo "FAILED at: $step: $1" >&2
  exit 1
}

# expect STATUS [TEXT] : the answer must have the status, and the text in its body.
expect() {
  [ "$status" = "$1" ] || fail "$method $path gave $status instead of $1: $body"
  [ $# -lt 2 ] || case $body in
    *"$2"*) ;;
    *) fail "$method $path gave no $2: $body" ;;
  esac
}

step='the beginning'
begin() { step=$1; }
done_with() { printf 'ok  %s\n' "$step"; }

# ---- the end, also of a walk that failed ---------------------------------------------------------

finish() {
  code=$?
  trap - EXIT
  for id in $agent_id $reviewer_id; do
    request user POST "/v1/tokens/$id/revoke" '{}' || true
  done
  rm -rf "$scratch"
  exit $code
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- the walk ------------------------------------------------------------------------------------

begin 'the server is ready'
request user GET /readyz
expect 200 '"status":"ok"'
done_with

if [ -n "${LATCHWORK_TOKEN:-}" ]; then
  begin 'an agent and a reviewer get tokens'
  for role in agent reviewer; do
    request user POST /v1/tokens '{"name": "walk-'"$role-$$"'", "role": "'"$role"'"}'
    expect 201
    token=$(field secret)
    printf 'Authorization: Bearer %s\n' "$token" >"$scratch/$role"
    if [ $role = agent ]; then agent_id=$(field id); else reviewer_id=$(field id); fi
  done
  done_with
fi

begin 'an order is proposed once, however often it is sent'
key="walk-$$-$(date +%s)"
proposal='{"type": "greeting", "payload": {"names": ["Ada"]}, "meta": {"walk": "'"$key"'"}}'
request user POST /v1/orders "$proposal" "Idempotency-Key: $key"
expect 201 '"state":"queued"'
order=$(field id)
request user POST /v1/orders "$proposal" "Idempotency-Key: $key"
expect 201 "$order"
grep -qi '^idempotent-replayed: true' "$scratch/head" || fail 'the replay is not marked'
request user POST /v1/orders '{"type": "greeting", "payload": {"names": ["Eve"]}}' "Idempotency-Key: $key"
expect 422 idempotency_conflict
request user POST /v1/orders '{"type": "greeting", "payload": {"names": []}}'
expect 422 payload_invalid
done_with

begin 'the agent locks what it works on, and nobody else gets in'
lock=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
other=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
request agent POST /v1/locks/acquire '{"key": "walk/'"$order"'", "token": "'"$lock"'", "ttl_ms": 60000}'
expect 200 '"fence"'
fence=$(field fence)
request agent POST /v1/locks/acquire '{"key": "walk/'"$order"'", "token": "'"$other"'"}'
expect 409 lock_taken
done_with

begin 'the agent leases the item, and a result of the wrong form is refused'
request agent POST /v1/items/checkout '{"order": "'"$order"'", "wait_ms": 5000}'
expect 200 '"name":"Ada"'
lease=$(field id)
item=$(field item_id)
request agent POST /v1/items/heartbeat '{"lease": "'"$lease"'"}'
expect 200 expires_at
request agent POST /v1/items/submit '{"lease": "'"$lease"'", "result": {"text": ""}}'
expect 422 result_invalid
request agent POST /v1/items/submit '{"lease": "'"$lease"'", "result": {"text": "Hi!"}}'
expect 200 '"state":"submitted"'
done_with

begin 'the reviewer sends it back, and the agent is told why'
request reviewer GET "/v1/orders/$order/preview"
expect 200 'Hi!'
old=$(field digest) version=$(field content_version)
request reviewer POST "/v1/orders/$order/reject" '{"rework": true, "items": ["'"$item"'"], "errors": [
  {"code": "impersonal", "message": "greet her by name", "field": "/text", "item": "'"$item"'"}]}'
expect 200 '"state":"queued"'
request agent POST /v1/items/checkout '{"order": "'"$order"'", "wait_ms": 5000}'
expect 200 'greet her by name'
lease=$(field id)
request agent POST /v1/items/submit '{"lease": "'"$lease"'", "result": {"text": "Hello, Ada!"}, "notes": "fence '"$fence"'"}'
expect 200 '"result_version":2'
done_with

begin 'only what was seen is approved, and not by the proposer'
request reviewer GET "/v1/orders/$order/preview"
expect 200 'Hello, Ada!'
digest=$(field digest)
request reviewer POST "/v1/orders/$order/approve" '{"content_version": '"$version"', "digest": "'"$old"'"}'
expect 409 content_changed
version=$(field content_version)
seen='{"content_version": '"$version"', "digest": "'"$digest"'"}'
request user POST "/v1/orders/$order/approve" "$seen"
expect 403 reviewer_refused
request reviewer POST "/v1/orders/$order/approve" "$seen"
expect 200 '"state":"approved"'
done_with

begin 'the order is applied and completed'
tries=0
while request user GET "/v1/orders/$order"; [ "$(field state)" != completed ]; do
  expect 200
  tries=$((tries + 1))
  [ $tries -lt 120 ] || fail "it is still $(field state)"
  sleep 0.5
done
done_with

begin 'its receipt says who approved what'
tries=0
while request user GET "/v1/orders/$order/receipt"; [ "$status" = 409 ]; do
  tries=$((tries + 1))
  [ $tries -lt 120 ] || fail "it has none: $body"
  sleep 0.5
done
expect 200 "$digest"
expect 200 'Hello, Ada!'
request user GET "/v1/orders/$order/events"
expect 200 '"event":"completed"'
done_with

begin 'the lock is released, and the next one has a higher fence'
request agent POST /v1/locks/release '{"key": "walk/'"$order"'", "token": "'"$lock"'"}'
expect 200
request agent POST /v1/locks/acquire '{"key": "walk/'"$order"'", "token": "'"$other"'"}'
expect 200
[ "$(field fence)" -gt "$fence" ] || fail "the fence did not grow: $body"
request agent POST /v1/locks/release '{"key": "walk/'"$order"'", "token": "'"$other"'"}'
expect 200
done_with

if [ -n "${LATCHWORK_TOKEN:-}" ]; then
  begin 'a revoked token is refused'
  request user POST "/v1/tokens/$agent_id/revoke" '{}'
  expect 200
  agent_id=''
  tries=0
  while request agent GET /v1/orders; [ "$status" != 401 ]; do # a server remembers a token for a second
    tries=$((tries + 1))
    [ $tries -lt 20 ] || fail "the token is still accepted: $body"
    sleep 0.5
  done
  request user POST "/v1/tokens/$reviewer_id/revoke" '{}'
  expect 200
  reviewer_id=''
  done_with
fi
echo "the order $order went all the way"
