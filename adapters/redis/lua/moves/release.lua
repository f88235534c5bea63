#!lua flags=allow-oom
-- claimed -> parked: refused for now, or no answer. The envelope keeps its due moment, from which lateness counts.
-- The moment of the next try is only the score in the due set. A message with a reason was refused.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claims (hash)   4 why (hash)   5 refused (zset)
-- ARGV  1 wake channel, then four values for each message: member (id+token), ms until the next try (-1: at its own due
--       moment), tries, reason ('': keep the last one)
-- Returns  the number released; the caller no longer held the others
--- @include include/claims
--- @include include/now
--- @include include/envelope
--- @include include/refused
--- @include include/wake
local DUE, MESSAGES, CLAIMS, WHY, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel = ARGV[1]
local now_ms = math.floor(now_us() / 1000)
local held = claims_take_members(CLAIMS, ARGV, 2, 4)
local released, earliest = 0, nil
for at = 2, #ARGV, 4 do
  local id = string.sub(ARGV[at], 1, 20)
  if was_held(held, string.sub(ARGV[at], 21), id) then
    local envelope = redis.call('HGET', MESSAGES, id)
    if envelope then
      local wait_ms = tonumber(ARGV[at + 1])
      local due = wait_ms < 0 and envelope_due(envelope) or now_ms + wait_ms
      if not earliest or due < earliest then earliest = due end
      redis.call('ZADD', DUE, due, id)
      redis.call('HSET', MESSAGES, id, envelope_with(envelope, nil, tonumber(ARGV[at + 2])))
      if ARGV[at + 3] ~= '' then refused_add(REFUSED, WHY, id, envelope, ARGV[at + 3]) end
      released = released + 1
    end
  end
end
if earliest then wake_if_nearer(DUE, channel, earliest) end
return released
