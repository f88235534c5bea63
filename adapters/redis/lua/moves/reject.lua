#!lua
-- new -> dead. Keeps messages that can never be parked (bad header, key already taken), with their reason, once. One
-- whose id the store has, in any state, stays as it is.
--
-- KEYS  1 dead (zset id -> ms when it died)   2 messages (hash)   3 why (hash id -> reason)   4 token (string)
--       5 counts (hash)   6 offsets (hash: which records of each log were dealt with)
--       7 history (stream)   8 index (hash: key -> ids)   9 moved (stream)
--       10 parks (stream, as in park.lua)
-- ARGV  1 token   2 ms to keep the history   3 its maximum (0: none)   4 '1': they were dead letters before, then five
--       values for each message: id, envelope, reason, log ('' without an origin), offset
-- Returns  positions (from 1) of messages that were dealt with before and left alone; a repeated token gets the same
--- @include include/answered
--- @include include/envelope
--- @include include/now
--- @include include/history
--- @include include/key_index
--- @include include/moved
--- @include include/origins
--- @include include/routes
local DEAD, MESSAGES, WHY, REJECT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local COUNTS, OFFSETS, HISTORY, INDEX, MOVED, PARKS = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local token, keep_ms, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local earlier = answered(REJECT, token)
if earlier then return earlier end
local now_ms = math.floor(now_us() / 1000)
local added, before, known, past = 0, {}, {}, {}
for at = 5, #ARGV, 5 do
  local name, new = ARGV[at + 3], true
  if name ~= '' then
    local log, offset = origin_log(OFFSETS, known, name), tonumber(ARGV[at + 4])
    new = origin_is_new(log, offset)
    origin_note(log, offset, false)
  end
  if new and redis.call('HEXISTS', MESSAGES, ARGV[at]) == 0 then
    redis.call('ZADD', DEAD, now_ms, ARGV[at])
    redis.call('HSET', MESSAGES, ARGV[at], ARGV[at + 1])
    redis.call('HSET', WHY, ARGV[at], ARGV[at + 2])
    route_add(COUNTS, 'dead', envelope_route(ARGV[at + 1]), 1)
    local field = envelope_field(ARGV[at + 1])
    if field then index_add(INDEX, field, ARGV[at]) end
    added = added + 1
    past[added] = {DIED, ARGV[at], ARGV[at + 1], ARGV[at + 2]}
    moved(MOVED, 'dead', {ARGV[at]}, ARGV[at + 2])
    moved(PARKS, 'parked', {ARGV[at]}, '')
  else
    before[#before + 1] = at / 5
  end
end
origins_write(OFFSETS, known)
if ARGV[4] == '1' then
  redis.call('HINCRBY', COUNTS, 'restored', added)
else
  redis.call('HINCRBY', COUNTS, 'dead', added)
  redis.call('HINCRBY', COUNTS, 'rejected', added)
end
history_note(HISTORY, past, keep_ms, most)
return answer(REJECT, token, before)
