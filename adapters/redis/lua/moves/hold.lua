#!lua flags=allow-oom
-- claimed -> held: its route is paused or at its rate. It keeps its due moment, and its order among what is held.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claimed (zset)   4 counts (hash)   5 refused (zset)
-- ARGV  members (id+token)
-- Returns  the number held; the caller no longer had the others
--- @include include/held
--- @include include/refused
--- @include include/routes
local DUE, MESSAGES, CLAIMED, COUNTS, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local held, refusals = 0, redis.call('EXISTS', REFUSED) == 1
for _, member in ipairs(ARGV) do
  local id = string.sub(member, 1, 20)
  if redis.call('ZREM', CLAIMED, member) == 1 then
    local envelope = redis.call('HGET', MESSAGES, id)
    if envelope then
      redis.call('ZADD', DUE, HELD_MS + envelope_due(envelope), id)
      route_add(COUNTS, 'held', envelope_route(envelope), 1)
      if refusals then refused_remove(REFUSED, id, envelope) end
      held = held + 1
    end
  end
end
return held
