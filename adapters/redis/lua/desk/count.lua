#!lua flags=no-writes
-- Counts the messages of a shard, by state, and what ever happened in it.
--
-- KEYS  1 due (zset)   2 claimed (zset)   3 dead (zset)   4 counts (hash)   5 why (hash)
-- Returns  {now us, parked, claimed, dead, overdue, next due ms or -1, refused, held, name, total, name, total, ...};
--          refused counts messages with a reason that are not dead: they wait for another try, or are in one. Among
--          the totals are the counts of the routes (include/routes.lua)
--- @include include/held
--- @include include/now
local DUE, CLAIMED, DEAD, COUNTS, WHY = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = now_us()
local head = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
local next_ms = tonumber(head[2]) or HELD_MS
local dead = redis.call('ZCARD', DEAD)
local reply = {
  now,
  redis.call('ZCARD', DUE),
  redis.call('ZCARD', CLAIMED),
  dead,
  redis.call('ZCOUNT', DUE, '-inf', '(' .. string.format('%d', math.floor(now / 1000))),
  next_ms < HELD_MS and next_ms or -1,
  math.max(0, redis.call('HLEN', WHY) - dead),
  redis.call('ZCOUNT', DUE, HELD_MS, '+inf'),
}
for _, value in ipairs(redis.call('HGETALL', COUNTS)) do reply[#reply + 1] = value end
return reply
