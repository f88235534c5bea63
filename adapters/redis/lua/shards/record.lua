#!lua
-- Adds delivered messages to the history of a shard, and removes what is too old or too many.
-- Deliberately without allow-oom: at maxmemory the history is not worth the memory.
--
-- KEYS  1 history (stream)
-- ARGV  1 keep ms   2 maximum number of messages to keep, then pairs: number of messages, their bytes
-- Returns  the number of messages left
--- @include include/now
--- @include include/history
local HISTORY = KEYS[1]
local keep_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local now_ms = math.floor(now_us() / 1000)
if redis.call('EXISTS', HISTORY) == 0 and #ARGV == 2 then return 0 end
local pieces = {} -- of hours in which memory was full: too many for unpack
for at = 3, #ARGV do pieces[at - 2] = ARGV[at] end
return history_add(HISTORY, pieces, now_ms, keep_ms, most)
