#!lua
-- new -> parked. Parks a batch, once: the same token again changes nothing and returns what the first call returned,
-- and a message whose origin was dealt with before is passed over, whichever call brings it.
-- Deliberately without allow-oom: when memory is full this, and only this, is refused, and the source waits.
--
-- KEYS  1 due (zset id -> due ms)   2 messages (hash id -> envelope)   3 key index (hash)   4 token (string)
--       5 recent (list of digests and ids of what was parked lately)   6 counts (hash)   7 why (hash)
--       8 offsets (hash: how far the records of each log were dealt with), given only where there are origins
-- ARGV  1 token   2 wake channel   3 recent entry or ''   4 messages kept in recent, at most
--       5 number of messages n, then n times: id, due ms, envelope
--       then the number of keyed messages k, then k times: position (1..n), index field, mode
--         (replace | keep | reject: what to do when the same key is parked already)
--       then the number of origins (0, or n and more), then so many times: log, offset; first those of the messages,
--         then those of messages that the caller rejects after this call
--       then, to the end, pairs: index field, ids (messages that may be found by it and never replace each other)
-- Returns  three lists of positions: those not parked because an older one is kept, those not parked and to be rejected,
--          those dealt with before
--- @include include/key_index
--- @include include/origins
--- @include include/pieces
--- @include include/recent
--- @include include/wake
local TOKEN_MS = 3600000
local answered = redis.call('GET', KEYS[4])
if answered and string.sub(answered, 1, #ARGV[1]) == ARGV[1] then
  -- A write, so that a WAIT after this call waits for what the first call wrote, perhaps on another connection.
  redis.call('PEXPIRE', KEYS[4], TOKEN_MS)
  return cmsgpack.unpack(string.sub(answered, #ARGV[1] + 1))
end

local count = tonumber(ARGV[5])
local keyed_at = 6 + count * 3
local keyed = tonumber(ARGV[keyed_at])
local origins_at = keyed_at + 1 + keyed * 3
local origins = tonumber(ARGV[origins_at])
local kept, rejected, before, skip = {}, {}, {}, {}

-- New is what was new when the call began: a message that is to be rejected may lie between two that are parked.
local logs, passed = {}, {}
for n = 1, origins do
  local log, offset = origin_log(KEYS[8], logs, ARGV[origins_at + n * 2 - 1]), tonumber(ARGV[origins_at + n * 2])
  if origin_is_new(log, offset) then
    origin_note(log, offset, n > count)
  elseif n <= count then
    before[#before + 1] = n
    skip[n] = true
    passed[ARGV[3 + n * 3]] = true
  end
end

-- Whether an older message with this key waits and stays; one that is to be replaced goes.
local function older_stays(field, mode)
  local older = redis.call('HGET', KEYS[3], field) or ''
  local stays = false
  for at = 1, #older, 20 do
    local other = string.sub(older, at, at + 19)
    if redis.call('ZSCORE', KEYS[1], other) then
      if mode == 'replace' then
        redis.call('ZREM', KEYS[1], other)
        redis.call('HDEL', KEYS[2], other)
        redis.call('HDEL', KEYS[7], other)
        index_remove(KEYS[3], field, other)
        redis.call('HINCRBY', KEYS[6], 'replaced', 1)
      else
        stays = true
      end
    end
  end
  return stays
end

-- Keyed messages go one by one and in order, for a batch may hold the same key twice.
for at = keyed_at + 1, origins_at - 1, 3 do
  local position, field, mode = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  if not skip[position] then
    skip[position] = true
    if not older_stays(field, mode) then
      redis.call('ZADD', KEYS[1], ARGV[4 + position * 3], ARGV[3 + position * 3])
      redis.call('HSET', KEYS[2], ARGV[3 + position * 3], ARGV[5 + position * 3])
      index_add(KEYS[3], field, ARGV[3 + position * 3])
    elseif mode == 'keep' then
      kept[#kept + 1] = position
    else
      rejected[#rejected + 1] = position
      if origins > 0 then
        origin_note(logs[ARGV[origins_at + position * 2 - 1]], tonumber(ARGV[origins_at + position * 2]), true)
      end
    end
  end
end

local scores, envelopes, earliest = {}, {}, nil
for position = 1, count do
  local id, due = ARGV[3 + position * 3], ARGV[4 + position * 3]
  if not skip[position] then
    scores[#scores + 1] = due
    scores[#scores + 1] = id
    envelopes[#envelopes + 1] = id
    envelopes[#envelopes + 1] = ARGV[5 + position * 3]
  end
  due = tonumber(due)
  if not earliest or due < earliest then earliest = due end
end
in_pieces('ZADD', KEYS[1], scores)
in_pieces('HSET', KEYS[2], envelopes)
for at = origins_at + 1 + origins * 2, #ARGV, 2 do
  local ids = #before == 0 and ARGV[at + 1] or ids_without(ARGV[at + 1], passed)
  if ids ~= '' then index_add(KEYS[3], ARGV[at], ids) end
end

if ARGV[3] ~= '' then recent_add(KEYS[5], ARGV[3], tonumber(ARGV[4])) end
redis.call('HINCRBY', KEYS[6], 'parked', count - #kept - #rejected - #before)
if origins > 0 then origins_write(KEYS[8], logs) end
local reply = {kept, rejected, before}
redis.call('SET', KEYS[4], ARGV[1] .. cmsgpack.pack(reply), 'PX', TOKEN_MS)
wake_if_nearer(KEYS[1], ARGV[2], earliest)
return reply
