#!lua
-- new -> parked. Parks a batch, once: the same token again changes nothing and returns what the first call returned.
-- Deliberately without allow-oom: when memory is full this, and only this, is refused, and the source waits.
--
-- KEYS  1 due (zset id -> due ms)   2 messages (hash id -> envelope)   3 key index (hash)   4 token (string)
--       5 recent (list of digests and ids of what was parked lately)   6 counts (hash)   7 why (hash)
-- ARGV  1 token   2 wake channel   3 recent entry or ''   4 messages kept in recent, at most
--       5 number of messages n, then n times: id, due ms, envelope
--       then the number of keyed messages k, then k times: position (1..n), index field, mode
--         (replace | keep | reject: what to do when the same key is parked already)
--       then, to the end, pairs: index field, ids (messages that may be found by it and never replace each other)
-- Returns  two lists of positions: those not parked because an older one is kept, those not parked and to be rejected
--- @include include/key_index
--- @include include/pieces
--- @include include/wake
local TOKEN_MS = 3600000
local before = redis.call('GET', KEYS[4])
if before and string.sub(before, 1, #ARGV[1]) == ARGV[1] then
  -- A write, so that a WAIT after this call waits for what the first call wrote, perhaps on another connection.
  redis.call('PEXPIRE', KEYS[4], TOKEN_MS)
  return cmsgpack.unpack(string.sub(before, #ARGV[1] + 1))
end

local count = tonumber(ARGV[5])
local keyed_at = 6 + count * 3
local keyed = tonumber(ARGV[keyed_at])
local kept, rejected, skip = {}, {}, {}

-- Keyed messages go one by one and in order, for a batch may hold the same key twice.
for n = 0, keyed - 1 do
  local position, field, mode = tonumber(ARGV[keyed_at + 1 + n * 3]), ARGV[keyed_at + 2 + n * 3], ARGV[keyed_at + 3 + n * 3]
  local id = ARGV[3 + position * 3]
  local older = redis.call('HGET', KEYS[3], field) or ''
  local waiting = false
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
        waiting = true
      end
    end
  end
  skip[position] = true
  if not waiting then
    redis.call('ZADD', KEYS[1], ARGV[4 + position * 3], id)
    redis.call('HSET', KEYS[2], id, ARGV[5 + position * 3])
    index_add(KEYS[3], field, id)
  elseif mode == 'keep' then
    kept[#kept + 1] = position
  else
    rejected[#rejected + 1] = position
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
for at = keyed_at + 1 + keyed * 3, #ARGV, 2 do
  index_add(KEYS[3], ARGV[at], ARGV[at + 1])
end

-- The recent list is how a redelivered message finds the id of its first copy. Each entry opens with the running
-- number of messages before it, so that the list can be cut by messages without reading it.
if ARGV[3] ~= '' then
  local last = redis.call('LINDEX', KEYS[5], -1)
  local before_us = last and struct.unpack('>I8', last) + (#last - 8) / 28 or 0
  redis.call('RPUSH', KEYS[5], struct.pack('>I8', before_us) .. ARGV[3])
  local total = before_us + #ARGV[3] / 28
  while true do
    local first = redis.call('LINDEX', KEYS[5], 0)
    if not first or total - struct.unpack('>I8', first) - (#first - 8) / 28 < tonumber(ARGV[4]) then break end
    redis.call('LPOP', KEYS[5])
  end
end

redis.call('HINCRBY', KEYS[6], 'parked', count - #kept - #rejected)
local reply = {kept, rejected}
redis.call('SET', KEYS[4], ARGV[1] .. cmsgpack.pack(reply), 'PX', TOKEN_MS)
wake_if_nearer(KEYS[1], ARGV[2], earliest)
return reply
