#!lua flags=allow-oom
-- dead -> parked, due at once and with its tries forgotten: someone has mended the cause.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 dead (zset)   4 why (hash)
-- ARGV  1 wake channel, then ids
-- Returns  one number an id: 1 parked again, 0 not a dead letter
--- @include include/now
--- @include include/envelope
--- @include include/wake
local now_ms = math.floor(now_us() / 1000)
local reply, any = {}, false
for at = 2, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', KEYS[2], id)
  if envelope and redis.call('ZREM', KEYS[3], id) == 1 then
    redis.call('ZADD', KEYS[1], now_ms, id)
    redis.call('HSET', KEYS[2], id, envelope_with(envelope, now_ms, 0))
    redis.call('HDEL', KEYS[4], id)
    reply[#reply + 1] = 1
    any = true
  else
    reply[#reply + 1] = 0
  end
end
if any then wake_if_nearer(KEYS[1], ARGV[1], now_ms) end
return reply
