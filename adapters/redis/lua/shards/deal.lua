#!lua flags=allow-oom
-- Agrees on which instance drains each shard, without a leader. An instance may replace the deal that it has read,
-- unless another one has replaced it since.
--
-- KEYS  1 instances (zset instance -> ms until which it counts as running)
--       2 health (hash instance -> 1 or 0 (can it deliver), then JSON)   3 deal (string: JSON, instance of each shard)
-- ARGV  1 the deal that the caller has read, '' for none   2 the deal that it wants, '' to only read
-- Returns  {the deal in force or '', instance, JSON, instance, JSON, ...} of the instances that can deliver
local INSTANCES, HEALTH, DEAL = KEYS[1], KEYS[2], KEYS[3]
local read, wanted = ARGV[1], ARGV[2]
local deal = redis.call('GET', DEAL) or ''
if wanted ~= '' and deal == read then
  redis.call('SET', DEAL, wanted)
  deal = wanted
end
local reply = {deal}
for _, name in ipairs(redis.call('ZRANGE', INSTANCES, 0, -1)) do
  local health = redis.call('HGET', HEALTH, name) or ''
  if string.sub(health, 1, 1) == '1' then
    reply[#reply + 1] = name
    reply[#reply + 1] = string.sub(health, 2)
  end
end
return reply
