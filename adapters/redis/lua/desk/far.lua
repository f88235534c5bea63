#!lua flags=no-writes
-- Looks for messages that may go to the journal: due from a moment on, never tried and never loaded. The others stay.
--
-- KEYS  1 due (zset)   2 messages (hash)
-- ARGV  1 from ms   2 how many to skip   3 how many to look at   4 bytes of envelopes after which to stop
-- Returns  {id, due ms (-1: it stays), ...}
--- @include include/envelope
--- @include include/held
local DUE, MESSAGES = KEYS[1], KEYS[2]
local found = redis.call(
  'ZRANGEBYSCORE', DUE, ARGV[1], '(' .. string.format('%d', HELD_MS), 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3]
)
local reply, bytes = {}, 0
for at = 1, #found, 2 do
  local envelope = redis.call('HGET', MESSAGES, found[at]) or ''
  local due_ms = tonumber(found[at + 1])
  reply[at], reply[at + 1] = found[at], envelope_untouched(envelope, due_ms) and due_ms or -1
  bytes = bytes + #envelope
  if bytes > tonumber(ARGV[4]) then break end
end
return reply
