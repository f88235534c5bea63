#!lua flags=allow-oom
-- Writes what every instance must agree on, where it is not written yet, and notes a loss that an instance has seen.
--
-- KEYS  1 store (hash: format, shards, id, and of the last loss: lost_ms, lost)
-- ARGV  1 format   2 shards   3 id of the store, if it has none   4 messages that were lost, or -1
-- Returns  pairs: name, value
--- @include include/now
local STORE = KEYS[1]
-- Every instance notes the same loss, each as much of it as it knew of: the largest number within a minute stands.
local LOSS_MS = 60000
redis.call('HSETNX', STORE, 'format', ARGV[1])
redis.call('HSETNX', STORE, 'shards', ARGV[2])
redis.call('HSETNX', STORE, 'id', ARGV[3])
local lost = tonumber(ARGV[4])
if lost >= 0 then
  local now_ms = math.floor(now_us() / 1000)
  local noted_ms = tonumber(redis.call('HGET', STORE, 'lost_ms') or 0)
  if now_ms - noted_ms < LOSS_MS then
    lost = math.max(lost, tonumber(redis.call('HGET', STORE, 'lost') or 0))
  else
    noted_ms = now_ms
  end
  redis.call('HSET', STORE, 'lost_ms', string.format('%d', noted_ms), 'lost', lost)
end
return redis.call('HGETALL', STORE)
