#!lua flags=allow-oom
-- dead -> parked, due now and with 0 tries: someone has removed the cause.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 dead (zset)   4 why (hash)   5 counts (hash)
--       6 moved (stream)
-- ARGV  1 wake channel, then ids
-- Returns  one number for each id: 1 parked again, 0 not a dead letter
--- @include include/now
--- @include include/envelope
--- @include include/moved
--- @include include/routes
--- @include include/wake
local DUE, MESSAGES, DEAD, WHY, COUNTS, MOVED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local channel = ARGV[1]
local now_ms = math.floor(now_us() / 1000)
local reply, again = {}, {}
for at = 2, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', MESSAGES, id)
  if envelope and redis.call('ZREM', DEAD, id) == 1 then
    redis.call('ZADD', DUE, now_ms, id)
    redis.call('HSET', MESSAGES, id, envelope_retried(envelope, now_ms))
    redis.call('HDEL', WHY, id)
    local route = envelope_route(envelope)
    route_add(COUNTS, 'dead', route, -1)
    route_add(COUNTS, 'parked', route, 1)
    reply[#reply + 1] = 1
    again[#again + 1] = id
  else
    reply[#reply + 1] = 0
  end
end
moved(MOVED, 'retried', again, string.format('%d', now_ms))
if #again > 0 then wake_if_nearer(DUE, channel, now_ms) end
return reply
