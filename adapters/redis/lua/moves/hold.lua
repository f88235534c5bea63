#!lua flags=allow-oom
-- claimed -> held: its route is paused, at its rate or missing. It keeps its due moment, and its order among what is
-- held. A message with a reason counts as refused, and one that waits for its turn as it did before.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claims (hash)   4 counts (hash)   5 why (hash)   6 refused (zset)
-- ARGV  two values for each message: member (id+token), reason ('': it is not refused, '=': as before)
-- Returns  the number held; the caller no longer had the others
--- @include include/claims
--- @include include/held
--- @include include/held_since
--- @include include/refused
--- @include include/routes
local DUE, MESSAGES, CLAIMS, COUNTS, WHY, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local claimed = claims_take_members(CLAIMS, ARGV, 1, 2)
local held, earliest, refusals = 0, {}, redis.call('EXISTS', REFUSED) == 1
for at = 1, #ARGV, 2 do
  local id = string.sub(ARGV[at], 1, 20)
  if was_held(claimed, string.sub(ARGV[at], 21), id) then
    local envelope = redis.call('HGET', MESSAGES, id)
    if envelope then
      local due, route = envelope_due(envelope), envelope_route(envelope)
      redis.call('ZADD', DUE, HELD_MS + due, id)
      route_add(COUNTS, 'held', route, 1)
      earliest[route] = math.min(due, earliest[route] or due)
      local reason = ARGV[at + 1]
      if reason ~= '' and reason ~= '=' then
        refused_add(REFUSED, WHY, id, envelope, reason)
      elseif refusals and reason == '' then
        refused_remove(REFUSED, id, envelope)
      end
      held = held + 1
    end
  end
end
for route, due in pairs(earliest) do hold_since(COUNTS, route, due) end
return held
