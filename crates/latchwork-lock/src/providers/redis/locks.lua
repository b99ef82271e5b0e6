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
-- Answers  1: a mark for each member: 0 no, 1 yes, + granted, - see below; 2: the fence of place 00;
--          then the answers of those marked -. One who stands in the queue is answered 2, the microseconds
--          until something ahead runs out, and when it queued; if that was just now, and it wants the key alone
--          and names no owner, also the id right ahead, in the queue or of a lone holder, and its fence.
--
-- An ID has 22 characters, of base64: the server hashes every byte that a script gets to see, and it sees
-- each of them four times while a lease lasts.
--
-- A lock is in one of three layouts:
--   lean  `latchwork:k:NAME` is `ID HOW PLACE ASKER \n FIRST \n SINCE \n PROCESS`, with the lease's own ttl: one
--         exclusive holder and nobody who waits; its fence is the sum of FIRST and PLACE, and SINCE is
--         empty where it is FIRST. Nearly all leases begin and end here.
--   full  `latchwork:k:NAME` is `*MOMENT`, so that nobody can set it past the queue, and beside it
--         `latchwork:h:NAME`  holders: ids, scored by when each of them runs out
--         `latchwork:q:NAME`  who waits: ids, first come first
--         `latchwork:d:NAME`  the ENTRY of every id, and under `f` the last fence of the key
--         All four go away by themselves some time after MOMENT, which is moved on in time.
--   lone  as full, but with one exclusive holder, which is neither in `h` nor in `d`: `latchwork:k:NAME` is
--         `* ID STATE MOMENT \n BEGAN \n LASTS \n FENCE \n …` without blanks, and on as in an ENTRY. It runs
--         out at the sum of BEGAN and LASTS, and its fence is the last one of the key. What is handed from
--         one writer to the next stays here; all else makes it full, and lone again.
-- ENTRY   state \n fence \n fence before \n since \n RECORD; state: w waits, r reserved, c claimed.
--         Whoever queues draws its fence then, so that its process can know it before its turn comes
--         (relay.rs). It is the one that it gets, unless somebody has had a higher one by then: after that
--         they are counted on by one, until those come who have drawn later. 0: drawn by an older script.
-- RECORD  mode \n ttl \n client \n owner \n process \n note; mode: x exclusive, s shared
-- ASKER   mode \n ttl \n owner \n note: the record of one who need not be told anything
-- None of these parts can hold a line feed: control characters are refused before. Times are
-- microseconds of the server's clock, and below 2^53, so that a Lua number holds them.
--
-- A client that waits keeps `latchwork:a:CLIENT` alive and listens on `latchwork:c:CLIENT`. There it
-- is told `ID:STAY:FENCE:BEFORE` of a turn to claim, where STAY is when that one queued, and
-- `ID MICROSECONDS`, without a blank, of when something ahead of one who waits runs out.
--
-- The names beside KEYS are made here, which only a cluster would mind; that is refused before.

local KEYS, ARGV, try, sub, byte = KEYS, ARGV, pcall, string.sub, string.byte
-- What is wrong with one lock, such as somebody else's data under its names, does not concern the
-- others of the message: where it may be met first, it is an answer and not the end of the script.
local call, pcall = redis.call, redis.pcall
local find, match, format = string.find, string.match, string.format
local STAR, EXCLUSIVE, ONCE, BEHIND = 42, 120, 110, 113
local ALIVE = 6000 -- milliseconds that a client counts as alive after it was heard
local WINDOW = 2000000 -- how long a hand-off waits to be claimed
local GRACE = 60000000 -- how long the full layout outlives all that is in it, at least

local releases, asks, members = ARGV[2] + 0, ARGV[3] + 0, #KEYS - 1
local marks, values, answered = {}, {}, 0

