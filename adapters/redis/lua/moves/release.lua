#!lua flags=allow-oom
-- claimed -> parked: refused for now, or unknown. It keeps its due moment in the envelope, lateness counts from there;
-- the moment of the next try is only its place in the due set.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claimed (zset)   4 why (hash)
-- ARGV  1 wake channel, then fours: member (id+token), next try ms after now (-1: its own due moment), tries,
--       reason ('' leaves it)
-- Returns  how many were released; the others were no longer the caller's
--- @include include/now
--- @include include/envelope
--- @include include/wake
local now_ms = math.floor(now_us() / 1000)
local released, earliest = 0, nil
for at = 2, #ARGV, 4 do
  local id = string.sub(ARGV[at], 1, 20)
  if redis.call('ZREM', KEYS[3], ARGV[at]) == 1 then
    local envelope = redis.call('HGET', KEYS[2], id)
    if envelope then
      local wait_ms = tonumber(ARGV[at + 1])
      local due = wait_ms < 0 and envelope_due(envelope) or now_ms + wait_ms
      redis.call('ZADD', KEYS[1], due, id)
      redis.call('HSET', KEYS[2], id, envelope_with(envelope, nil, tonumber(ARGV[at + 2])))
      if ARGV[at + 3] ~= '' then redis.call('HSET', KEYS[4], id, ARGV[at + 3]) end
      released = released + 1
      if not earliest or due < earliest then earliest = due end
    end
  end
end
if earliest then wake_if_nearer(KEYS[1], ARGV[1], earliest) end
return released
