#!lua
-- new -> dead. Keeps messages that can never be parked (a bad header, a key already taken) with their reason, once.
--
-- KEYS  1 dead (zset id -> ms when it died)   2 messages (hash)   3 why (hash id -> reason)   4 token (string)   5 counts
--       6 offsets (hash: how far the records of each log were dealt with)
-- ARGV  1 token, then fives: id, envelope, reason, log ('' where the message has no origin), offset
-- Returns  the positions (1..) of messages that were dealt with before and left alone; again the same for a token that
--          was seen already
--- @include include/now
--- @include include/origins
local TOKEN_MS = 3600000
local seen = redis.call('GET', KEYS[4])
if seen and string.sub(seen, 1, #ARGV[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[4], TOKEN_MS)  -- a write, for the WAIT that may follow
  return cmsgpack.unpack(string.sub(seen, #ARGV[1] + 1))
end
local now_ms = math.floor(now_us() / 1000)
local added, before, known = 0, {}, {}
for at = 2, #ARGV, 5 do
  local name, new = ARGV[at + 3], true
  if name ~= '' then
    local log, offset = origin_log(KEYS[6], known, name), tonumber(ARGV[at + 4])
    new = origin_is_new(log, offset)
    origin_note(log, offset, false)
  end
  if new then
    redis.call('ZADD', KEYS[1], now_ms, ARGV[at])
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
    redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 2])
    added = added + 1
  else
    before[#before + 1] = (at + 3) / 5
  end
end
origins_write(KEYS[6], known)
redis.call('HINCRBY', KEYS[5], 'dead', added)
redis.call('HINCRBY', KEYS[5], 'rejected', added)
redis.call('SET', KEYS[4], ARGV[1] .. cmsgpack.pack(before), 'PX', TOKEN_MS)
return before
