#!lua flags=allow-oom
-- claimed -> held: its route is paused or at its rate. It keeps its due moment, and its order among what is held.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claims (hash)   4 counts (hash)   5 refused (zset)
-- ARGV  members (id+token)
-- Returns  the number held; the caller no longer had the others
--- @include include/claims
--- @include include/held
--- @include include/refused
--- @include include/routes
local DUE, MESSAGES, CLAIMS, COUNTS, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local claimed = claims_take_members(CLAIMS, ARGV, 1, 1)
local held, refusals = 0, redis.call('EXISTS', REFUSED) == 1
for _, member in ipairs(ARGV) do
  local id = string.sub(member, 1, 20)
  if was_held(claimed, string.sub(member, 21), id) then
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
