-- All operations on locks, in one script, so that one message can have many commands. It says in Lua what
-- rules.rs says in Rust; tests/redis/rules.rs compares the two.
--
-- KEYS  1: the last fence; then the lock of each command: releases, first requests, all others
-- ARGV  1: the client; 2: the number of releases; 3: the number of first requests; 4: its process; then
--          for each release: id
--          if there are first requests: the INFO of the first of them, its ttl in milliseconds; then
--          for each first request: `ID STEP POSITION INFO` without blanks, and without INFO if it is the
--          one above, as it nearly always is
--          STEP: n does not wait, w waits, q waits behind others of its process; POSITION: 00, 01, …
--          for each other command: operation, id, ttl in milliseconds, option, RECORD
--
-- Replies: one for each command, described at its operation; `{ '!', error }` for a command that failed.
--
-- A lock has one of two layouts. Any other value is refused, and never overwritten.
--   single   `latchwork:k:NAME` is `ID STEP POSITION INFO \n FIRST \n SINCE \n PROCESS` with the lease's own
--            ttl: one exclusive holder, no waiters. Its fence is FIRST plus POSITION; an empty SINCE is
--            FIRST. Nearly all leases start and end here.
--   general  `latchwork:k:NAME` is `* MOMENT \n FENCE \n HOLDER \n HOLDER \n …` without blanks, so that
--            SET NX fails; FENCE is the key's last one. Beside it
--            `latchwork:q:NAME`  the queue: a list of ids
--            `latchwork:d:NAME`  a hash from each id to `SINCE \n RECORD`
--            All three expire at MOMENT, which is extended in time.
-- HOLDER  id \n state \n expires \n fence \n previous fence \n since \n RECORD; state: r reserved, c claimed
-- RECORD  mode \n ttl \n client \n owner \n process \n note; mode: x exclusive, s shared
-- INFO    mode \n ttl \n owner \n note
-- None of these fields has a line feed: the client rejects control characters. Times are microseconds of
-- the server's clock. They are below 2^53, so that a Lua number is exact.
--
-- A client with waiters keeps `latchwork:a:CLIENT` alive and subscribes to `latchwork:c:CLIENT`. There it is
-- notified of a turn to claim by `ID:`, and of the time until the next lease expires by `ID MICROSECONDS`
-- without a blank. Keys that are not in KEYS matter in a cluster only, and a cluster is rejected.

local KEYS, ARGV, call, sub, byte, match = KEYS, ARGV, redis.call, string.sub, string.byte, string.match
local STAR, EXCLUSIVE = 42, 120
local ALIVE = 6000 -- milliseconds for which a client counts as alive after its last heartbeat
local WINDOW = 2000000 -- how long a reservation waits for its claim
local GRACE = 60000000 -- how long the general layout outlives its last lease, at least

local releases, requests, commands = ARGV[2] + 0, ARGV[3] + 0, #KEYS - 1
local replies, replied = {}, 0
-- The value of each key after the commands before; false: none, nil: must be read again.
local values = {}
local found = call('MGET', unpack(KEYS, 2))
for i = 1, commands do values[KEYS[i + 1]] = found[i] end