-- Leases that end as they began: they are looked at and deleted together.
if releases > 0 then
  values = call('MGET', unpack(KEYS, 2, releases + 1))
  local count = 0
  for i = 1, releases do
    local v = values[i]
    if v and find(v, ARGV[i + 4], 1, true) == 1 then
      count = count + 1
      marks[i] = '1'
    elseif not v or byte(v) ~= STAR then
      answered, marks[i] = answered + 1, '0'
    end
  end
  answered = answered + count
  local over, first, last = KEYS, 2, releases + 1
  if count < releases then
    over, first, last = {}, 1, 0
    for i = 1, releases do
      if marks[i] == '1' then
        last = last + 1
        over[last] = KEYS[i + 1]
      end
    end
  end
  if count > 0 and call('DEL', unpack(over, first, last)) < count then
    -- Somebody asked twice: a lease ends once.
    local seen = {}
    for i = 1, releases do
      if marks[i] == '1' then
        local key = KEYS[i + 1]
        if seen[key] then marks[i] = '0' end
        seen[key] = true
      end
    end
  end
end
if answered == members then return { table.concat(marks) } end

-- Nothing is made before it is needed: every function of a script costs, each time it runs.
local time = call('TIME')
local now_text = format('%s%06d', time[1], time[2])
local now, newest, unsaved, beaten, others = now_text + 0, nil, nil, nil, nil
local answers = { '', 0 }

-- Leases that begin alone, on a free key. They have fences in a row, told by one end and the
-- place of each.
if asks > 0 then
  local asker, ttl, first, rest, passed = ARGV[releases + 5], ARGV[releases + 6], nil, nil, nil
  local same, mode = nil, byte(asker)
  for i = releases + 1, releases + asks do
    local key, body = KEYS[i + 1], ARGV[i + 6]
    local how, _, _, own = byte(body, 23, 26)
    if how == BEHIND then values[i] = pcall('GET', key) end
    -- Nobody gets past another one of the same message.
    if values[i] or (own or mode) ~= EXCLUSIVE or passed and passed[key] then
      passed = passed or {}
      passed[key] = true
    else
      if not first then
        -- The larger of the last fence + 1 and the clock: it grows even when the server forgot
        -- everything.
        first, newest, rest = now, now + asks - 1, now_text
        local text = asks == 1 and now_text or format('%.0f', newest)
        local last = call('SET', KEYS[1], text, 'GET')
        if last and last + 0 >= now then
          first, newest, unsaved = last + 1, last + asks, true
          rest = format('%.0f', first)
        end
        rest = '\n' .. rest .. '\n' .. (first == now and '' or now_text) .. '\n' .. ARGV[4]
        same, answers[2] = asker .. rest, first
      end
      local set
      if own then
        set = call('SET', key, body .. rest, 'PX', match(body, '^.\n(%d+)000\n', 26), 'NX')
      else
        set = call('SET', key, body .. same, 'PX', ttl, 'NX')
      end
      if set then
        answered, marks[i] = answered + 1, '+'
      end
    end
  end
  if answered == members then
    if unsaved then call('SET', KEYS[1], format('%.0f', newest)) end
    answers[1] = table.concat(marks)
    return answers
  end
end

