#!lua flags=allow-oom
-- claimed -> parked: the lease expired, or the claim's reply was lost and the claimer gives its messages back.
-- The holder of an expired lease may have published the message already: this is where duplicates come from.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 claims (hash)   4 counts (hash)   5 refused (zset)
--       6 drain (string: instance)   7 claimed (zset id+token -> lease end ms, of format 1)
-- ARGV  1 wake channel   2 maximum number of messages
--       3 first and 4 last token of the claims to give back, in place of expired leases; or both ''
--       5 lease ms: a lease that ends later than in this time dates from before the clock stepped back, and is cut.
--         So does a drain, which is always shorter: it is removed, and an owner that lives takes it again
-- Returns  the number parked again
--- @include include/now
--- @include include/park_again
--- @include include/token
--- @include include/wake
local DUE, MESSAGES, CLAIMS, COUNTS, REFUSED, DRAIN = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local CLAIMED = KEYS[7]
local channel, limit, first, last = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local tokens = {}
if first == '' then
  local now_ms, lease_ms = math.floor(now_us() / 1000), tonumber(ARGV[5])
  -- Claims of an instance of format 1, which may still settle them, become claims of today when their leases end.
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', CLAIMED, '-inf', now_ms, 'LIMIT', 0, limit)) do
    redis.call('HSET', CLAIMS, member, claim_record(0, string.sub(member, 1, 20)))
    redis.call('ZREM', CLAIMED, member)
  end
  local latest = string.format('%d', now_ms + lease_ms)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', CLAIMED, '(' .. latest, '+inf', 'LIMIT', 0, limit)) do
    redis.call('ZADD', CLAIMED, latest, member)
  end
  local claims = redis.call('HGETALL', CLAIMS)
  for at = 1, #claims, 2 do
    local end_ms = claim_end(claims[at + 1])
    if end_ms <= now_ms then
      tokens[#tokens + 1] = claims[at]
    elseif end_ms > now_ms + lease_ms then
      local ids = string.sub(claims[at + 1], LEASE + 1)
      redis.call('HSET', CLAIMS, claims[at], claim_record(now_ms + lease_ms, ids))
    end
  end
  if redis.call('PTTL', DRAIN) > lease_ms then redis.call('DEL', DRAIN) end
else
  tokens, limit = claims_between(CLAIMS, first, last), math.huge
end
local recovered, earliest = park_again(DUE, MESSAGES, CLAIMS, COUNTS, tokens, limit)
if recovered > 0 then wake_if_nearer(DUE, channel, earliest) end
-- A refused message that someone deleted by hand would be overdue for ever. So a few are checked with every call.
for _, member in ipairs(redis.call('ZRANDMEMBER', REFUSED, 20)) do
  if redis.call('HEXISTS', MESSAGES, string.sub(member, -20)) == 0 then redis.call('ZREM', REFUSED, member) end
end
return recovered
