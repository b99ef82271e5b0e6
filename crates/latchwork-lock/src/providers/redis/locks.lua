-- Every operation on locks, in one script, so that one message can carry many of them.
--
-- It says in Lua what rules.rs says in Rust; tests/redis.rs compares the two.
--
-- KEYS  1: the last fence; then the lock of each member of the message: releases first, then
--          first questions, then all others
-- ARGV  1: the client that asks; 2: how many releases; 3: how many first questions; 4: its process; then
--          for each release: id
--          if there are first questions: the ASKER of the first of them, its ttl in milliseconds; then
--          for each first question: `ID HOW PLACE ASKER` without blanks, and without the ASKER where it is
--          the one that was told before, as it nearly always is;
--          how: n does not wait, w waits, q waits and is not the first of its process to do so;
--          place: 00, 01, … in the order in which they came
--          for each other: operation, id, ttl in milliseconds, option, record
--
-- Answers: one for each member, in this order; what each operation answers is said there. `{ '!', what }`
-- where one failed: somebody else's data under the names of a lock does not concern the others.
--
-- A lock is in one of two layouts:
--   single   `latchwork:k:NAME` is `ID HOW PLACE ASKER \n FIRST \n SINCE \n PROCESS`, with the lease's own
--            ttl: one exclusive holder and nobody who waits; its fence is the sum of FIRST and PLACE, and
--            SINCE is empty where it is FIRST. Nearly all leases begin and end here.
--   general  `latchwork:k:NAME` is `* MOMENT \n FENCE \n HOLDER \n HOLDER \n …` without blanks, so that
--            nobody can set it past the queue; FENCE is the last one of the key. Beside it
--            `latchwork:q:NAME`  those who wait: ids, first come first
--            `latchwork:d:NAME`  what each of them said: `SINCE \n RECORD`
--            All of it goes away by itself at MOMENT, which is moved on in time.
-- What is neither is refused.
-- HOLDER  id \n state \n expires \n fence \n fence before \n since \n RECORD; state: r reserved, c claimed
-- RECORD  mode \n ttl \n client \n owner \n process \n note; mode: x exclusive, s shared
-- ASKER   mode \n ttl \n owner \n note: the record of one who need not be told anything
-- None of these parts can hold a line feed: control characters are refused before. Times are
-- microseconds of the server's clock, and below 2^53, so that a Lua number holds them.
--
-- A client that waits keeps `latchwork:a:CLIENT` alive and listens on `latchwork:c:CLIENT`. There it is
-- told `ID:` of a turn to claim, and `ID MICROSECONDS`, without a blank, of when something ahead of one
-- who waits runs out.
--
-- The names beside KEYS are made here, which only a cluster would mind; that is refused before.

local KEYS, ARGV, call, sub, byte, match = KEYS, ARGV, redis.call, string.sub, string.byte, string.match
local STAR, EXCLUSIVE = 42, 120
local ALIVE = 6000 -- milliseconds that a client counts as alive after it was heard
local WINDOW = 2000000 -- how long a hand-off waits to be claimed
local GRACE = 60000000 -- how long the general layout outlives all that is in it, at least

local releases, asks, members = ARGV[2] + 0, ARGV[3] + 0, #KEYS - 1
local answers, answered = {}, 0
-- What stands under each key, as the members before have left it; false: nothing, nil: look again.
local value = {}
local found = call('MGET', unpack(KEYS, 2))
for i = 1, members do value[KEYS[i + 1]] = found[i] end

