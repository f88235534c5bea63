#!lua flags=allow-oom
-- parked -> gone, and dead -> gone: nobody wants it any more. A claimed one is on its way and stays.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 dead (zset)   4 key index (hash)   5 why (hash)   6 counts (hash)
-- ARGV  1 whether dead letters may be cancelled too (1 or 0), then ids
-- Returns  one word an id: parked, dead (what it was, and is no more), claimed (too late), none
--- @include include/key_index
--- @include include/envelope
local reply, cancelled = {}, 0
for at = 2, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', KEYS[2], id)
  local was = 'none'
  if envelope then
    if redis.call('ZREM', KEYS[1], id) == 1 then
      was = 'parked'
    elseif redis.call('ZSCORE', KEYS[3], id) then
      was = 'dead'
    else
      was = 'claimed'
    end
  end
  if was == 'parked' or was == 'dead' and ARGV[1] == '1' then
    redis.call('ZREM', KEYS[3], id)
    redis.call('HDEL', KEYS[2], id)
    redis.call('HDEL', KEYS[5], id)
    local field = envelope_field(envelope)
    if field then index_remove(KEYS[4], field, id) end
    cancelled = cancelled + 1
  end
  reply[at - 1] = was
end
if cancelled > 0 then redis.call('HINCRBY', KEYS[6], 'cancelled', cancelled) end
return reply
