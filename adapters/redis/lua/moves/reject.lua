#!lua
-- new -> dead. Keeps messages that can never be parked (a bad header, a key already taken) with their reason, once.
--
-- KEYS  1 dead (zset id -> ms when it died)   2 messages (hash)   3 why (hash id -> reason)   4 token (string)   5 counts
-- ARGV  1 token, then triples: id, envelope, reason
-- Returns  how many were added; 0 for a token that was seen already
--- @include include/now
if redis.call('GET', KEYS[4]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[4], 3600000)  -- a write, for the WAIT that may follow
  return 0
end
local now_ms = math.floor(now_us() / 1000)
local added = 0
for at = 2, #ARGV, 3 do
  redis.call('ZADD', KEYS[1], now_ms, ARGV[at])
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 2])
  added = added + 1
end
redis.call('HINCRBY', KEYS[5], 'dead', added)
redis.call('SET', KEYS[4], ARGV[1], 'PX', 3600000)
return added
