#!lua flags=allow-oom
-- claimed -> parked: the lease expired, or the claim's reply was lost and the claimer gives its token back.
-- The holder of an expired lease may have published the message already: this is where duplicates come from.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claimed (zset)   4 counts (hash)
-- ARGV  1 wake channel   2 maximum number   3 a claim token, or '' for expired leases
-- Returns  the number parked again
--- @include include/now
--- @include include/envelope
--- @include include/wake
local DUE, MESSAGES, CLAIMED, COUNTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, limit, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local members
if token == '' then
  members = redis.call('ZRANGEBYSCORE', CLAIMED, '-inf', math.floor(now_us() / 1000), 'LIMIT', 0, limit)
else
  members = {}
  for _, member in ipairs(redis.call('ZRANGE', CLAIMED, 0, -1)) do
    if string.sub(member, 21) == token then members[#members + 1] = member end
  end
end
local recovered, earliest = 0, nil
for _, member in ipairs(members) do
  local id = string.sub(member, 1, 20)
  redis.call('ZREM', CLAIMED, member)
  local envelope = redis.call('HGET', MESSAGES, id)
  if envelope then
    local due = envelope_due(envelope)
    redis.call('ZADD', DUE, due, id)
    recovered = recovered + 1
    if not earliest or due < earliest then earliest = due end
  end
end
if recovered > 0 then
  redis.call('HINCRBY', COUNTS, 'recovered', recovered)
  wake_if_nearer(DUE, channel, earliest)
end
return recovered
