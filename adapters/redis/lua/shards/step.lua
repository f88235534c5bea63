#!lua flags=allow-oom
-- Notes a step of the clock. All instances see the same step: the first note of this size within a minute counts.
--
-- KEYS  1 store (hash: format, shards, id; stepped_... describe the last step)
-- ARGV  1 ms by which the clock stepped, negative for back   2 and 3 from when to when the clock was ahead (ms, by that
--       clock)   4 messages that were parked in that time and still wait; of a step forward, that became due by it
-- Returns  pairs: name, value
--- @include include/now
local STORE = KEYS[1]
local SAME_MS, ALIKE_MS = 60000, 1000
local now_ms, by_ms = math.floor(now_us() / 1000), tonumber(ARGV[1])
local noted = redis.call('HMGET', STORE, 'stepped_ms', 'stepped_by_ms')
local noted_ms, noted_by_ms = tonumber(noted[1] or 0), tonumber(noted[2] or 0)
if math.abs(noted_by_ms - by_ms) > ALIKE_MS or math.abs(now_ms - noted_ms) > SAME_MS then
  redis.call('HSET', STORE, 'stepped_ms', string.format('%d', now_ms), 'stepped_by_ms', ARGV[1],
    'stepped_from_ms', ARGV[2], 'stepped_to_ms', ARGV[3], 'stepped_parked', ARGV[4])
end
return redis.call('HGETALL', STORE)
