#!lua flags=no-writes
-- Counts the messages of a shard, by state, and what ever happened in it. What park.lua keeps with the counts is no
-- count: its fields begin with the byte 1.
--
-- KEYS  1 due (zset)   2 claims (hash)   3 dead (zset)   4 counts (hash)   5 refused (zset)
-- Returns  {now us, parked, claimed, dead, overdue by the next try, next due ms or -1, refused, held, name, total,
--          name, total, ...}; among the totals are the counts of the routes (include/routes.lua)
--- @include include/claims
--- @include include/held
--- @include include/now
local DUE, CLAIMS, DEAD, COUNTS, REFUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = now_us()
local head = redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')
local next_ms = tonumber(head[2]) or HELD_MS
local claimed = 0
for _, record in ipairs(redis.call('HVALS', CLAIMS)) do claimed = claimed + (#record - LEASE) / 20 end
local reply = {
  now,
  redis.call('ZCARD', DUE),
  claimed,
  redis.call('ZCARD', DEAD),
  redis.call('ZCOUNT', DUE, '-inf', '(' .. string.format('%d', math.floor(now / 1000))),
  next_ms < HELD_MS and next_ms or -1,
  redis.call('ZCARD', REFUSED),
  redis.call('ZCOUNT', DUE, HELD_MS, '+inf'),
}
local counts = redis.call('HGETALL', COUNTS)
for at = 1, #counts, 2 do
  if string.byte(counts[at]) ~= 1 then reply[#reply + 1], reply[#reply + 2] = counts[at], counts[at + 1] end
end
return reply
