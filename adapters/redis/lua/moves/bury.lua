#!lua flags=allow-oom
-- claimed -> dead, with the reason. It stays until someone retries or cancels it.
--
-- KEYS  1 messages (hash)   2 claimed (zset)   3 dead (zset id -> ms when it died)   4 why (hash)   5 counts (hash)
-- ARGV  triples: member (id+token), tries, reason
-- Returns  how many were buried; the others were no longer the caller's
--- @include include/now
--- @include include/envelope
local now_ms = math.floor(now_us() / 1000)
local buried = 0
for at = 1, #ARGV, 3 do
  local id = string.sub(ARGV[at], 1, 20)
  if redis.call('ZREM', KEYS[2], ARGV[at]) == 1 then
    local envelope = redis.call('HGET', KEYS[1], id)
    if envelope then
      redis.call('ZADD', KEYS[3], now_ms, id)
      redis.call('HSET', KEYS[1], id, envelope_with(envelope, nil, tonumber(ARGV[at + 1])))
      redis.call('HSET', KEYS[4], id, ARGV[at + 2])
      buried = buried + 1
    end
  end
end
redis.call('HINCRBY', KEYS[5], 'dead', buried)
return buried
