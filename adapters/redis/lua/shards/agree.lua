#!lua flags=allow-oom
-- Writes what all instances must agree on where it is missing, and notes a loss that an instance has seen.
--
-- KEYS  1 store (hash: format, shards, id, secret; lost_ms, lost, lost_from_ms, lost_older, emptied and restored
--       describe the last loss)
-- ARGV  1 format, which replaces an older one   2 shards   3 id for a store without one
--       4 number of lost messages, or -1   5 secret for a store without one
--       6 ms before which all was settled when the instance looked last (0: unknown)
--       7 number of messages that were held or refused then, whose due moments may be earlier
--       8 whether the store was emptied (1), or only older than before (0)
-- Returns  pairs: name, value
--- @include include/now
local STORE = KEYS[1]
-- All instances note the same loss, each with the number that it knows of. The largest within a minute counts.
local LOSS_MS = 60000
local format = tonumber(redis.call('HGET', STORE, 'format') or 0)
if format < tonumber(ARGV[1]) then redis.call('HSET', STORE, 'format', ARGV[1]) end
redis.call('HSETNX', STORE, 'shards', ARGV[2])
redis.call('HSETNX', STORE, 'id', ARGV[3])
redis.call('HSETNX', STORE, 'secret', ARGV[5])
local lost = tonumber(ARGV[4])
if lost >= 0 then
  local now_ms = math.floor(now_us() / 1000)
  local noted_ms = tonumber(redis.call('HGET', STORE, 'lost_ms') or 0)
  local from_ms, older = tonumber(ARGV[6]), tonumber(ARGV[7])
  if now_ms - noted_ms < LOSS_MS then
    lost = math.max(lost, tonumber(redis.call('HGET', STORE, 'lost') or 0))
    older = math.max(older, tonumber(redis.call('HGET', STORE, 'lost_older') or 0))
    local noted_from_ms = tonumber(redis.call('HGET', STORE, 'lost_from_ms') or 0)
    from_ms = from_ms > 0 and noted_from_ms > 0 and math.min(from_ms, noted_from_ms) or from_ms + noted_from_ms
  else
    noted_ms = now_ms
    redis.call('HDEL', STORE, 'emptied', 'restored')
  end
  if ARGV[8] == '1' then redis.call('HSET', STORE, 'emptied', 1) end
  redis.call('HSET', STORE, 'lost_ms', string.format('%d', noted_ms), 'lost', lost)
  redis.call('HSET', STORE, 'lost_from_ms', string.format('%d', from_ms), 'lost_older', older)
end
return redis.call('HGETALL', STORE)
