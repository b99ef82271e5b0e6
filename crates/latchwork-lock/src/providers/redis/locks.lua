-- Every operation on locks, in one script, so that one message can carry many of them.
--
-- It says in Lua what rules.rs says in Rust; tests/redis.rs compares the two.
--
-- KEYS  1: the last fence; then the lock of each member of the message
-- ARGV  1: the client that asks; then five for each member: operation, id, ttl, option, record
--
-- A lock is in one of two layouts:
--   lean  `latchwork:k:NAME` is `ID \n ENTRY`, with the lease's own ttl: one exclusive holder and
--         nobody who waits. Nearly all leases begin and end here.
--   full  `latchwork:k:NAME` is `*MOMENT`, so that nobody can set it past the queue, and beside it
--         `latchwork:h:NAME`  holders: ids, scored by when each of them runs out
--         `latchwork:q:NAME`  who waits: ids, first come first
--         `latchwork:d:NAME`  the ENTRY of every id, and under `f` the last fence of the key
--         All four go away by themselves some time after MOMENT, which is moved on in time.
-- ENTRY   state \n fence \n fence before \n since \n RECORD; state: w waits, r reserved, c claimed
-- RECORD  mode \n ttl \n client \n owner \n process \n note; mode: x exclusive, s shared
-- None of these parts can hold a line feed: control characters are refused before. Times are
-- microseconds of the server's clock, and below 2^53, so that a Lua number holds them.
--
-- A client that waits keeps `latchwork:a:CLIENT` alive and listens on `latchwork:c:CLIENT`.
--
-- The names beside KEYS are made here, which only a cluster would mind; that is refused before.

local call, sub, byte, match = redis.call, string.sub, string.byte, string.match
local STAR = 42
local WINDOW = 2000000 -- how long a hand-off waits to be claimed
local ALIVE = 6000 -- milliseconds that a client counts as alive after it was heard
local GRACE = 60000000 -- how long the full layout outlives all that is in it, at least

local function text(number) return string.format('%.0f', number) end
local function ms(micros) return text(math.ceil(micros / 1000)) end

-- Read on first use: most releases need no time.
local now, now_text
local function tick()
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
    now_text = text(now)
  end
end

-- The larger of the last fence + 1 and the clock: it grows even when the server forgot everything.
local newest
local function fence()
  if newest then
    newest = newest + 1
  else
    local last = call('SET', KEYS[1], now_text, 'GET')
    newest = math.max(now, last and tonumber(last) + 1 or 0)
  end
  return text(newest)
end

local function granted(fence, before, waited, began)
  return { 1, tonumber(fence), tonumber(before), waited, began }
end

