#!lua flags=allow-oom
-- claimed -> claimed, with a later lease, for those that still hold theirs.
--
-- KEYS  1 claimed (zset id+token -> lease end ms)
-- ARGV  1 lease ms, then members (id+token)
-- Returns  how many leases were still held
--- @include include/now
local lease_end = math.floor(now_us() / 1000) + tonumber(ARGV[1])
local held = 0
for at = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[at]) then
    redis.call('ZADD', KEYS[1], 'XX', lease_end, ARGV[at])
    held = held + 1
  end
end
return held
