#!lua flags=allow-oom
-- claimed -> dead, with the reason. The message stays until someone retries or cancels it.
--
-- KEYS  1 messages (hash)   2 claims (hash)   3 dead (zset id -> ms when it died)   4 why (hash)   5 counts (hash)
--       6 history (stream)   7 refused (zset)   8 moved (stream)
-- ARGV  1 ms to keep the history   2 its maximum (0: none), then three values for each message: member (id+token),
--       tries, reason
-- Returns  the number buried; the caller no longer held the others
--- @include include/claims
--- @include include/now
--- @include include/refused
--- @include include/routes
--- @include include/history
--- @include include/moved
local MESSAGES, CLAIMS, DEAD, WHY = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local COUNTS, HISTORY, REFUSED, MOVED = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local keep_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local now_ms = math.floor(now_us() / 1000)
local held = claims_take_members(CLAIMS, ARGV, 3, 3)
local buried, past = 0, {}
for at = 3, #ARGV, 3 do
  local id = string.sub(ARGV[at], 1, 20)
  if was_held(held, string.sub(ARGV[at], 21), id) then
    local envelope = redis.call('HGET', MESSAGES, id)
    if envelope then
      redis.call('ZADD', DEAD, now_ms, id)
      refused_remove(REFUSED, id, envelope)
      redis.call('HSET', MESSAGES, id, envelope_with(envelope, nil, tonumber(ARGV[at + 1])))
      redis.call('HSET', WHY, id, ARGV[at + 2])
      local route = envelope_route(envelope)
      route_add(COUNTS, 'parked', route, -1)
      route_add(COUNTS, 'dead', route, 1)
      moved(MOVED, 'dead', {id}, ARGV[at + 2])
      buried = buried + 1
      past[buried] = {DIED, id, envelope, ARGV[at + 2], tonumber(ARGV[at + 1])}
    end
  end
end
redis.call('HINCRBY', COUNTS, 'dead', buried)
history_note(HISTORY, past, keep_ms, most)
return buried
