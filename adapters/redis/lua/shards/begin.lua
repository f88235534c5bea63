#!lua flags=allow-oom
-- Gives a shard without a mark its first one: from now on it has a cold tier.
--
-- KEYS  1 counts (hash)   2 cold (string)
-- ARGV  1 mark, then for each route: its name, its number of cold messages
-- Returns  1
--- @include include/routes
local COUNTS, COLD = KEYS[1], KEYS[2]
if redis.call('SET', COLD, ARGV[1], 'NX') then
  for at = 2, #ARGV, 2 do
    redis.call('HDEL', COUNTS, '\0cold\0' .. ARGV[at])
    route_add(COUNTS, 'cold', ARGV[at], ARGV[at + 1])
  end
end
return 1
