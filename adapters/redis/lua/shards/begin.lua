#!lua flags=allow-oom
-- Gives a shard its number of cold messages by route. If it has no mark, it gets its first: now it has a cold tier.
--
-- KEYS  1 counts (hash)   2 cold (string)
-- ARGV  1 mark that the caller read, '' for none   2 mark from now on, then for each route: its name, its number
-- Returns  1; 0 if the shard has another mark, and nothing was done
--- @include include/routes
local COUNTS, COLD = KEYS[1], KEYS[2]
if (redis.call('GET', COLD) or '') ~= ARGV[1] then return 0 end
redis.call('SET', COLD, ARGV[2])
for route in pairs(routes_in(COUNTS, 'cold')) do redis.call('HDEL', COUNTS, '\0cold\0' .. route) end
for at = 3, #ARGV, 2 do route_add(COUNTS, 'cold', ARGV[at], ARGV[at + 1]) end
return 1
