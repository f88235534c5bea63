#!lua flags=allow-oom
-- Lets messages wait at least as long as earlier ones with the same name: a route and a digest of a key. After an
-- outage a message may be parked after its moment, while an earlier one of its key still waits. So an entry stays for a
-- minute after its moment, counted from the earliest moment of this call.
--
-- KEYS  1 lines (zset: name -> the latest due ms)
-- ARGV  pairs: name, due ms; in the order of arrival
-- Returns  the due ms of each: its own, or that of an earlier one
--- @include include/now
local LINES = KEYS[1]
local KEEP_MS = 60000
local earliest = math.floor(now_us() / 1000)
for at = 2, #ARGV, 2 do
  earliest = math.min(earliest, tonumber(ARGV[at]))
end
redis.call('ZREMRANGEBYSCORE', LINES, '-inf', earliest - KEEP_MS)
local reply = {}
for at = 1, #ARGV, 2 do
  local due, latest = tonumber(ARGV[at + 1]), tonumber(redis.call('ZSCORE', LINES, ARGV[at]) or 0)
  if due > latest then
    redis.call('ZADD', LINES, due, ARGV[at])
    latest = due
  end
  reply[#reply + 1] = latest
end
return reply
