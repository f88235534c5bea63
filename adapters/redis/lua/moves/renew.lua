#!lua flags=allow-oom
-- claimed -> claimed. Extends the leases that the caller still holds. Other messages of these claims, such as those
-- whose release the store missed, keep the lease that they have, or it would never end.
--
-- KEYS  1 claims (hash)
-- ARGV  1 lease ms, then pairs: claim token, ids in one string
-- Returns  the number of messages still held
--- @include include/claims
--- @include include/now
local CLAIMS = KEYS[1]
local end_ms = math.floor(now_us() / 1000) + tonumber(ARGV[1])
local held = 0
for at = 2, #ARGV, 2 do
  local token, ids = ARGV[at], ARGV[at + 1]
  local taken = claims_take(CLAIMS, {[token] = ids})[token]
  local named = taken == true and ids or ids_within(ids, taken)
  if named ~= '' then
    local record = redis.call('HGET', CLAIMS, token)
    if record then
      local field = token .. string.sub(record, 1, LEASE)
      local same = redis.call('HGET', CLAIMS, field) or string.sub(record, 1, LEASE)
      redis.call('HSET', CLAIMS, field, same .. string.sub(record, LEASE + 1))
    end
    redis.call('HSET', CLAIMS, token, claim_record(end_ms, named))
    held = held + #named / 20
  end
end
return held
