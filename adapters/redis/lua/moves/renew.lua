#!lua flags=allow-oom
-- claimed -> claimed. Extends the leases that the caller still holds.
--
-- KEYS  1 claimed (zset id+token -> lease end ms)
-- ARGV  1 lease ms, then members (id+token)
-- Returns  the number of leases still held
--- @include include/now
local CLAIMED = KEYS[1]
local lease_end = math.floor(now_us() / 1000) + tonumber(ARGV[1])
local held = 0
for at = 2, #ARGV do
  if redis.call('ZSCORE', CLAIMED, ARGV[at]) then
    redis.call('ZADD', CLAIMED, 'XX', lease_end, ARGV[at])
    held = held + 1
  end
end
return held