-- Single leases that end: they are deleted together. Answers 1 if it was held, 0 if not.
local over = {}
for i = 1, releases do
  local key = KEYS[i + 1]
  local v = value[key]
  if not v or byte(v) ~= STAR then
    local held = v and sub(v, 1, 22) == ARGV[i + 4]
    if held then
      over[#over + 1] = key
      value[key] = false
    end
    answered, answers[i] = answered + 1, held and 1 or 0
  end
end
if over[1] then call('DEL', unpack(over)) end
if answered == members then return answers end

local time = call('TIME')
local now_text = string.format('%s%06d', time[1], time[2])
local now = now_text + 0

local function text(number) return string.format('%.0f', number) end

-- The first of so many fences in a row: the larger of the last one + 1 and the clock, so that they grow even
-- when the server forgot everything.
local function draw(count)
  local last = call('SET', KEYS[1], count == 1 and now_text or text(now + count - 1), 'GET')
  if not last or last + 0 < now then return now end
  call('SET', KEYS[1], text(last + count))
  return last + 1
end

-- First questions for the exclusive lease of a free key. Answers its fence.
if asks > 0 then
  local asker, ttl = ARGV[releases + 5], ARGV[releases + 6]
  local mode, first, rest, common = byte(asker), nil, nil, nil
  for i = releases + 1, releases + asks do
    local key, body = KEYS[i + 1], ARGV[i + 6]
    local own = byte(body, 26)
    if value[key] == false then
      value[key] = nil
      if (own or mode) == EXCLUSIVE then
        if not first then
          first = draw(asks)
          rest = '\n' .. text(first) .. '\n' .. (first == now and '' or now_text) .. '\n' .. ARGV[4]
          common = asker .. rest
        end
        local v = body .. (own and rest or common)
        local lasts = own and match(body, '^.\n(%d+)000\n', 26) or ttl
        -- Not where something stands that is no string, and so was not found.
        if call('SET', key, v, 'PX', lasts, 'NX') then
          value[key] = v
          answered, answers[i] = answered + 1, first + (i - releases - 1)
        end
      end
    end
  end
  if answered == members then return answers end
end

-- All else: a lock is read, changed and written.

local beaten, alive = false, {}

local function beat()
  if not beaten then call('SET', 'latchwork:a:' .. ARGV[1], 1, 'PX', ALIVE) end
  beaten = true
end

local function lives(client)
  if client == ARGV[1] then return true end
  if alive[client] == nil then alive[client] = call('EXISTS', 'latchwork:a:' .. client) == 1 end
  return alive[client]
end

local function foreign(name) error({ err = 'FOREIGN ' .. name }) end

-- mode, ttl, client, owner, process, note
local function party(record) return match(record, '^([xs])\n(%d+)\n(%x+)\n([^\n]*)\n([^\n]*)\n([^\n]*)$') end

-- since, record
local function waiter(s, id)
  local since, record = match(call('HGET', s.d, id) or '', '^(%d+)\n(.*)$')
  if not since or not party(record) then foreign(s.d) end
  return since, record
end

-- How a holder is told to a client, and a waiter likewise.
local function told(h) return table.concat({ h.state, h.fence, h.before, h.since, h.record }, '\n') end

local function remove(s, at)
  table.remove(s.holders, at)
  s.changed = true
end

local function soonest(s)
  local first
  for _, h in ipairs(s.holders) do
    if not first or h.expires < first.expires then first = h end
  end
  return first
end

-- Microseconds until something runs out; -1: nobody holds it.
local function left(s)
  local first = soonest(s)
  return first and first.expires - now or -1
end

-- How long a holder has yet, as it is shown. The end of a single key is rounded up, so that nobody is let in too
-- early; what is shown is never more than the ttl.
local function remaining(s, h) return h.expires - now - (s.single and 1000 or 0) end

-- A lock as it is, without what has run out.
local function read(key)
  local name = sub(key, 13)
  local v = value[key] or call('GET', key) -- tells where it is no string
  local s = { key = key, q = 'latchwork:q:' .. name, d = 'latchwork:d:' .. name }
  s.holders, s.fence, s.moment, s.unclaimed, s.v = {}, '0', 0, {}, v
  if v and byte(v) ~= STAR then
    local place, wants, owner, note, first, since, process =
      match(v, '^(%d%d)(x\n%d+\n)([^\n]*)\n([^\n]*)\n(%d+)\n(%d*)\n([^\n]*)$', 24)
    if not place then foreign(key) end
    s.single, s.fence = true, text(first + place)
    local record = wants .. '0\n' .. owner .. '\n' .. process .. '\n' .. note
    local h = { id = sub(v, 1, 22), state = 'c', fence = s.fence, before = '0', record = record }
    h.expires, h.since = now + (call('PTTL', key) + 1) * 1000, since == '' and first or since
    s.holders[1] = h
  elseif v then
    local moment, fence, at = match(v, '^%*(%d+)\n(%d+)\n()')
    if not moment then foreign(key) end
    s.moment, s.fence = moment + 0, fence
    local each = '^([%w_-]+)\n([rc])\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n(.\n%d+\n%x+\n[^\n]*\n[^\n]*\n[^\n]*)\n()'
    while at <= #v do
      local h, expires = {}, nil
      h.id, h.state, expires, h.fence, h.before, h.since, h.record, at = match(v, each, at)
      if not at then foreign(key) end
      h.expires = expires + 0
      if h.expires > now then
        s.holders[#s.holders + 1] = h
      else
        s.changed = true
        local _, _, client = party(h.record)
        if h.state == 'r' then s.unclaimed[#s.unclaimed + 1] = client end
      end
    end
  end
  s.was = soonest(s)
  return s
end

-- Leaves as little as will do, and tells the next in line when something ahead of it runs out, unless the
-- answer does (`informed`). Whoever has changed anything has let `admit` find the head of the queue before.
local function write(s)
  local ages = s.head and s.moment < now + GRACE
  if not (s.changed or s.fresh or ages or s.head ~= s.first_head) then return end
  if not s.holders[1] and not s.head then
    if s.v then call('DEL', s.key, s.d) end
    value[s.key] = false
    return
  end
  local last, parts = now, {}
  for i, h in ipairs(s.holders) do
    last = math.max(last, h.expires)
    local lease = { h.id, h.state, text(h.expires), h.fence, h.before, h.since, h.record, '' }
    parts[i] = table.concat(lease, '\n')
  end
  local moves = last + GRACE > s.moment
  if moves then s.moment = last + 2 * GRACE end
  local ends = text(math.ceil(s.moment / 1000))
  if moves or s.changed then
    local v = '*' .. text(s.moment) .. '\n' .. s.fence .. '\n' .. table.concat(parts)
    call('SET', s.key, v, 'PXAT', ends)
    value[s.key] = v
  end
  if s.head and (moves or s.fresh) then
    call('PEXPIREAT', s.q, ends)
    call('PEXPIREAT', s.d, ends)
  end
  local first = soonest(s)
  local sooner = first and (not s.was or first.expires < s.was.expires)
  if s.head and (sooner or s.head ~= s.first_head) then
    local _, record = waiter(s, s.head)
    local _, _, client = party(record)
    if not (s.informed and client == ARGV[1]) then
      call('PUBLISH', 'latchwork:c:' .. client, s.head .. text(left(s)))
    end
  end
end

local function holder(s, id)
  for at, h in ipairs(s.holders) do
    if h.id == id then return h, at end
  end
end

local function owned_by(s, owner)
  for at, h in ipairs(s.holders) do
    local _, _, _, name = party(h.record)
    if name == owner then return at end
  end
end

local function admits(s, mode)
  local h = s.holders[1]
  return not h or mode == 's' and sub(h.record, 1, 1) == 's'
end

local function granted(h, waited, began) return { 1, h.fence + 0, h.before + 0, waited, began } end

local function grant(s, id, record, state)
  local _, ttl, _, owner = party(record)
  -- Two requests of one owner may have waited together: one lease per owner and key.
  local own = owner ~= '' and owned_by(s, owner)
  if own then remove(s, own) end
  local lasts = state == 'r' and math.min(ttl, WINDOW) or ttl
  local fence = text(draw(1))
  local h = { id = id, state = state, fence = fence, before = s.fence, since = now_text, record = record }
  h.expires, s.fence, s.changed = now + lasts, fence, true
  s.holders[#s.holders + 1] = h
  return h
end

-- Hands the key to those whose turn it is: as reservations that wait to be claimed; or as leases to those of
-- the client that asks, if its answer tells them, as `given`.
local function admit(s, given)
  -- Who has let a turn pass, and was not heard for as long, is gone with all who wait there.
  for _, client in ipairs(s.unclaimed) do
    local rest = call('PTTL', 'latchwork:a:' .. client)
    if rest >= 0 and rest <= ALIVE - WINDOW / 1000 then
      call('DEL', 'latchwork:a:' .. client)
      alive[client] = nil
    end
  end
  s.unclaimed = {}
  while true do
    local id = call('LINDEX', s.q, 0)
    s.head = id
    if s.first_head == nil then s.first_head = id end
    if not id then return end
    local _, record = waiter(s, id)
    local mode, _, client = party(record)
    local there = lives(client)
    if there and not admits(s, mode) then return end
    call('LPOP', s.q)
    call('HDEL', s.d, id)
    if there and given and client == ARGV[1] then
      local h = grant(s, id, record, 'c')
      given[#given + 1], given[#given + 2], given[#given + 3] = id, h.fence, h.before
    elseif there then
      grant(s, id, record, 'r')
      call('PUBLISH', 'latchwork:c:' .. client, id .. ':')
    end
  end
end

local function leave(s, id)
  if call('HDEL', s.d, id) == 0 then return end
  call('LREM', s.q, 1, id)
  s.first_head = false -- the next one may not know when its turn can come
end

-- Answers one who holds already, and claims what is reserved for it.
local function claim(s, h, waited)
  if h.state == 'c' then return granted(h, waited, 0) end
  local _, ttl = party(h.record)
  h.state, h.expires, s.changed = 'c', now + ttl, true
  return granted(h, 1, 1)
end

local function refused(s)
  local h = soonest(s)
  return h and { 0, remaining(s, h), told(h) } or { 0 }
end

local operations = {
  -- Asks. option: how; besides those of first questions, a: has waited before, and l: asks a last time.
  -- Answers the grant: 1, fence, fence before, whether it has waited, whether its ttl begins now; or that it
  -- waits: 2, and microseconds until something runs out; or 0 and perhaps a holder: microseconds, entry.
  a = function(s, id, _, option, record)
    local waits = option ~= 'n' and option ~= 'l'
    local mode, _, _, owner = party(record)
    admit(s) -- whoever asks a last time may be next
    local h = holder(s, id)
    if h then return claim(s, h, 0) end
    if s.head and call('HEXISTS', s.d, id) == 1 then
      if not waits then
        leave(s, id)
        admit(s)
        return refused(s)
      end
    else
      -- Its time was over, and others went on: to let it in now would be out of turn.
      if option == 'l' then return refused(s) end
      local own = owner ~= '' and owned_by(s, owner)
      if own then
        if mode == 'x' and #s.holders > 1 then return refused(s) end -- an upgrade never waits
        remove(s, own)
        return granted(grant(s, id, record, 'c'), 0, 1)
      end
      if not s.head and admits(s, mode) then return granted(grant(s, id, record, 'c'), 0, 1) end
      if not waits then return refused(s) end
      call('HSET', s.d, id, now_text .. '\n' .. record)
      s.fresh = call('RPUSH', s.q, id) == 1
      s.changed = s.changed or s.single
      s.head = s.head or id
      s.first_head = s.first_head or id
    end
    -- Whoever waits already has the process look, and say that it lives, once a second.
    if option ~= 'q' then beat() end
    s.informed = true
    return { 2, left(s) }
  end,

  -- Releases, or leaves the queue. Answers 1 if it was held, 0 if not; and where it gave the key to others of
  -- this client: that, microseconds until something runs out, if others wait, and id, fence and fence before
  -- of each of them.
  r = function(s, id)
    local h, at = holder(s, id)
    if h then remove(s, at) else leave(s, id) end
    local answer = { h and 1 or 0, -1 }
    admit(s, answer)
    if not answer[3] then return answer[1] end
    if s.head then answer[2] = left(s) end
    s.informed = true
    return answer
  end,

  -- Claims a reservation. Answers 0 or the grant, and microseconds until something runs out, if others wait.
  c = function(s, id)
    admit(s)
    s.informed = true
    local h = holder(s, id)
    return { h and claim(s, h, 1) or 0, s.head and left(s) or -1 }
  end,

  -- Renews. Answers the time, or 0 where it is not held.
  n = function(s, id, ttl)
    local h = holder(s, id)
    if h and s.single then
      call('PEXPIRE', s.key, ttl)
      return now
    elseif h then
      h.state, h.expires, s.changed = 'c', now + ttl * 1000, true
    end
    admit(s)
    return h and now or 0
  end,

  -- Whether it is held: 1 or 0.
  h = function(s, id)
    admit(s)
    return holder(s, id) and 1 or 0
  end,

  -- Rotates. option: the new id; record: the process. Answers 0 or the grant.
  t = function(s, id, ttl, fresh, process)
    admit(s)
    local h = holder(s, fresh)
    if h then return granted(h, 0, 0) end
    h = holder(s, id)
    if not h then return 0 end
    local mode, _, _, owner, _, note = party(h.record)
    h.record = mode .. '\n' .. ttl .. '000\n' .. ARGV[1] .. '\n' .. owner .. '\n' .. process .. '\n' .. note
    h.id, h.state, h.expires, h.before, h.fence = fresh, 'c', now + ttl * 1000, s.fence, text(draw(1))
    s.fence, s.changed = h.fence, true
    return granted(h, 0, 1)
  end,

  -- Breaks. option: the fence of one, or empty. Answers microseconds and entry of each that it has ended.
  b = function(s, _, _, which)
    local broken = {}
    for at = #s.holders, 1, -1 do
      local h = s.holders[at]
      if which == '' or which == h.fence then
        broken[#broken + 1], broken[#broken + 2] = remaining(s, h), told(h)
        remove(s, at)
      end
    end
    admit(s)
    return broken
  end,

  -- Looks, and changes nothing. Answers the time, microseconds and entry of each holder, entries of waiters.
  i = function(s)
    local holders, waiters = {}, {}
    for i, h in ipairs(s.holders) do holders[2 * i - 1], holders[2 * i] = remaining(s, h), told(h) end
    for _, id in ipairs(call('LRANGE', s.q, 0, -1)) do
      local since, record = waiter(s, id)
      local _, _, client = party(record)
      if lives(client) then waiters[#waiters + 1] = 'w\n0\n0\n' .. since .. '\n' .. record end
    end
    return { now, holders, waiters }
  end,

  -- Says that the client lives, and hands on what ran out. option: ids of those who wait. Answers microseconds
  -- until something runs out, the letter of each (w waits, the state of one who holds, - unknown), and the time.
  p = function(s, _, _, ids)
    beat()
    admit(s)
    s.informed = true
    local states = {}
    for at = 1, #ids, 22 do
      local id = sub(ids, at, at + 21)
      local h = holder(s, id)
      states[#states + 1] = h and h.state or call('HEXISTS', s.d, id) == 1 and 'w' or '-'
    end
    return { left(s), table.concat(states), now }
  end,
}

for i = 1, members do
  if not answers[i] then
    local key, op, id, ttl, option, record = KEYS[i + 1], 'r', ARGV[i + 4], nil, nil, nil
    if i > releases + asks then
      local at = i * 5 - (releases + asks) * 4 + (asks > 0 and 2 or 0)
      op, id, ttl, option, record = unpack(ARGV, at, at + 4)
    elseif i > releases then
      local body = ARGV[i + 6]
      op, id, option = 'a', sub(body, 1, 22), sub(body, 23, 23)
      local asker = #body > 25 and sub(body, 26) or ARGV[releases + 5]
      local wants, owner, note = match(asker, '^(.\n%d+\n)([^\n]*)\n(.*)$')
      record = wants .. ARGV[1] .. '\n' .. owner .. '\n' .. ARGV[4] .. '\n' .. note
    end
    local fine, answer = pcall(function()
      local s = read(key)
      local reply = operations[op](s, id, ttl, option, record)
      if op ~= 'i' then write(s) end
      return reply
    end)
    if not fine then
      value[key] = nil
      answer = { '!', type(answer) == 'table' and answer.err or tostring(answer) }
    end
    answers[i] = answer
  end
end
return answers
