#!lua flags=allow-oom
-- claimed -> parked: the lease ran out, or the claim's reply was lost and the claimer gives its token back. Whoever
-- held it may have published it already: this is where an expired lease makes a duplicate.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claimed (zset)   4 counts (hash)
-- ARGV  1 wake channel   2 at most   3 a claim token, or '' for the leases that ran out
-- Returns  how many are parked again
--- @include include/now
--- @include include/envelope
--- @include include/wake
local members
if ARGV[3] == '' then
  members = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', math.floor(now_us() / 1000), 'LIMIT', 0, tonumber(ARGV[2]))
else
  members = {}
  for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    if string.sub(member, 21) == ARGV[3] then members[#members + 1] = member end
  end
end
local recovered, earliest = 0, nil
for _, member in ipairs(members) do
  local id = string.sub(member, 1, 20)
  redis.call('ZREM', KEYS[3], member)
  local envelope = redis.call('HGET', KEYS[2], id)
  if envelope then
    local due = envelope_due(envelope)
    redis.call('ZADD', KEYS[1], due, id)
    recovered = recovered + 1
    if not earliest or due < earliest then earliest = due end
  end
end
if recovered > 0 then
  redis.call('HINCRBY', KEYS[4], 'recovered', recovered)
  wake_if_nearer(KEYS[1], ARGV[1], earliest)
end
return recovered
