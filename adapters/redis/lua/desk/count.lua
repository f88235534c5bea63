#!lua flags=no-writes
-- Counts a shard.
--
-- KEYS  1 due (zset)   2 claimed (zset)   3 dead (zset)   4 counts (hash)   5 why (hash)
-- Returns  {now us, parked, claimed, dead, overdue, next due ms or -1, refused (they have
--          a reason and are no dead letters: they wait for another try, or it is under way), then pairs: name, how many ever}
--- @include include/now
local now = now_us()
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local reply = {
  now,
  redis.call('ZCARD', KEYS[1]),
  redis.call('ZCARD', KEYS[2]),
  redis.call('ZCARD', KEYS[3]),
  redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. string.format('%d', math.floor(now / 1000))),
  tonumber(head[2]) or -1,
  math.max(0, redis.call('HLEN', KEYS[5]) - redis.call('ZCARD', KEYS[3])),
}
for _, value in ipairs(redis.call('HGETALL', KEYS[4])) do reply[#reply + 1] = value end
return reply
