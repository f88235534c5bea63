#!lua
-- new -> parked. Parks a batch once. A repeated token changes nothing and gets the reply of the first call.
-- A message whose origin was dealt with before is skipped, whatever call brings it.
-- Deliberately without allow-oom: at maxmemory only new messages are refused, and the source waits.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 key index (hash)   4 token (string)   5 recent (list)   6 counts (hash)
--       7 why (hash)   8 history (stream)   9 refused (zset)   10 offsets (hash)
-- ARGV  1 token   2 wake channel   3 recent entry or ''   4 maximum number of messages in recent
--       5 ms to keep the history   6 its maximum (0: none)   7 number of messages   8 of keyed ones
--       9 of origins (0, or at least the messages)   10 of routes   11 1: skip messages whose id the store has;
--       then for each message: id, due ms, envelope
--       for each keyed one: position (from 1), index field, mode if a message with it is parked (replace, keep, reject)
--       for each origin: log, offset; of the messages, then of those that the caller rejects after this call
--       for each route: its name, its number of messages
--       then, to the end, pairs: index field, ids (messages that are found by it and never replace each other)
-- Returns  three lists of positions: not parked because an older message is kept; not parked and to be rejected;
--          dealt with before
--- @include include/answered
--- @include include/origins
--- @include include/pieces
--- @include include/recent
--- @include include/replace
--- @include include/wake
local DUE, MESSAGES, INDEX, PARK, RECENT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local COUNTS, WHY, HISTORY, REFUSED, OFFSETS = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local SHARD = {due = DUE, messages = MESSAGES, index = INDEX, counts = COUNTS, why = WHY, refused = REFUSED}
local earlier = answered(PARK, ARGV[1])
if earlier then return earlier end
local count, origins = tonumber(ARGV[7]), tonumber(ARGV[9])
local keyed_at = 11 + count * 3
local origins_at = keyed_at + ARGV[8] * 3
local routes_at = origins_at + origins * 2
local found_at = routes_at + ARGV[10] * 2
local kept, rejected, before, skip, passed, replaced, logs = {}, {}, {}, {}, {}, {}, {}

-- Notes that a message is not parked, and counts it out. All are counted in first: a batch may replace one of its own.
local function leave_out(positions, position)
  positions[#positions + 1], skip[position] = position, true
  route_add(COUNTS, 'parked', envelope_route(ARGV[11 + position * 3]), -1)
end
for at = routes_at + 1, found_at, 2 do route_add(COUNTS, 'parked', ARGV[at], tonumber(ARGV[at + 1])) end

local function pass(position)
  leave_out(before, position)
  passed[ARGV[9 + position * 3]] = true
end
origins_mark(OFFSETS, logs, ARGV, origins_at, origins, count, pass)
for n = 1, ARGV[11] == '1' and count or 0 do
  if not skip[n] and redis.call('HEXISTS', MESSAGES, ARGV[9 + n * 3]) == 1 then pass(n) end
end
-- Keyed messages are parked one by one and in order, because a batch may hold the same key twice.
for at = keyed_at + 1, origins_at, 3 do
  local position, field, mode = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  if not skip[position] and older_stays(SHARD, field, mode, replaced) then
    leave_out(mode == 'keep' and kept or rejected, position)
    if mode == 'reject' and origins > 0 then
      origin_note(logs[ARGV[origins_at + position * 2 - 1]], tonumber(ARGV[origins_at + position * 2]), true)
    end
  elseif not skip[position] then
    skip[position] = true
    redis.call('ZADD', DUE, ARGV[10 + position * 3], ARGV[9 + position * 3])
    redis.call('HSET', MESSAGES, ARGV[9 + position * 3], ARGV[11 + position * 3])
    index_add(INDEX, field, ARGV[9 + position * 3])
  end
end
local scores, envelopes, earliest = {}, {}, math.huge
for position = 1, count do
  local id, due = ARGV[9 + position * 3], tonumber(ARGV[10 + position * 3])
  if not skip[position] then
    scores[#scores + 1], scores[#scores + 2] = due, id
    envelopes[#envelopes + 1], envelopes[#envelopes + 2] = id, ARGV[11 + position * 3]
  end
  if due < earliest then earliest = due end
end
in_pieces('ZADD', DUE, scores)
in_pieces('HSET', MESSAGES, envelopes)
index_add_all(INDEX, ARGV, found_at, passed)
history_note(HISTORY, replaced, tonumber(ARGV[5]), tonumber(ARGV[6]))
if ARGV[3] ~= '' then recent_add(RECENT, ARGV[3], tonumber(ARGV[4])) end
redis.call('HINCRBY', COUNTS, 'parked', count - #kept - #rejected - #before)
if origins > 0 then origins_write(OFFSETS, logs) end
wake_if_nearer(DUE, ARGV[2], earliest)
return answer(PARK, ARGV[1], {kept, rejected, before})
