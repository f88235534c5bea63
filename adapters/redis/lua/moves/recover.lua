#!lua flags=allow-oom
-- claimed -> parked: the lease expired, or the claim's reply was lost and the claimer gives its messages back.
-- The holder of an expired lease may have published the message already: this is where duplicates come from.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claimed (zset)   4 counts (hash)   5 refused (zset)
--       6 drain (string: instance)
-- ARGV  1 wake channel   2 maximum number of expired leases
--       3 first and 4 last token of the claims to give back, in place of expired leases; or both ''
--       5 lease ms: a lease that ends later than in this time dates from before the clock stepped back, and is cut.
--         So does a drain, which is always shorter: it is removed, and an owner that lives takes it again
-- Returns  the number parked again
--- @include include/now
--- @include include/park_again
--- @include include/token
--- @include include/wake
local DUE, MESSAGES, CLAIMED, COUNTS, REFUSED, DRAIN = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local channel, limit, first, last = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local members
if first == '' then
  local now_ms = math.floor(now_us() / 1000)
  members = redis.call('ZRANGEBYSCORE', CLAIMED, '-inf', now_ms, 'LIMIT', 0, limit)
  local latest = now_ms + tonumber(ARGV[5])
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', CLAIMED, '(' .. latest, '+inf', 'LIMIT', 0, limit)) do
    redis.call('ZADD', CLAIMED, latest, member)
  end
  if redis.call('PTTL', DRAIN) > tonumber(ARGV[5]) then redis.call('DEL', DRAIN) end
else
  members = claimed_between(CLAIMED, first, last)
end
local recovered, earliest = park_again(DUE, MESSAGES, CLAIMED, COUNTS, members)
if recovered > 0 then wake_if_nearer(DUE, channel, earliest) end
-- A refused message that someone deleted by hand would be overdue for ever. So a few are checked with every call.
for _, member in ipairs(redis.call('ZRANDMEMBER', REFUSED, 20)) do
  if redis.call('HEXISTS', MESSAGES, string.sub(member, -20)) == 0 then redis.call('ZREM', REFUSED, member) end
end
return recovered