-- Everything but the short ways; made on first use.
local function rest()
  local k, h, q, d, garbage

  local function entry(state, fence, before, since, record)
    return state .. '\n' .. fence .. '\n' .. before .. '\n' .. since .. '\n' .. record
  end
  -- state, fence, before, since, record
  local function read(e) return match(e, '^(.)\n(%d+)\n(%d+)\n(%d+)\n(.*)$') end
  -- mode, ttl, client, owner, process, note
  local function party(record)
    return match(record, '^(.)\n(%d+)\n(%x+)\n([^\n]*)\n([^\n]*)\n(.*)$')
  end
  local function get(id)
    local e = call('HGET', d, id)
    if e then return read(e) end
  end

  -- Lets all of it outlive a moment.
  local function outlive(moment)
    if moment + GRACE <= garbage then return end
    garbage = moment + 2 * GRACE
    call('SET', k, '*' .. text(garbage))
    call('HSETNX', d, 'f', 0)
    for _, key in ipairs({ k, h, q, d }) do call('PEXPIREAT', key, ms(garbage)) end
  end

  local function hold(id, expires, e)
    outlive(expires)
    call('ZADD', h, text(expires), id)
    call('PEXPIREAT', h, ms(garbage)) -- it may be new
    call('HSET', d, id, e)
  end

  local function drop(id)
    call('ZREM', h, id)
    call('HDEL', d, id)
  end

  -- Brings the key in hand into the full layout.
  local function spread(v)
    if v and byte(v) == STAR then
      garbage = tonumber(sub(v, 2))
      return
    end
    garbage = 0
    if v then
      local id, e = sub(v, 1, 32), sub(v, 34)
      hold(id, now + (call('PTTL', k) + 1) * 1000, e)
      local _, fence = read(e)
      call('HSET', d, 'f', fence)
    end
  end

  local function settle()
    if call('EXISTS', h, q) == 0 then call('DEL', k, h, q, d) end
  end

  local function soonest()
    local first = call('ZRANGE', h, 0, 0, 'WITHSCORES')
    return first[1], tonumber(first[2])
  end

  -- Microseconds until something runs out; -1: nobody holds it.
  local function left()
    local _, expires = soonest()
    return expires and math.max(expires - now, 0) or -1
  end

  local function expire()
    for _, id in ipairs(call('ZRANGEBYSCORE', h, '-inf', now_text)) do drop(id) end
  end

  local function admits(mode)
    local first = soonest()
    if not first then return true end
    if mode == 'x' then return false end
    local _, _, _, _, record = get(first)
    return byte(record) ~= byte('x')
  end

  -- The holder with this owner, and how many hold.
  local function owned_by(owner)
    local ids, own = call('ZRANGE', h, 0, -1), nil
    for _, id in ipairs(ids) do
      local _, _, _, _, record = get(id)
      local _, _, _, name = party(record)
      if name == owner then own = id end
    end
    return own, #ids
  end

  local function grant(id, record, state)
    local _, ttl, _, owner = party(record)
    -- Two requests of one owner may have waited together: one lease per owner and key.
    local own = owner ~= '' and owned_by(owner)
    if own then drop(own) end
    local before, new = call('HGET', d, 'f') or '0', fence()
    local lasts = tonumber(ttl)
    if state == 'r' then lasts = math.min(lasts, WINDOW) end
    hold(id, now + lasts, entry(state, new, before, now_text, record))
    call('HSET', d, 'f', new)
    return new, before
  end

  local function lives(client)
    return client == ARGV[1] or call('EXISTS', 'latchwork:a:' .. client) == 1
  end

  -- Tells the next in line when something ahead of it runs out; `but` knows already.
  local function tell(but)
    local id = call('LINDEX', q, 0)
    if not id then return end
    local _, _, _, _, record = get(id)
    local _, _, client = party(record)
    if client ~= but then
      call('PUBLISH', 'latchwork:c:' .. client, id .. text(left()))
    end
  end

  -- Hands the key to those whose turn it is, as reservations that wait to be claimed.
  local function admit()
    local told
    while true do
      local id = call('LINDEX', q, 0)
      if not id then break end
      local _, _, _, _, record = get(id)
      local mode, _, client = party(record)
      if not lives(client) then
        call('LPOP', q)
        call('HDEL', d, id)
      elseif admits(mode) then
        call('LPOP', q)
        grant(id, record, 'r')
        call('PUBLISH', 'latchwork:c:' .. client, id)
        told = client
      else
        outlive(now)
        break
      end
    end
    if told then tell(told) end
  end

  local function leave(id)
    call('LREM', q, 1, id)
    call('HDEL', d, id)
  end

  local function claim(id, fence, before, since, record)
    local _, ttl = party(record)
    hold(id, now + tonumber(ttl), entry('c', fence, before, since, record))
    return granted(fence, before, 1, 1)
  end

  local function beat() call('SET', 'latchwork:a:' .. ARGV[1], 1, 'PX', ALIVE) end

  -- One who refuses: how long it will, and its entry.
  local function refusal()
    local id = soonest()
    if not id then return { 0 } end
    return { 0, left(), call('HGET', d, id) }
  end

  -- option: n does not wait, w waits, a waits and has waited before, l asks a last time.
  local function ask(v, id, option, record)
    local waits = option == 'w' or option == 'a'
    local mode, _, _, owner = party(record)
    if v and byte(v) ~= STAR then
      local _, fence, before, _, theirs = read(sub(v, 34))
      if sub(v, 1, 32) == id then return granted(fence, before, 0, 0) end
      local _, _, _, name = party(theirs)
      if not waits and (owner == '' or owner ~= name) then
        return { 0, call('PTTL', k) * 1000, sub(v, 34) }
      end
    end
    spread(v)
    expire()
    admit() -- whoever asks a last time may be next
    local state, fence, before, since, known = get(id)
    if state == 'c' then return granted(fence, before, 0, 0) end
    if state == 'r' then return claim(id, fence, before, since, known) end
    if state == 'w' then
      if waits then
        beat()
        return { 2, left() }
      end
      leave(id)
      admit()
      return refusal()
    end
    -- Its time was over, and others went on: to let it in now would be out of turn.
    if option == 'l' then return refusal() end
    if owner ~= '' then
      local own, count = owned_by(owner)
      if own then
        if mode == 'x' and count > 1 then return refusal() end -- an upgrade never waits
        drop(own)
        local new, last = grant(id, record, 'c')
        return granted(new, last, 0, 1)
      end
    end
    if call('EXISTS', q) == 0 and admits(mode) then
      local new, last = grant(id, record, 'c')
      return granted(new, last, 0, 1)
    end
    if not waits then return refusal() end
    outlive(now)
    call('RPUSH', q, id)
    call('PEXPIREAT', q, ms(garbage))
    call('HSET', d, id, entry('w', '0', '0', now_text, record))
    beat()
    return { 2, left() }
  end

  local function rotate(id, ttl, fresh, process)
    local state, known, before = get(fresh)
    if state then return granted(known, before, 0, 0) end
    local _, since, record
    state, _, _, since, record = get(id)
    if not state or state == 'w' then return 0 end
    local mode, _, _, owner, _, note = party(record)
    local new, last = fence(), call('HGET', d, 'f')
    drop(id)
    record = mode .. '\n' .. ttl .. '\n' .. ARGV[1] .. '\n' .. owner .. '\n' .. process .. '\n' .. note
    hold(fresh, now + tonumber(ttl), entry('c', new, last, since, record))
    call('HSET', d, 'f', new)
    return granted(new, last, 0, 1)
  end

  local function break_lock(which)
    local broken = {}
    for _, id in ipairs(call('ZRANGE', h, 0, -1)) do
      local _, fence = get(id)
      if which == '' or which == fence then
        broken[#broken + 1] = tonumber(call('ZSCORE', h, id)) - now
        broken[#broken + 1] = call('HGET', d, id)
        drop(id)
      end
    end
    return broken
  end

  local function inspect(v)
    local holders, waiters = {}, {}
    if v and byte(v) ~= STAR then
      holders = { call('PTTL', k) * 1000, sub(v, 34) }
    elseif v then
      local found = call('ZRANGEBYSCORE', h, '(' .. now_text, '+inf', 'WITHSCORES')
      for i = 1, #found, 2 do
        holders[i] = tonumber(found[i + 1]) - now
        holders[i + 1] = call('HGET', d, found[i])
      end
      for _, id in ipairs(call('LRANGE', q, 0, -1)) do
        local e = call('HGET', d, id)
        local _, _, _, _, record = read(e)
        local _, _, client = party(record)
        if lives(client) then waiters[#waiters + 1] = e end
      end
    end
    return { now, holders, waiters }
  end

  -- How some who wait stand, as the letters of their states; - for who is unknown.
  local function standing(ids)
    local states = {}
    for at = 1, #ids, 32 do
      states[#states + 1] = get(sub(ids, at, at + 31)) or '-'
    end
    return table.concat(states)
  end

  local function operate(op, v, id, ttl, option, record)
    if op == 'i' then return inspect(v) end
    if op == 'a' then return ask(v, id, option, record) end
    if op == 'p' then beat() end
    if not v then
      if op == 'b' then return {} end
      if op == 'c' then return { 0, -1 } end
      if op == 'p' then return { -1, (string.gsub(option, string.rep('.', 32), '-')) } end
      return 0
    end
    if (op == 'r' or op == 'n') and byte(v) ~= STAR then return 0 end -- somebody else's
    spread(v)
    expire()
    if op == 'r' then
      local state = get(id)
      if state == 'w' then leave(id) elseif state then drop(id) end
      admit()
      return (state == 'r' or state == 'c') and 1 or 0
    elseif op == 'c' then
      admit()
      local state, fence, before, since, known = get(id)
      local answer = 0
      if state == 'r' then answer = claim(id, fence, before, since, known) end
      if state == 'c' then answer = granted(fence, before, 1, 0) end
      return { answer, call('EXISTS', q) == 1 and left() or -1 }
    elseif op == 'n' then
      local state, fence, before, since, known = get(id)
      local held = state == 'r' or state == 'c'
      if held then
        local ahead = left()
        hold(id, now + tonumber(ttl), entry('c', fence, before, since, known))
        if left() < ahead then tell() end
      end
      admit()
      return held and 1 or 0
    elseif op == 'h' then
      local state = get(id)
      admit()
      return (state == 'r' or state == 'c') and 1 or 0
    elseif op == 't' then
      local answer = rotate(id, ttl, option, record)
      admit()
      return answer
    elseif op == 'b' then
      local broken = break_lock(option)
      admit()
      return broken
    elseif op == 'p' then
      admit()
      return { left(), standing(option) }
    end
    return redis.error_reply('unknown operation ' .. op)
  end

  return function(op, key, v, id, ttl, option, record)
    tick()
    local name = sub(key, 13)
    k, h, q, d = key, 'latchwork:h:' .. name, 'latchwork:q:' .. name, 'latchwork:d:' .. name
    garbage = nil
    local answer = operate(op, v, id, ttl, option, record)
    if garbage then settle() end
    return answer
  end
end

local others
local function member(i)
  local at = i * 5 - 3
  local key, op, id, ttl = KEYS[i + 1], ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local option, record = ARGV[at + 3], ARGV[at + 4]
  -- The short ways, which nearly every lease goes.
  if op == 'a' and (option == 'n' or option == 'w') and byte(record) == 120 then
    tick()
    local e = '\nc\n' .. fence() .. '\n0\n' .. now_text .. '\n' .. record
    if call('SET', key, id .. e, 'PX', ms(ttl), 'NX') then return newest end
  end
  local v = call('GET', key)
  if v and (op == 'r' or op == 'n') and sub(v, 1, 32) == id then
    if op == 'r' then call('DEL', key) else call('PEXPIRE', key, ms(ttl)) end
    return 1
  end
  others = others or rest()
  return others(op, key, v, id, ttl, option, record)
end

local answers = {}
for i = 1, #KEYS - 1 do
  -- What is wrong with one lock is no reason to leave the others without an answer.
  local fine, answer = pcall(member, i)
  if not fine then answer = { '!', type(answer) == 'table' and answer.err or tostring(answer) } end
  answers[i] = answer
end
if newest and newest ~= now then call('SET', KEYS[1], text(newest)) end
return answers
