#!lua flags=allow-oom
-- Writes what all instances must agree on where it is missing, and notes a loss that an instance has seen.
--
-- KEYS  1 store (hash: format, shards, id, secret; lost_ms and lost describe the last loss)
-- ARGV  1 format   2 shards   3 id for a store without one   4 number of lost messages, or -1
--       5 secret for a store without one
-- Returns  pairs: name, value
--- @include include/now
local STORE = KEYS[1]
-- All instances note the same loss, each with the number that it knows of. The largest within a minute counts.
local LOSS_MS = 60000
redis.call('HSETNX', STORE, 'format', ARGV[1])
redis.call('HSETNX', STORE, 'shards', ARGV[2])
redis.call('HSETNX', STORE, 'id', ARGV[3])
redis.call('HSETNX', STORE, 'secret', ARGV[5])
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
