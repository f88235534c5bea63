#!lua flags=allow-oom
-- Agrees on which instance drains each shard, without a leader: each instance may replace the deal that it has read,
-- unless another one did so first.
--
-- KEYS  1 instances (zset instance -> ms until which it counts)   2 health (hash instance -> 1 or 0, can it deliver, and JSON)
--       3 deal (string: who is to drain each shard, JSON)
-- ARGV  1 the deal that the caller has read, '' for none   2 the deal that it wants; '' only asks
-- Returns  {the deal that is in force or '', instance, JSON, instance, JSON, ...} of the instances that can deliver
local deal = redis.call('GET', KEYS[3]) or ''
if ARGV[2] ~= '' and deal == ARGV[1] then
  redis.call('SET', KEYS[3], ARGV[2])
  deal = ARGV[2]
end
local reply = {deal}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local health = redis.call('HGET', KEYS[2], name) or ''
  if string.sub(health, 1, 1) == '1' then
    reply[#reply + 1] = name
    reply[#reply + 1] = string.sub(health, 2)
  end
end
return reply
