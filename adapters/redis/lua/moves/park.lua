#!lua
-- new -> parked. Parks a batch once. A repeated token changes nothing and gets the reply of the first call.
-- A message whose origin was dealt with before is skipped, whatever call brings it.
-- Deliberately without allow-oom: at maxmemory only new messages are refused, and the source waits.
--
-- KEYS  1 due (zset id -> due ms)   2 messages (hash id -> envelope)   3 key index (hash)   4 token (string)
--       5 recent (list: digests and ids of recently parked messages)   6 counts (hash)   7 why (hash)
--       8 history (stream)   9 offsets (hash: which records of each log were dealt with), given only with origins
-- ARGV  1 token   2 wake channel   3 recent entry or ''   4 maximum number of messages in recent
--       5 ms to keep the history   6 its maximum (0: none)   7 number of messages n, then n times: id, due ms, envelope
--       then the number of keyed messages, then as many times: position (1..n), index field, mode
--         (replace | keep | reject: what to do when a message with this key is parked)
--       then the number of origins (0, or at least n), then as many times: log, offset; those of the messages first,
--         then those of messages that the caller rejects after this call
--       then the number of routes, then as many times: route, its number of messages
--       then, to the end, pairs: index field, ids (messages that are found by it and never replace each other)
-- Returns  three lists of positions: not parked because an older message is kept; not parked and to be rejected;
--          dealt with before
--- @include include/envelope
--- @include include/held
--- @include include/history
--- @include include/key_index
--- @include include/origins
--- @include include/pieces
--- @include include/recent
--- @include include/routes
--- @include include/wake
local DUE, MESSAGES, INDEX, TOKEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local RECENT, COUNTS, WHY, HISTORY, OFFSETS = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local TOKEN_MS = 3600000
local token, channel, entry, recent_max = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local answered = redis.call('GET', TOKEN)
if answered and string.sub(answered, 1, #token) == token then
  -- A write, so that a WAIT after this call also covers what the first call wrote on another connection.
  redis.call('PEXPIRE', TOKEN, TOKEN_MS)
  return cmsgpack.unpack(string.sub(answered, #token + 1))
end

local keep_ms, most, count = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local keyed_at = 8 + count * 3
local keyed = tonumber(ARGV[keyed_at])
local origins_at = keyed_at + 1 + keyed * 3
local origins = tonumber(ARGV[origins_at])
local routes_at = origins_at + 1 + origins * 2
local routes = tonumber(ARGV[routes_at])
local kept, rejected, before, skip, replaced = {}, {}, {}, {}, {}

-- All are counted first, then those that are not parked are counted out: a batch may replace one of its own.
for at = routes_at + 1, routes_at + routes * 2, 2 do
  route_add(COUNTS, 'parked', ARGV[at], tonumber(ARGV[at + 1]))
end

-- A record is new if it was new when the call began: one to be rejected may lie between two that are parked.
local logs, passed = {}, {}
for n = 1, origins do
  local log, offset = origin_log(OFFSETS, logs, ARGV[origins_at + n * 2 - 1]), tonumber(ARGV[origins_at + n * 2])
  if origin_is_new(log, offset) then
    origin_note(log, offset, n > count)
  elseif n <= count then
    before[#before + 1] = n
    skip[n] = true
    passed[ARGV[5 + n * 3]] = true
  end
end

-- Returns whether an older message with this key is parked and stays. Removes it if it is to be replaced.
local function older_stays(field, mode)
  local older = redis.call('HGET', INDEX, field) or ''
  local stays = false
  for at = 1, #older, 20 do
    local other = string.sub(older, at, at + 19)
    local due = redis.call('ZSCORE', DUE, other)
    if due then
      if mode == 'replace' then
        replaced[#replaced + 1] = {REPLACED, other, redis.call('HGET', MESSAGES, other) or '', ''}
        redis.call('ZREM', DUE, other)
        redis.call('HDEL', MESSAGES, other)
        redis.call('HDEL', WHY, other)
        index_remove(INDEX, field, other)
        redis.call('HINCRBY', COUNTS, 'replaced', 1)
        local route = string.match(field, '^[^%z]*')
        route_add(COUNTS, 'parked', route, -1)
        if tonumber(due) >= HELD_MS then route_add(COUNTS, 'held', route, -1) end
      else
        stays = true
      end
    end
  end
  return stays
end

-- Keyed messages are parked one by one and in order, because a batch may hold the same key twice.
for at = keyed_at + 1, origins_at - 1, 3 do
  local position, field, mode = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  if not skip[position] then
    skip[position] = true
    if not older_stays(field, mode) then
      redis.call('ZADD', DUE, ARGV[6 + position * 3], ARGV[5 + position * 3])
      redis.call('HSET', MESSAGES, ARGV[5 + position * 3], ARGV[7 + position * 3])
      index_add(INDEX, field, ARGV[5 + position * 3])
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
  local id, due = ARGV[5 + position * 3], tonumber(ARGV[6 + position * 3])
  if not skip[position] then
    scores[#scores + 1], scores[#scores + 2] = due, id
    envelopes[#envelopes + 1], envelopes[#envelopes + 2] = id, ARGV[7 + position * 3]
  end
  if not earliest or due < earliest then earliest = due end
end
in_pieces('ZADD', DUE, scores)
in_pieces('HSET', MESSAGES, envelopes)
for at = routes_at + 1 + routes * 2, #ARGV, 2 do
  local ids = #before == 0 and ARGV[at + 1] or ids_without(ARGV[at + 1], passed)
  if ids ~= '' then index_add(INDEX, ARGV[at], ids) end
end

history_note(HISTORY, replaced, keep_ms, most)
if entry ~= '' then recent_add(RECENT, entry, tonumber(recent_max)) end
redis.call('HINCRBY', COUNTS, 'parked', count - #kept - #rejected - #before)
for _, positions in ipairs({kept, rejected, before}) do
  for _, position in ipairs(positions) do
    route_add(COUNTS, 'parked', envelope_route(ARGV[7 + position * 3]), -1)
  end
end
if origins > 0 then origins_write(OFFSETS, logs) end
local reply = {kept, rejected, before}
redis.call('SET', TOKEN, token .. cmsgpack.pack(reply), 'PX', TOKEN_MS)
wake_if_nearer(DUE, channel, earliest)
return reply