-- What the members before have left of a lock; false where it must be read again.
local left_as
-- Who was the last one of this message to queue for it.
local last_in
for i = 1, members do
  if not marks[i] then
    local answer
    local key, v = KEYS[i + 1], values[i]
    left_as = left_as or {}
    if left_as[key] ~= nil then v = left_as[key] or pcall('GET', key) end
    left_as[key] = false
    local op, id, ttl, option, record
    if i <= releases then
      op, id = 'r', ARGV[i + 4]
      if v and sub(v, 2, 23) == id then
        -- To the next, if it wants the key alone and names no owner, as nearly all do. A process that has
        -- handed it on by itself tells so of several in a row. What is not as expected is left to the general
        -- way.
        local name = sub(key, 13)
        local d, q = 'latchwork:d:' .. name, 'latchwork:q:' .. name
        local moment, began, lasted, before = match(v, '^%l(%d+)\n(%d+)\n(%d+)\n(%d+)\n', 24)
        local last = i
        while last < releases and KEYS[last + 2] == key do last = last + 1 end
        local line = moment and began + lasted > now and pcall('LRANGE', q, 0, last - i + 1)
        if line and line[1] then
          local waiting = pcall('HMGET', d, unpack(line))
          local count = 0
          repeat
            local next_id, behind = line[count + 1], line[count + 2]
            local fence, stay, said, lasts, client =
              match(waiting[count + 1] or '', '^w\n([1-9]%d*)\n0\n(%d+)\n(x\n(%d+)\n(%x+)\n\n.*)$')
            local own = client == ARGV[1] -- reads the answer: it need not be asked to claim
            if
              not client
              or now + lasts + GRACE > moment + 0
              or not own and call('EXISTS', 'latchwork:a:' .. client) == 0
            then
              break
            end
            if fence + 0 <= before + 0 then
              -- Somebody has had a higher one since it was drawn.
              local known = newest or call('GET', KEYS[1]) or 0
              newest, unsaved = math.max(known + 0, before + 1), true
              fence = format('%.0f', before + 1)
            end
            if not own and lasts + 0 > WINDOW then lasts = format('%.0f', WINDOW) end
            local begins = moment .. '\n' .. now_text .. '\n' .. lasts .. '\n' .. fence .. '\n' .. before
            v = '*' .. next_id .. (own and 'c' or 'r') .. begins .. '\n' .. now_text .. '\n' .. said
            if not own then
              call('PUBLISH', 'latchwork:c:' .. client, next_id .. ':' .. stay .. ':' .. fence .. ':' .. before)
            end
            -- Who stands behind must know when something ahead of it runs out.
            local other = behind and match(waiting[count + 2] or '', '^w\n%d+\n0\n%d+\n.\n%d+\n(%x+)') or client
            if other ~= client then call('PUBLISH', 'latchwork:c:' .. other, behind .. lasts) end
            if own then
              marks[i + count], answers[#answers + 1] = '-', { 1, lasts + 0, next_id, fence, before }
            else
              marks[i + count] = '1'
            end
            count, before = count + 1, fence
          until not own or i + count > last or ARGV[i + count + 4] ~= next_id
          if count > 0 then
            call('LPOP', q, count)
            call('HDEL', d, unpack(line, 1, count))
            call('SET', key, v, 'KEEPTTL')
            left_as[key] = v
          end
        elseif line and not line.err then
          call('DEL', key, d)
          answer = 1
        end
      end
    elseif i <= releases + asks then
      local body = ARGV[i + 6]
      op, v = 'a', v or pcall('GET', key)
      id, option = sub(body, 1, 22), sub(body, 23, 23)
      local asker = #body > 25 and sub(body, 26) or ARGV[releases + 5]
      local wants, owner, note = match(asker, '^(.\n%d+\n)([^\n]*)\n(.*)$')
      record = wants .. ARGV[1] .. '\n' .. owner .. '\n' .. ARGV[4] .. '\n' .. note
      -- Behind somebody who holds, one who wants it alone and names no owner can but wait.
      if
        type(v) == 'string'
        and byte(v) == STAR
        and option ~= 'n'
        and sub(v, 2, 23) ~= id
        and find(record, '^x\n%d+\n%x+\n\n')
      then
        local name = sub(key, 13)
        local d, q = 'latchwork:d:' .. name, 'latchwork:q:' .. name
        local moment, began, lasts = match(v, '^(%d+)\n(%d+)\n(%d+)\n', 25)
        local ahead = moment and began + lasts - now
        if not moment then
          local soonest = pcall('ZRANGE', 'latchwork:h:' .. name, 0, 0, 'WITHSCORES')[2]
          moment, ahead = sub(v, 2), soonest and soonest - now
        end
        local fence
        if ahead and ahead > 0 and now + GRACE <= (tonumber(moment) or 0) then
          local last = newest or call('SET', KEYS[1], now_text, 'GET')
          newest = now
          if last and last + 0 >= now then
            newest, unsaved = last + 1, true
          end
          fence = format('%.0f', newest)
        end
        if fence and pcall('HSETNX', d, id, 'w\n' .. fence .. '\n0\n' .. now_text .. '\n' .. record) == 1 then
          local length = pcall('RPUSH', q, id)
          if type(length) == 'table' then
            call('HDEL', d, id)
            answer = { '!', length.err }
          else
            if length == 1 then
              local over = format('%.0f', math.ceil(moment / 1000))
              call('PEXPIREAT', q, over)
              call('PEXPIREAT', d, over)
            end
            -- Whoever waits already has the process look, and say that it lives, once a second.
            if not beaten and option ~= 'q' then
              call('SET', 'latchwork:a:' .. ARGV[1], 1, 'PX', ALIVE)
              beaten = true
            end
            local before = last_in and last_in[key]
            if not before then
              before = length > 1 and call('LINDEX', q, -2) or #v > 23 and sub(v, 2, 23) or ''
            end
            last_in = last_in or {}
            last_in[key] = id
            answer, left_as[key] = { 2, ahead, now, before, newest }, v
          end
        end
      end
    else
      local at = i * 5 - (releases + asks) * 4 + (asks > 0 and 2 or 0)
      op, id, ttl, option, record = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
      v = pcall('GET', key)
      if op == 'n' and type(v) == 'string' and sub(v, 1, 22) == id then
        call('PEXPIRE', key, ttl)
        answer = 1
      elseif op == 'c' and type(v) == 'string' and sub(v, 1, 24) == '*' .. id .. 'r' then
        -- A turn that was handed on just so.
        local moment, began, lasted, known, fence, before, lasts =
          match(v, '^(%d+)\n(%d+)\n(%d+)(\n(%d+)\n(%d+)\n%d+\nx\n(%d+)\n.*)$', 25)
        if lasts and began + lasted > now and now + lasts + GRACE <= moment + 0 then
          v = '*' .. id .. 'c' .. moment .. '\n' .. now_text .. '\n' .. lasts .. known
          call('SET', key, v, 'KEEPTTL')
          left_as[key] = v
          local waits = call('EXISTS', 'latchwork:q:' .. sub(key, 13)) == 1
          answer = { { 1, fence + 0, before + 0, 1, 1 }, waits and lasts + 0 or -1 }
        end
      end
    end
    if not answer and type(v) == 'table' then
      answer = { '!', v.err }
    end

    -- Everything else.
    if not answer and not marks[i] then
      if last_in then last_in[key] = nil end
      others = others or (function()
        -- In tables, since functions that share many variables take long to make.
        local f, s = nil, {}

        f = {
          text = function(number) return format('%.0f', number) end,
          ms = function(micros) return f.text(math.ceil(micros / 1000)) end,

          fence = function()
            local last = newest or call('GET', KEYS[1])
            newest, unsaved = math.max(s.now, last and last + 1 or 0), true
            return f.text(newest)
          end,
          -- The one that was drawn on queueing, if it is higher than the last one of the key.
          turn = function(drawn, last)
            if drawn == '0' then return f.fence() end
            if tonumber(drawn) > tonumber(last) then return drawn end
            newest, unsaved = math.max(newest or call('GET', KEYS[1]) or 0, last + 1), true
            return f.text(last + 1)
          end,

          granted = function(fence, before, waited, began)
            return { 1, tonumber(fence), tonumber(before), waited, began }
          end,
          entry = function(state, fence, before, since, record)
            return state .. '\n' .. fence .. '\n' .. before .. '\n' .. since .. '\n' .. record
          end,
          -- What is there is somebody else's, or of another version.
          foreign = function(key) error({ err = 'FOREIGN ' .. key }) end,
          -- The entry of whoever holds a lean lock.
          lean = function(v)
            local place, wants, owner, note, first, since, process =
              match(v, '^(%d%d)(.\n%d+\n)([^\n]*)\n([^\n]*)\n(%d+)\n(%d*)\n(.*)$', 24)
            if not place then f.foreign(s.k) end
            local record = wants .. '0\n' .. owner .. '\n' .. process .. '\n' .. note
            return f.entry('c', f.text(first + place), '0', since == '' and first or since, record)
          end,
          -- state, fence, before, since, record
          read = function(e)
            if not find(e, '^.\n%d+\n%d+\n%d+\n') then f.foreign(s.d) end
            return match(e, '^(.)\n(%d+)\n(%d+)\n(%d+)\n(.*)$')
          end,
          -- mode, ttl, client, owner, process, note
          party = function(record)
            return match(record, '^(.)\n(%d+)\n(%x+)\n([^\n]*)\n([^\n]*)\n(.*)$')
          end,
          get = function(id)
            local e = call('HGET', s.d, id)
            if e then return f.read(e) end
          end,

          -- Lets all of it outlive a moment.
          outlive = function(moment)
            if moment + GRACE <= s.garbage then return end
            s.garbage = moment + 2 * GRACE
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

          -- Id, entry, fence, when it runs out and MOMENT of a lone holder.
          lone = function(v)
            local state, moment, began, lasts, rest, fence =
              match(v, '^(%l)(%d+)\n(%d+)\n(%d+)\n((%d+)\n.*)$', 24)
            if not state then f.foreign(s.k) end
            return sub(v, 2, 23), state .. '\n' .. rest, fence, began + lasts, moment + 0
          end,

          -- Brings the key in hand into the full layout.
          spread = function(v)
            if v and byte(v) == STAR then
              if #v < 24 then
                s.garbage = tonumber(sub(v, 2)) or f.foreign(s.k)
                return
              end
              local id, e, fence, expires, moment = f.lone(v)
              s.garbage = moment
              -- The mark last: what is foreign among these stops it before.
              call('HSET', s.d, id, e, 'f', fence)
              call('ZADD', s.h, f.text(expires), id)
              for _, key in ipairs({ s.d, s.h }) do call('PEXPIREAT', key, f.ms(moment)) end
              call('SET', s.k, '*' .. f.text(moment), 'KEEPTTL')
              return
            end
            s.garbage = 0
            if v then
              local id, e = sub(v, 1, 22), f.lean(v)
              f.hold(id, s.now + (call('PTTL', s.k) + 1) * 1000, e)
              local _, fence = f.read(e)
              call('HSET', s.d, 'f', fence)
            end
          end,

          -- Leaves as little as will do.
          settle = function()
            local held = call('ZRANGE', s.h, 0, 1, 'WITHSCORES')
            local id, expires = held[1], held[2]
            if not id then
              if call('EXISTS', s.q) == 0 then call('DEL', s.k, s.d) end
            elseif not held[3] then
              local state, fence, before, since, record = f.get(id)
              if byte(record) ~= EXCLUSIVE then return end
              local begins = f.text(s.garbage) .. '\n' .. s.now_text .. '\n' .. f.text(expires - s.now)
              local known = fence .. '\n' .. before .. '\n' .. since .. '\n' .. record
              call('SET', s.k, '*' .. id .. state .. begins .. '\n' .. known, 'KEEPTTL')
              call('DEL', s.h)
              call('HDEL', s.d, id, 'f')
            end
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

          grant = function(id, record, state, drawn)
            local _, ttl, _, owner = f.party(record)
            -- Two requests of one owner may have waited together: one lease per owner and key.
            local own = owner ~= '' and f.owned_by(owner)
            if own then f.drop(own) end
            local before = call('HGET', s.d, 'f') or '0'
            local new = f.turn(drawn, before)
            local lasts = tonumber(ttl)
            if state == 'r' then lasts = math.min(lasts, WINDOW) end
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
              local _, drawn, _, stay, record = f.get(id)
              local mode, _, client = f.party(record)
              if not f.lives(client) then
                call('LPOP', s.q)
                call('HDEL', s.d, id)
              elseif f.admits(mode) then
                call('LPOP', s.q)
                if s.given and client == ARGV[1] then
                  -- Its process has just spoken, and reads the answer: it need not be asked to claim.
                  local new, before = f.grant(id, record, 'c', drawn)
                  s.given[#s.given + 1] = id
                  s.given[#s.given + 1] = new
                  s.given[#s.given + 1] = before
                else
                  local new, before = f.grant(id, record, 'r', drawn)
                  local turn = id .. ':' .. stay .. ':' .. new .. ':' .. before
                  call('PUBLISH', 'latchwork:c:' .. client, turn)
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

          beat = function()
            if not beaten then call('SET', 'latchwork:a:' .. ARGV[1], 1, 'PX', ALIVE) end
            beaten = true
          end,

          -- One who refuses: how long it will, and its entry.
          refusal = function()
            local id = f.soonest()
            if not id then return { 0 } end
            return { 0, f.left(), call('HGET', s.d, id) }
          end,

          -- option: how the question is asked; besides those of first ones, a: has waited before, and l:
          -- asks a last time.
          ask = function(v, id, option, record)
            local waits = option ~= 'n' and option ~= 'l'
            local mode, _, _, owner = f.party(record)
            if v and byte(v) ~= STAR then
              local e = f.lean(v)
              local _, fence, before, _, theirs = f.read(e)
              if sub(v, 1, 22) == id then return f.granted(fence, before, 0, 0) end
              local _, _, _, name = f.party(theirs)
              if not waits and (owner == '' or owner ~= name) then
                return { 0, call('PTTL', s.k) * 1000, e }
              end
            elseif v and #v > 23 and option == 'n' and owner == '' then
              -- Who neither holds nor waits is refused.
              local holder, e, _, expires = f.lone(v)
              if holder ~= id and expires > s.now and call('HEXISTS', s.d, id) == 0 then
                return { 0, expires - s.now, e }
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
                return { 2, f.left(), tonumber(since) }
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
                local new, last = f.grant(id, record, 'c', '0')
                return f.granted(new, last, 0, 1)
              end
            end
            if call('EXISTS', s.q) == 0 and f.admits(mode) then
              local new, last = f.grant(id, record, 'c', '0')
              return f.granted(new, last, 0, 1)
            end
            if not waits then return f.refusal() end
            f.outlive(s.now)
            call('RPUSH', s.q, id)
            call('PEXPIREAT', s.q, f.ms(s.garbage))
            call('HSET', s.d, id, f.entry('w', f.fence(), '0', s.now_text, record))
            f.beat()
            return { 2, f.left(), s.now }
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
              holders = { call('PTTL', s.k) * 1000, f.lean(v) }
            elseif v then
              if #v > 23 then
                local _, e, _, expires = f.lone(v)
                if expires > s.now then holders = { expires - s.now, e } end
              end
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
            for at = 1, #ids, 22 do
              states[#states + 1] = f.get(sub(ids, at, at + 21)) or '-'
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
              if op == 'p' then return { -1, (string.gsub(option, string.rep('.', 22), '-')) } end
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
          s.now, s.now_text = now, now_text
          local name = sub(key, 13)
          s.k, s.h, s.q, s.d = key, 'latchwork:h:' .. name, 'latchwork:q:' .. name, 'latchwork:d:' .. name
          s.garbage, s.given = nil, nil
          local answer = f.operate(op, v, id, ttl, option, record)
          if s.garbage then f.settle() end
          return answer
        end
      end)()
      local fine
      fine, answer = try(others, op, key, v, id, ttl, option, record)
      if not fine then
        answer = { '!', type(answer) == 'table' and answer.err or tostring(answer) }
      end
    end
    if answer == 0 or answer == 1 then
      marks[i] = answer == 1 and '1' or '0'
    elseif answer then
      marks[i], answers[#answers + 1] = '-', answer
    end
  end
end
if unsaved then call('SET', KEYS[1], format('%.0f', newest)) end
answers[1] = table.concat(marks)
return answers
