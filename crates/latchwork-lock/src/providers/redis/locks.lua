-- Every operation on locks, in one script, so that one message can carry many of them.
--
-- It says in Lua what rules.rs says in Rust; tests/redis.rs compares the two.
--
-- KEYS  1: the last fence; then the lock of each member of the message
-- ARGV  1: the client that asks; then five for each member: operation, id, ttl in milliseconds,
--          option, record
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

local KEYS, ARGV, call, sub, byte = KEYS, ARGV, redis.call, string.sub, string.byte
local STAR, EXCLUSIVE = 42, 120

local function clock()
  local time = call('TIME')
  return string.format('%s%06d', time[1], time[2])
end

-- The time and the newest fence, read and drawn on first use. Nothing else is made before it
-- is needed: every function of a script costs, each time it runs.
local now_text, newest, unsaved, others
local answers = {}
for i = 1, #KEYS - 1 do
  local at = i * 5 - 3
  local key, op, id, ttl = KEYS[i + 1], ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local option, record = ARGV[at + 3], ARGV[at + 4]
  local answer, v

  -- The short ways, which nearly every lease goes.
  if op == 'a' and (option == 'n' or option == 'w') and byte(record) == EXCLUSIVE then
    now_text = now_text or clock()
    -- The larger of the last fence + 1 and the clock: it grows even when the server forgot
    -- everything. As long as they are equally long, texts of digits compare like numbers.
    local fence = now_text
    if newest then
      newest, unsaved = newest + 1, true
    else
      newest = call('SET', KEYS[1], now_text, 'GET')
      if newest and (#newest > #now_text or #newest == #now_text and newest >= now_text) then
        newest, unsaved = newest + 1, true
      else
        newest = now_text
      end
    end
    if unsaved then fence = string.format('%.0f', newest) end
    local value = id .. '\nc\n' .. fence .. '\n0\n' .. now_text .. '\n' .. record
    if call('SET', key, value, 'PX', ttl, 'NX') then answer = fence end
  end
  if not answer then
    v = redis.pcall('GET', key)
    if type(v) == 'table' then
      answer = { '!', v.err } -- what is wrong with one lock does not concern the others
    elseif v and (op == 'r' or op == 'n') and sub(v, 1, 32) == id then
      if op == 'r' then call('DEL', key) else call('PEXPIRE', key, ttl) end
      answer = 1
    elseif op == 'r' and (not v or byte(v) ~= STAR) then
      answer = 0
    end
  end

  -- Everything else.
  if not answer then
    others = others or (function()
      -- In tables, since functions that share many variables take long to make.
      local f, s = nil, {}
      s.window = 2000000 -- how long a hand-off waits to be claimed
      s.alive = 6000 -- milliseconds that a client counts as alive after it was heard
      s.grace = 60000000 -- how long the full layout outlives all that is in it, at least

      f = {
        text = function(number) return string.format('%.0f', number) end,
        ms = function(micros) return f.text(math.ceil(micros / 1000)) end,

        fence = function()
          local last = newest or call('GET', KEYS[1])
          newest, unsaved = math.max(s.now, last and last + 1 or 0), true
          return f.text(newest)
        end,

        granted = function(fence, before, waited, began)
          return { 1, tonumber(fence), tonumber(before), waited, began }
        end,
        entry = function(state, fence, before, since, record)
          return state .. '\n' .. fence .. '\n' .. before .. '\n' .. since .. '\n' .. record
        end,
        -- state, fence, before, since, record
        read = function(e) return string.match(e, '^(.)\n(%d+)\n(%d+)\n(%d+)\n(.*)$') end,
        -- mode, ttl, client, owner, process, note
        party = function(record)
          return string.match(record, '^(.)\n(%d+)\n(%x+)\n([^\n]*)\n([^\n]*)\n(.*)$')
        end,
        get = function(id)
          local e = call('HGET', s.d, id)
          if e then return f.read(e) end
        end,

        -- Lets all of it outlive a moment.
        outlive = function(moment)
          if moment + s.grace <= s.garbage then return end
          s.garbage = moment + 2 * s.grace
          call('SET', s.k, '*' .. f.text(s.garbage))
          call('HSETNX', s.d, 'f', 0)
          for _, key in ipairs({ s.k, s.h, s.q, s.d }) do call('PEXPIREAT', key, f.ms(s.garbage)) end
        end,

        hold = function(id, expires, e)
          f.outlive(expires)
          call('ZADD', s.h, f.text(expires), id)
          call('PEXPIREAT', s.h, f.ms(s.garbage)) -- it may be new
          call('HSET', s.d, id, e)
        end,

        drop = function(id)
          call('ZREM', s.h, id)
          call('HDEL', s.d, id)
        end,

        -- Brings the key in hand into the full layout.
        spread = function(v)
          if v and byte(v) == STAR then
            s.garbage = tonumber(sub(v, 2))
            return
          end
          s.garbage = 0
          if v then
            local id, e = sub(v, 1, 32), sub(v, 34)
            f.hold(id, s.now + (call('PTTL', s.k) + 1) * 1000, e)
            local _, fence = f.read(e)
            call('HSET', s.d, 'f', fence)
          end
        end,

        settle = function()
          if call('EXISTS', s.h, s.q) == 0 then call('DEL', s.k, s.h, s.q, s.d) end
        end,

        soonest = function()
          local first = call('ZRANGE', s.h, 0, 0, 'WITHSCORES')
          return first[1], tonumber(first[2])
        end,

        -- Microseconds until something runs out; -1: nobody holds it.
        left = function()
          local _, expires = f.soonest()
          return expires and math.max(expires - s.now, 0) or -1
        end,

        expire = function()
          for _, id in ipairs(call('ZRANGEBYSCORE', s.h, '-inf', s.now_text)) do f.drop(id) end
        end,

        admits = function(mode)
          local first = f.soonest()
          if not first then return true end
          if mode == 'x' then return false end
          local _, _, _, _, record = f.get(first)
          return byte(record) ~= byte('x')
        end,

        -- The holder with this owner, and how many hold.
        owned_by = function(owner)
          local ids, own = call('ZRANGE', s.h, 0, -1), nil
          for _, id in ipairs(ids) do
            local _, _, _, _, record = f.get(id)
            local _, _, _, name = f.party(record)
            if name == owner then own = id end
          end
          return own, #ids
        end,

        grant = function(id, record, state)
          local _, ttl, _, owner = f.party(record)
          -- Two requests of one owner may have waited together: one lease per owner and key.
          local own = owner ~= '' and f.owned_by(owner)
          if own then f.drop(own) end
          local before, new = call('HGET', s.d, 'f') or '0', f.fence()
          local lasts = tonumber(ttl)
          if state == 'r' then lasts = math.min(lasts, s.window) end
          f.hold(id, s.now + lasts, f.entry(state, new, before, s.now_text, record))
          call('HSET', s.d, 'f', new)
          return new, before
        end,

        lives = function(client)
          return client == ARGV[1] or call('EXISTS', 'latchwork:a:' .. client) == 1
        end,

        -- Tells the next in line when something ahead of it runs out; `but` knows already.
        tell = function(but)
          local id = call('LINDEX', s.q, 0)
          if not id then return end
          local _, _, _, _, record = f.get(id)
          local _, _, client = f.party(record)
          if client ~= but then
            call('PUBLISH', 'latchwork:c:' .. client, id .. f.text(f.left()))
          end
        end,

        -- Hands the key to those whose turn it is, as reservations that wait to be claimed.
        admit = function()
          local told
          while true do
            local id = call('LINDEX', s.q, 0)
            if not id then break end
            local _, _, _, _, record = f.get(id)
            local mode, _, client = f.party(record)
            if not f.lives(client) then
              call('LPOP', s.q)
              call('HDEL', s.d, id)
            elseif f.admits(mode) then
              call('LPOP', s.q)
              if s.given and client == ARGV[1] then
                -- Its process has just spoken, and reads the answer: it need not be asked to claim.
                local new, before = f.grant(id, record, 'c')
                s.given[#s.given + 1] = id
                s.given[#s.given + 1] = new
                s.given[#s.given + 1] = before
              else
                f.grant(id, record, 'r')
                call('PUBLISH', 'latchwork:c:' .. client, id)
              end
              told = client
            else
              f.outlive(s.now)
              break
            end
          end
          if told then f.tell(told) end
        end,

        leave = function(id)
          call('LREM', s.q, 1, id)
          call('HDEL', s.d, id)
        end,

        claim = function(id, fence, before, since, record)
          local _, ttl = f.party(record)
          f.hold(id, s.now + tonumber(ttl), f.entry('c', fence, before, since, record))
          return f.granted(fence, before, 1, 1)
        end,

        beat = function() call('SET', 'latchwork:a:' .. ARGV[1], 1, 'PX', s.alive) end,

        -- One who refuses: how long it will, and its entry.
        refusal = function()
          local id = f.soonest()
          if not id then return { 0 } end
          return { 0, f.left(), call('HGET', s.d, id) }
        end,

        -- option: n does not wait, w waits, a waits and has waited before, l asks a last time.
        ask = function(v, id, option, record)
          local waits = option == 'w' or option == 'a'
          local mode, _, _, owner = f.party(record)
          if v and byte(v) ~= STAR then
            local _, fence, before, _, theirs = f.read(sub(v, 34))
            if sub(v, 1, 32) == id then return f.granted(fence, before, 0, 0) end
            local _, _, _, name = f.party(theirs)
            if not waits and (owner == '' or owner ~= name) then
              return { 0, call('PTTL', s.k) * 1000, sub(v, 34) }
            end
          end
          f.spread(v)
          f.expire()
          f.admit() -- whoever asks a last time may be next
          local state, fence, before, since, known = f.get(id)
          if state == 'c' then return f.granted(fence, before, 0, 0) end
          if state == 'r' then return f.claim(id, fence, before, since, known) end
          if state == 'w' then
            if waits then
              f.beat()
              return { 2, f.left() }
            end
            f.leave(id)
            f.admit()
            return f.refusal()
          end
          -- Its time was over, and others went on: to let it in now would be out of turn.
          if option == 'l' then return f.refusal() end
          if owner ~= '' then
            local own, count = f.owned_by(owner)
            if own then
              if mode == 'x' and count > 1 then return f.refusal() end -- an upgrade never waits
              f.drop(own)
              local new, last = f.grant(id, record, 'c')
              return f.granted(new, last, 0, 1)
            end
          end
          if call('EXISTS', s.q) == 0 and f.admits(mode) then
            local new, last = f.grant(id, record, 'c')
            return f.granted(new, last, 0, 1)
          end
          if not waits then return f.refusal() end
          f.outlive(s.now)
          call('RPUSH', s.q, id)
          call('PEXPIREAT', s.q, f.ms(s.garbage))
          call('HSET', s.d, id, f.entry('w', '0', '0', s.now_text, record))
          f.beat()
          return { 2, f.left() }
        end,

        rotate = function(id, ttl, fresh, process)
          local state, known, before = f.get(fresh)
          if state then return f.granted(known, before, 0, 0) end
          local _, since, record
          state, _, _, since, record = f.get(id)
          if not state or state == 'w' then return 0 end
          local mode, _, _, owner, _, note = f.party(record)
          local new, last = f.fence(), call('HGET', s.d, 'f')
          f.drop(id)
          record = mode .. '\n' .. ttl .. '000\n' .. ARGV[1] .. '\n' .. owner .. '\n' .. process .. '\n' .. note
          f.hold(fresh, s.now + ttl * 1000, f.entry('c', new, last, since, record))
          call('HSET', s.d, 'f', new)
          return f.granted(new, last, 0, 1)
        end,

        break_lock = function(which)
          local broken = {}
          for _, id in ipairs(call('ZRANGE', s.h, 0, -1)) do
            local _, fence = f.get(id)
            if which == '' or which == fence then
              broken[#broken + 1] = tonumber(call('ZSCORE', s.h, id)) - s.now
              broken[#broken + 1] = call('HGET', s.d, id)
              f.drop(id)
            end
          end
          return broken
        end,

        inspect = function(v)
          local holders, waiters = {}, {}
          if v and byte(v) ~= STAR then
            holders = { call('PTTL', s.k) * 1000, sub(v, 34) }
          elseif v then
            local found = call('ZRANGEBYSCORE', s.h, '(' .. s.now_text, '+inf', 'WITHSCORES')
            for i = 1, #found, 2 do
              holders[i] = tonumber(found[i + 1]) - s.now
              holders[i + 1] = call('HGET', s.d, found[i])
            end
            for _, id in ipairs(call('LRANGE', s.q, 0, -1)) do
              local e = call('HGET', s.d, id)
              local _, _, _, _, record = f.read(e)
              local _, _, client = f.party(record)
              if f.lives(client) then waiters[#waiters + 1] = e end
            end
          end
          return { s.now, holders, waiters }
        end,

        -- How some who wait stand, as the letters of their states; - for who is unknown.
        standing = function(ids)
          local states = {}
          for at = 1, #ids, 32 do
            states[#states + 1] = f.get(sub(ids, at, at + 31)) or '-'
          end
          return table.concat(states)
        end,

        operate = function(op, v, id, ttl, option, record)
          if op == 'i' then return f.inspect(v) end
          if op == 'a' then return f.ask(v, id, option, record) end
          if op == 'p' then f.beat() end
          if not v then
            if op == 'b' then return {} end
            if op == 'c' then return { 0, -1 } end
            if op == 'p' then return { -1, (string.gsub(option, string.rep('.', 32), '-')) } end
            return 0
          end
          if op == 'n' and byte(v) ~= STAR then return 0 end -- somebody else's
          f.spread(v)
          f.expire()
          if op == 'r' then
            local state = f.get(id)
            if state == 'w' then f.leave(id) elseif state then f.drop(id) end
            s.given = { (state == 'r' or state == 'c') and 1 or 0, -1 }
            f.admit()
            local answer = s.given
            if #answer == 2 then return answer[1] end
            answer[2] = call('EXISTS', s.q) == 1 and f.left() or -1
            return answer
          elseif op == 'c' then
            f.admit()
            local state, fence, before, since, known = f.get(id)
            local answer = 0
            if state == 'r' then answer = f.claim(id, fence, before, since, known) end
            if state == 'c' then answer = f.granted(fence, before, 1, 0) end
            return { answer, call('EXISTS', s.q) == 1 and f.left() or -1 }
          elseif op == 'n' then
            local state, fence, before, since, known = f.get(id)
            local held = state == 'r' or state == 'c'
            if held then
              local ahead = f.left()
              f.hold(id, s.now + ttl * 1000, f.entry('c', fence, before, since, known))
              if f.left() < ahead then f.tell() end
            end
            f.admit()
            return held and 1 or 0
          elseif op == 'h' then
            local state = f.get(id)
            f.admit()
            return (state == 'r' or state == 'c') and 1 or 0
          elseif op == 't' then
            local answer = f.rotate(id, ttl, option, record)
            f.admit()
            return answer
          elseif op == 'b' then
            local broken = f.break_lock(option)
            f.admit()
            return broken
          elseif op == 'p' then
            f.admit()
            return { f.left(), f.standing(option) }
          end
          return redis.error_reply('unknown operation ' .. op)
        end,
      }

      return function(op, key, v, id, ttl, option, record)
        if not s.now then
          s.now_text = now_text or clock()
          now_text, s.now = s.now_text, tonumber(s.now_text)
        end
        local name = sub(key, 13)
        s.k, s.h, s.q, s.d = key, 'latchwork:h:' .. name, 'latchwork:q:' .. name, 'latchwork:d:' .. name
        s.garbage, s.given = nil, nil
        local answer = f.operate(op, v, id, ttl, option, record)
        if s.garbage then f.settle() end
        return answer
      end
    end)()
    local fine
    fine, answer = pcall(others, op, key, v, id, ttl, option, record)
    if not fine then
      answer = { '!', type(answer) == 'table' and answer.err or tostring(answer) }
    end
  end
  answers[i] = answer
end
if unsaved then call('SET', KEYS[1], string.format('%.0f', newest)) end
return answers
