#!lua flags=allow-oom
-- parked -> parked and held -> held, at another due moment. A refused message waits for that moment, not for another
-- try.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 dead (zset)   4 refused (zset)   5 moved (stream)
--       6 counts (hash)
-- ARGV  1 wake channel   2 due ms (0: now, by the store's clock), then ids
-- Returns  one word for each id: parked (moved), dead, claimed (too late), none
--- @include include/moved
--- @include include/now
--- @include include/refused
--- @include include/held
--- @include include/held_since
--- @include include/wake
local DUE, MESSAGES, DEAD, REFUSED, MOVED, COUNTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local channel, due = ARGV[1], tonumber(ARGV[2])
if due == 0 then due = math.floor(now_us() / 1000) end
local reply, any, later = {}, false, {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', MESSAGES, id)
  if not envelope then
    reply[#reply + 1] = 'none'
  else
    local score = redis.call('ZSCORE', DUE, id)
    if score then
      local held = tonumber(score) >= HELD_MS
      redis.call('ZADD', DUE, held and due + HELD_MS or due, id)
      redis.call('HSET', MESSAGES, id, envelope_with(envelope, due, nil))
      refused_remove(REFUSED, id, envelope)
      reply[#reply + 1] = 'parked'
      later[#later + 1] = id
      any = any or not held
      if held then hold_since(COUNTS, envelope_route(envelope), due) end
    else
      reply[#reply + 1] = redis.call('ZSCORE', DEAD, id) and 'dead' or 'claimed'
    end
  end
end
moved(MOVED, 'rescheduled', later, string.format('%d', due))
if any then wake_if_nearer(DUE, channel, due) end
return reply
