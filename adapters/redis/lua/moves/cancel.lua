#!lua flags=allow-oom
-- parked -> gone, and dead -> gone: the message is no longer wanted. A claimed message is being published and stays.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 dead (zset)   4 key index (hash)   5 why (hash)   6 counts (hash)
-- ARGV  1 whether dead letters are cancelled too (1 or 0), then ids
-- Returns  one word for each id: parked or dead (its state before it was cancelled), claimed (too late), none
--- @include include/key_index
--- @include include/envelope
--- @include include/held
--- @include include/routes
local DUE, MESSAGES, DEAD, INDEX, WHY, COUNTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local dead_too = ARGV[1] == '1'
local reply, cancelled = {}, 0
for at = 2, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', MESSAGES, id)
  local was = 'none'
  if envelope then
    local due = redis.call('ZSCORE', DUE, id)
    if due then
      redis.call('ZREM', DUE, id)
      if tonumber(due) >= HELD_MS then route_add(COUNTS, 'held', envelope_route(envelope), -1) end
      was = 'parked'
    elseif redis.call('ZSCORE', DEAD, id) then
      was = 'dead'
    else
      was = 'claimed'
    end
  end
  if was == 'parked' or was == 'dead' and dead_too then
    redis.call('ZREM', DEAD, id)
    redis.call('HDEL', MESSAGES, id)
    redis.call('HDEL', WHY, id)
    local field = envelope_field(envelope)
    if field then index_remove(INDEX, field, id) end
    route_add(COUNTS, was, envelope_route(envelope), -1)
    cancelled = cancelled + 1
  end
  reply[at - 1] = was
end
if cancelled > 0 then redis.call('HINCRBY', COUNTS, 'cancelled', cancelled) end
return reply
