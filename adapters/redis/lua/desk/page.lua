#!lua flags=no-writes
-- Reads one page of a shard's due, claimed or dead set, in the order of its scores. For people: no bodies.
--
-- KEYS  1 the set   2 messages (hash)   3 why (hash)
-- ARGV  1 score to start from   2 score to end before ('+inf': none)   3 places to skip   4 places to read, at most
--       5 bytes of each payload to show   6 bytes of envelopes to touch, at most (one is always read)
-- Returns  {now us, next place to skip to or -1 at the end, then fives: member, score, envelope's size,
--          its head, last reason}; a member without a message is passed over
--- @include include/now
--- @include include/head
local ended = tonumber(ARGV[2]) or math.huge
local before = ARGV[1] == '-inf' and 0 or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
local skip, count, show, bytes_left = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local found = redis.call('ZRANGE', KEYS[1], before + skip, before + skip + count - 1, 'WITHSCORES')
local reply = {now_us(), -1}
for at = 1, #found, 2 do
  if tonumber(found[at + 1]) >= ended then return reply end
  local id = string.sub(found[at], 1, 20)
  local size = redis.call('HSTRLEN', KEYS[2], id)
  if size > 0 or redis.call('HEXISTS', KEYS[2], id) == 1 then
    if #reply > 2 and size > bytes_left then
      reply[2] = skip + (at - 1) / 2
      return reply
    end
    bytes_left = bytes_left - size
    reply[#reply + 1] = found[at]
    reply[#reply + 1] = found[at + 1]
    reply[#reply + 1] = size
    reply[#reply + 1] = envelope_head(redis.call('HGET', KEYS[2], id), show)
    reply[#reply + 1] = redis.call('HGET', KEYS[3], id) or ''
  end
end
if #found == count * 2 then reply[2] = skip + count end
return reply
