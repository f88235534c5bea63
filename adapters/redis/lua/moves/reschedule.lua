#!lua flags=allow-oom
-- parked -> parked at another due moment.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 dead (zset)
-- ARGV  1 wake channel   2 due ms (0: now, by the store's clock), then ids
-- Returns  one word an id: parked (done), dead, claimed (too late), none
--- @include include/now
--- @include include/envelope
--- @include include/wake
local due = tonumber(ARGV[2])
if due == 0 then due = math.floor(now_us() / 1000) end
local reply, any = {}, false
for at = 3, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', KEYS[2], id)
  if not envelope then
    reply[#reply + 1] = 'none'
  elseif redis.call('ZSCORE', KEYS[1], id) then
    redis.call('ZADD', KEYS[1], due, id)
    redis.call('HSET', KEYS[2], id, envelope_with(envelope, due, nil))
    reply[#reply + 1] = 'parked'
    any = true
  else
    reply[#reply + 1] = redis.call('ZSCORE', KEYS[3], id) and 'dead' or 'claimed'
  end
end
if any then wake_if_nearer(KEYS[1], ARGV[1], due) end
return reply