-- Releases of the single layout: one DEL for all. Replies 1 if it was held, 0 if not.
local ended = {}
for i = 1, releases do
  local key = KEYS[i + 1]
  local v = values[key]
  if not v or byte(v) ~= STAR then
    local held = v and sub(v, 1, 22) == ARGV[i + 4]
    if held then
      ended[#ended + 1] = key
      values[key] = false
    end
    replied, replies[i] = replied + 1, held and 1 or 0
  end
end
if ended[1] then call('DEL', unpack(ended)) end
if replied == commands then return replies end

local now_text = string.format('%s%06d', unpack(call('TIME')))
local now = now_text + 0

local function text(number) return string.format('%.0f', number) end

-- The first of so many new fences: the larger of the last one + 1 and the clock, so that fences grow even
-- if the server has lost everything.
local function next_fence(count)
  local last = call('SET', KEYS[1], count == 1 and now_text or text(now + count - 1), 'GET')
  if not last or last + 0 < now then return now end
  call('SET', KEYS[1], text(last + count))
  return last + 1
end

-- First requests for the exclusive lease of a free key. Replies the fence.
if requests > 0 then
  local info, ttl = ARGV[releases + 5], ARGV[releases + 6]
  local first, rest
  for i = releases + 1, releases + requests do
    local key, body = KEYS[i + 1], ARGV[i + 6]
    local own = byte(body, 26)
    if values[key] == false then
      values[key] = nil
      if (own or byte(info)) == EXCLUSIVE then
        if not first then
          first = next_fence(requests)
          rest = '\n' .. text(first) .. '\n' .. (first == now and '' or now_text) .. '\n' .. ARGV[4]
        end
        local v = body .. (own and '' or info) .. rest
        local lasts = own and match(body, '^.\n(%d+)000\n', 26) or ttl
        -- NX fails for a value that is not a string, which MGET does not show.
        if call('SET', key, v, 'PX', lasts, 'NX') then
          values[key] = v
          replied, replies[i] = replied + 1, first + (i - releases - 1)
        end
      end
    end
  end
  if replied == commands then return replies end
end

-- All other commands: a lock is loaded, changed and saved.

local sent, alive = false, {}

local function heartbeat() sent = sent or call('SET', 'latchwork:a:' .. ARGV[1], 1, 'PX', ALIVE) end

local function is_alive(client)
  if client == ARGV[1] then return true end
  if alive[client] == nil then alive[client] = call('EXISTS', 'latchwork:a:' .. client) == 1 end
  return alive[client]
end

local function refuse_layout(name) error({ err = 'FOREIGN ' .. name }) end
-- mode, ttl, client, owner, process, note
local function fields(record) return match(record, '^([xs])\n(%d+)\n(%x+)\n([^\n]*)\n([^\n]*)\n([^\n]*)$') end
local function client_of(record) return select(3, fields(record)) end

local function waiter(s, id)
  local since, record = match(call('HGET', s.d, id) or '', '^(%d+)\n(.*)$')
  if not since or not fields(record) then refuse_layout(s.d) end
  return since, record
end

-- A holder as it is reported to clients.
local function entry(h) return table.concat({ h.state, h.fence, h.previous, h.since, h.record }, '\n') end

local function remove(s, at) s.changed = table.remove(s.holders, at) ~= nil end

local function next_to_expire(s)
  local first
  for _, h in ipairs(s.holders) do first = first and first.expires <= h.expires and first or h end
  return first
end

-- Microseconds until the next lease expires; -1 without a holder.
local function time_left(s)
  local first = next_to_expire(s)
  return first and first.expires - now or -1
end

-- The reported time left: a single lease's `expires` is rounded up, but a report must not exceed the ttl.
local function reported(s, h) return h.expires - now - (s.single and 1000 or 0) end

-- The state of a lock, without the leases that have expired.
local function load(key)
  local name = sub(key, 13)
  local v = values[key] or call('GET', key) -- an error if it is not a string
  local s = { key = key, q = 'latchwork:q:' .. name, d = 'latchwork:d:' .. name }
  s.holders, s.fence, s.moment, s.unclaimed, s.v = {}, '0', 0, {}, v
  if v and byte(v) ~= STAR then
    local position, wants, owner, note, first, since, process =
      match(v, '^(%d%d)(x\n%d+\n)([^\n]*)\n([^\n]*)\n(%d+)\n(%d*)\n([^\n]*)$', 24)
    if not position then refuse_layout(key) end
    s.single, s.fence = true, text(first + position)
    local record = wants .. '0\n' .. owner .. '\n' .. process .. '\n' .. note
    local h = { id = sub(v, 1, 22), state = 'c', fence = s.fence, previous = '0', record = record }
    h.expires, h.since = now + (call('PTTL', key) + 1) * 1000, since == '' and first or since
    s.holders[1] = h
  elseif v then
    local moment, fence, at = match(v, '^%*(%d+)\n(%d+)\n()')
    if not moment then refuse_layout(key) end
    s.moment, s.fence = moment + 0, fence
    local each = '^([%w_-]+)\n([rc])\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n(.\n%d+\n%x+\n[^\n]*\n[^\n]*\n[^\n]*)\n()'
    while at <= #v do
      local h, expires = {}, nil
      h.id, h.state, expires, h.fence, h.previous, h.since, h.record, at = match(v, each, at)
      if not at then refuse_layout(key) end
      h.expires = expires + 0
      if h.expires > now then
        s.holders[#s.holders + 1] = h
      else
        s.changed = true
        if h.state == 'r' then s.unclaimed[#s.unclaimed + 1] = client_of(h.record) end
      end
    end
  end
  s.was = next_to_expire(s)
  return s
end

-- Writes what has changed, and notifies the first waiter of the time until the next lease expires, unless the
-- reply has it (`informed`). An operation that changes anything calls `grant_next` before, which finds it.
local function save(s)
  local ages = s.head and s.moment < now + GRACE
  if not (s.changed or s.enqueued or ages or s.head ~= s.first_head) then return end
  if not s.holders[1] and not s.head then
    if s.v then call('DEL', s.key, s.d) end
    values[s.key] = false
    return
  end
  local last, parts = now, {}
  for i, h in ipairs(s.holders) do
    last = math.max(last, h.expires)
    parts[i] = table.concat({ h.id, h.state, text(h.expires), h.fence, h.previous, h.since, h.record, '' }, '\n')
  end
  local extends = last + GRACE > s.moment
  if extends then s.moment = last + 2 * GRACE end
  local ends = text(math.ceil(s.moment / 1000))
  if extends or s.changed then
    local v = '*' .. text(s.moment) .. '\n' .. s.fence .. '\n' .. table.concat(parts)
    call('SET', s.key, v, 'PXAT', ends)
    values[s.key] = v
  end
  if s.head and (extends or s.enqueued) then
    call('PEXPIREAT', s.q, ends)
    call('PEXPIREAT', s.d, ends)
  end
  local first = next_to_expire(s)
  local sooner = first and (not s.was or first.expires < s.was.expires)
  if s.head and (sooner or s.head ~= s.first_head) then
    local client = client_of(select(2, waiter(s, s.head)))
    if not (s.informed and client == ARGV[1]) then
      call('PUBLISH', 'latchwork:c:' .. client, s.head .. text(time_left(s)))
    end
  end
end

local function holder(s, id)
  for at, h in ipairs(s.holders) do if h.id == id then return h, at end end
end

-- The index of the lease with this owner. An owner has one lease of a key at most.
local function owned_by(s, owner)
  for at, h in ipairs(s.holders) do
    if owner ~= '' and select(4, fields(h.record)) == owner then return at end
  end
end

local function admits(s, mode)
  local h = s.holders[1]
  return not h or mode == 's' and sub(h.record, 1, 1) == 's'
end

local function granted(h, waited, started) return { 1, h.fence + 0, h.previous + 0, waited, started } end

local function grant(s, id, record, state)
  local _, ttl, _, owner = fields(record)
  local own = owned_by(s, owner) -- two requests of one owner may have waited together
  if own then remove(s, own) end
  local lasts = state == 'r' and math.min(ttl, WINDOW) or ttl
  local h = { id = id, state = state, previous = s.fence, since = now_text, record = record }
  h.fence, h.expires = text(next_fence(1)), now + lasts
  s.fence, s.changed = h.fence, true
  s.holders[#s.holders + 1] = h
  return h
end

-- Grants the key to the waiters whose turn it is: as reservations that must be claimed, or as leases to waiters
-- of this client if the reply lists them (`given`).
local function grant_next(s, given)
  -- A client that let a turn pass without a heartbeat since is dead, and so are all its waiters.
  for _, client in ipairs(s.unclaimed) do
    local rest = call('PTTL', 'latchwork:a:' .. client)
    if rest >= 0 and rest <= ALIVE - WINDOW / 1000 then
      call('DEL', 'latchwork:a:' .. client)
      alive[client] = false
    end
  end
  s.unclaimed = {}
  while true do
    local id = call('LINDEX', s.q, 0)
    s.head = id
    if s.first_head == nil then s.first_head = id end
    if not id then return end
    local _, record = waiter(s, id)
    local mode, _, client = fields(record)
    local present = is_alive(client)
    if present and not admits(s, mode) then return end
    call('LPOP', s.q)
    call('HDEL', s.d, id)
    if present and given and client == ARGV[1] then
      local h = grant(s, id, record, 'c')
      given[#given + 1], given[#given + 2], given[#given + 3] = id, h.fence, h.previous
    elseif present then
      grant(s, id, record, 'r')
      call('PUBLISH', 'latchwork:c:' .. client, id .. ':')
    end
  end
end

local function dequeue(s, id)
  if call('HDEL', s.d, id) == 0 then return end
  call('LREM', s.q, 1, id)
  s.first_head = false -- the next waiter may not know when the next lease expires
end

-- Replies to a requester that holds the key, and claims what is reserved for it.
local function claim(s, h, waited)
  if h.state == 'c' then return granted(h, waited, 0) end
  local _, ttl = fields(h.record)
  h.state, h.expires, s.changed = 'c', now + ttl, true
  return granted(h, 1, 1)
end

local function refused(s)
  local h = next_to_expire(s)
  return h and { 0, reported(s, h), entry(h) } or { 0 }
end

local operations = {
  -- Acquire. option: the step; besides those of first requests, a: has waited, l: has waited, last request.
  -- Replies the grant: 1, fence, previous fence, whether it has waited, whether its ttl starts now; or 2
  -- and microseconds until the next lease expires, for a waiter; or 0 and a holder (microseconds, entry).
  a = function(s, id, _, option, record)
    local waits = option ~= 'n' and option ~= 'l'
    local mode, _, _, owner = fields(record)
    grant_next(s) -- a last request may find that it is next
    local h = holder(s, id)
    if h then return claim(s, h, 0) end
    if s.head and call('HEXISTS', s.d, id) == 1 then
      if not waits then
        dequeue(s, id)
        grant_next(s)
        return refused(s)
      end
    else
      -- It was removed from the queue, and others went on: a grant now would be out of turn.
      if option == 'l' then return refused(s) end
      local own = owned_by(s, owner)
      if own and mode == 'x' and #s.holders > 1 then return refused(s) end -- an upgrade never waits
      if own or not s.head and admits(s, mode) then return granted(grant(s, id, record, 'c'), 0, 1) end
      if not waits then return refused(s) end
      call('HSET', s.d, id, now_text .. '\n' .. record)
      s.enqueued = call('RPUSH', s.q, id) == 1
      s.changed = s.changed or s.single
      s.head = s.head or id
      s.first_head = s.first_head or id
    end
    -- A process that has waiters already sends a heartbeat once a second.
    if option ~= 'q' then heartbeat() end
    s.informed = true
    return { 2, time_left(s) }
  end,

  -- Release, or leave the queue. Replies 1 if it was held, 0 if not; and with waiters of this client that it
  -- grants the key: that, microseconds until the next lease expires if others wait, and id, fence and
  -- previous fence of each.
  r = function(s, id)
    local h, at = holder(s, id)
    if h then remove(s, at) else dequeue(s, id) end
    local reply = { h and 1 or 0, -1 }
    grant_next(s, reply)
    if not reply[3] then return reply[1] end
    if s.head then reply[2] = time_left(s) end
    s.informed = true
    return reply
  end,

  -- Claim. Replies 0 or the grant, and microseconds until the next lease expires if others wait.
  c = function(s, id)
    grant_next(s)
    s.informed = true
    local h = holder(s, id)
    return { h and claim(s, h, 1) or 0, s.head and time_left(s) or -1 }
  end,

  -- Renew. Replies 1 and the time, or 0 if it is not held.
  n = function(s, id, ttl)
    local h = holder(s, id)
    if h and s.single then return { call('PEXPIRE', s.key, ttl), now } end
    if h then h.state, h.expires, s.changed = 'c', now + ttl * 1000, true end
    grant_next(s)
    return h and { 1, now } or 0
  end,

  -- Is held? Replies 1 or 0.
  h = function(s, id) grant_next(s) return holder(s, id) and 1 or 0 end,

  -- Rotate. option: the new id; record: the process. Replies 0 or the grant.
  t = function(s, id, ttl, fresh, process)
    grant_next(s)
    local h = holder(s, fresh)
    if h then return granted(h, 0, 0) end
    h = holder(s, id)
    if not h then return 0 end
    local mode, _, _, owner, _, note = fields(h.record)
    h.record = table.concat({ mode, ttl .. '000', ARGV[1], owner, process, note }, '\n')
    h.id, h.state, h.expires, h.previous, h.fence = fresh, 'c', now + ttl * 1000, s.fence, text(next_fence(1))
    s.fence, s.changed = h.fence, true
    return granted(h, 0, 1)
  end,

  -- Break. option: a fence, or empty for all. Replies microseconds and entry of each ended lease.
  b = function(s, _, _, fence)
    local broken = {}
    for at = #s.holders, 1, -1 do
      local h = s.holders[at]
      if fence == '' or fence == h.fence then
        broken[#broken + 1], broken[#broken + 2] = reported(s, h), entry(h)
        remove(s, at)
      end
    end
    grant_next(s)
    return broken
  end,

  -- Inspect, without any change. Replies the time, microseconds and entry of each holder, entries of waiters.
  i = function(s)
    local holders, waiters = {}, {}
    for i, h in ipairs(s.holders) do holders[2 * i - 1], holders[2 * i] = reported(s, h), entry(h) end
    for _, id in ipairs(call('LRANGE', s.q, 0, -1)) do
      local since, record = waiter(s, id)
      if is_alive(client_of(record)) then waiters[#waiters + 1] = 'w\n0\n0\n' .. since .. '\n' .. record end
    end
    return { now, holders, waiters }
  end,

  -- Refresh: sends a heartbeat, and grants what has expired. option: ids of waiters. Replies microseconds
  -- until the next lease expires, a letter for each id (w waits, the state of a holder, - unknown), the time.
  p = function(s, _, _, ids)
    heartbeat()
    grant_next(s)
    s.informed = true
    local function status(id)
      local h = holder(s, id)
      return h and h.state or call('HEXISTS', s.d, id) == 1 and 'w' or '-'
    end
    return { time_left(s), (string.gsub(ids, string.rep('.', 22), status)), now }
  end,
}

for i = 1, commands do
  if not replies[i] then
    local key, op, id, ttl, option, record = KEYS[i + 1], 'r', ARGV[i + 4], nil, nil, nil
    if i > releases + requests then
      local at = i * 5 - (releases + requests) * 4 + (requests > 0 and 2 or 0)
      op, id, ttl, option, record = unpack(ARGV, at, at + 4)
    elseif i > releases then
      local body = ARGV[i + 6]
      op, id, option = 'a', sub(body, 1, 22), sub(body, 23, 23)
      local info = #body > 25 and sub(body, 26) or ARGV[releases + 5]
      local wants, owner, note = match(info, '^(.\n%d+\n)([^\n]*)\n(.*)$')
      record = wants .. ARGV[1] .. '\n' .. owner .. '\n' .. ARGV[4] .. '\n' .. note
    end
    local fine, reply = pcall(function()
      local s = load(key)
      local reply = operations[op](s, id, ttl, option, record)
      if op ~= 'i' then save(s) end
      return reply
    end)
    if not fine then values[key] = nil end
    replies[i] = fine and reply or { '!', type(reply) == 'table' and reply.err or tostring(reply) }
  end
end
return replies
