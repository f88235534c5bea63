#!lua flags=allow-oom
-- parked -> gone, held -> gone, and dead -> gone: the message is no longer wanted. A claimed message is being published
-- and stays.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 dead (zset)   4 key index (hash)   5 why (hash)   6 counts (hash)
--       7 history (stream)   8 refused (zset)   9 moved (stream)
-- ARGV  1 whether dead letters are cancelled too (1 or 0)   2 ms to keep the history   3 its maximum (0: none)
--       4 whether a message with the same key replaces them (1 or 0)   5 reason, then ids
-- Returns  one word for each id: parked or dead (its state before it was cancelled), claimed (too late), none
--- @include include/key_index
--- @include include/refused
--- @include include/held
--- @include include/routes
--- @include include/history
--- @include include/moved
local DUE, MESSAGES, DEAD, INDEX = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local WHY, COUNTS, HISTORY, REFUSED, MOVED = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local dead_too, keep_ms, most = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
local state, reason = ARGV[4] == '1' and REPLACED or CANCELLED, ARGV[5]
local reply, cancelled, past, gone = {}, 0, {}, {}
for at = 6, #ARGV do
  local id = ARGV[at]
  local envelope = redis.call('HGET', MESSAGES, id)
  local was = 'none'
  if envelope then
    local due = redis.call('ZSCORE', DUE, id)
    if due then
      redis.call('ZREM', DUE, id)
      refused_remove(REFUSED, id, envelope)
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
    past[cancelled] = {state, id, envelope, reason}
    gone[cancelled] = id
  end
  reply[at - 5] = was
end
history_note(HISTORY, past, keep_ms, most)
moved(MOVED, state == REPLACED and 'replaced' or 'cancelled', gone, reason)
if cancelled > 0 then redis.call('HINCRBY', COUNTS, 'cancelled', cancelled) end
return reply
