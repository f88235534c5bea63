#!lua flags=allow-oom
-- Lets messages wait at least as long as earlier ones with the same name: a route and a digest of a key. An entry whose
-- moment has come is removed, because its message is due; so there are no more entries than parked messages.
--
-- KEYS  1 lines (zset: name -> the latest due ms)
-- ARGV  pairs: name, due ms; in the order of arrival
-- Returns  the due ms of each: its own, or that of an earlier one
--- @include include/now
local LINES = KEYS[1]
redis.call('ZREMRANGEBYSCORE', LINES, '-inf', math.floor(now_us() / 1000))
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
