#!lua
-- new -> parked. Parks a batch once. A repeated token changes nothing and gets the reply of the first call.
-- A message whose origin was dealt with before is skipped, whatever call brings it.
-- Deliberately without allow-oom: at maxmemory only new messages are refused, and the source waits.
-- Each call of Redis costs as much as six messages. So the counts and the token are read once and written once; the
-- token is written last, with the counts.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 key index (hash)   4 recent (list)   5 counts (hash)   6 why (hash)
--       7 history (stream)   8 refused (zset)   9 offsets (hash)   10 moved (stream)
--       11 parks (stream: ids of all that is parked or rejected, where the journal is written behind)
--       12 cold (string)
-- ARGV  1 token (8 bytes) and Unix s (4 bytes)   2 instance   3 wake channel, or '' if the caller drains the shard
--       4 recent entry or ''   5 maximum number of messages in recent
--       6 ms to keep the history   7 its maximum (0: none)   8 number of messages   9 of keyed ones
--       10 of ranges of origins   11 of routes   12 earliest due ms
--       13 1 or 0: skip messages whose id the store has; behind it the mark that the shard must have, if any
--       then for each message: id, due ms, envelope
--       for each keyed one: position (from 1), index field, mode if a message with it is parked (replace, keep, reject)
--       for each range: log, first offset, number; of the messages, then of those that the caller rejects after this
--       for each route: its name, its number of messages
--       then, to the end, pairs: index field, ids (messages that are found by it and never replace each other)
-- Returns  three lists of positions: not parked because an older message is kept; not parked and to be rejected;
--          dealt with before; 0 if the shard has another mark, and nothing was done
--- @include include/calls
--- @include include/origins
--- @include include/pieces
--- @include include/recent
--- @include include/replace
--- @include include/wake
local DUE, MESSAGES, INDEX, RECENT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local COUNTS, WHY, HISTORY, REFUSED, OFFSETS = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local MOVED, PARKS, COLD = KEYS[10], KEYS[11], KEYS[12]
local SHARD = {due = DUE, messages = MESSAGES, index = INDEX, counts = COUNTS, why = WHY, refused = REFUSED}
SHARD.moved = MOVED
local count, ranges = tonumber(ARGV[8]), tonumber(ARGV[10])
local keyed_at = 13 + count * 3
local origins_at = keyed_at + ARGV[9] * 3
local routes_at = origins_at + ranges * 3
local found_at = routes_at + ARGV[11] * 2

local fields, added = {call_field(ARGV[2]), RECENT_TOTAL, 'parked'}, {}
for at = routes_at + 1, found_at, 2 do
  if #fields < PIECE / 4 then fields[#fields + 1] = '\0parked\0' .. ARGV[at] end
  added[ARGV[at]] = tonumber(ARGV[at + 1])
end
local before = redis.call('HMGET', COUNTS, unpack(fields))
local earlier = call_answered(COUNTS, fields[1], before[1], ARGV[1])
if earlier then return earlier end
if #ARGV[13] > 1 and redis.call('GET', COLD) ~= string.sub(ARGV[13], 2) then return 0 end

local kept, rejected, passed, skip, replaced, logs = {}, {}, {}, {}, {}, {}
local function leave_out(positions, position)
  positions[#positions + 1], skip[position] = position, true
  local route = envelope_route(ARGV[13 + position * 3])
  added[route] = (added[route] or 0) - 1
end
local ids_passed = {}
local function pass(position)
  leave_out(passed, position)
  ids_passed[ARGV[11 + position * 3]] = true
end
origins_mark(OFFSETS, logs, ARGV, origins_at, ranges, count, pass)
for n = 1, string.sub(ARGV[13], 1, 1) == '1' and count or 0 do
  if not skip[n] and redis.call('HEXISTS', MESSAGES, ARGV[11 + n * 3]) == 1 then pass(n) end
end
-- Keyed messages are parked one by one and in order, because a batch may hold the same key twice.
for at = keyed_at + 1, origins_at, 3 do
  local position, field, mode = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  if not skip[position] and older_stays(SHARD, field, mode, replaced, added) then
    leave_out(mode == 'keep' and kept or rejected, position)
    if mode == 'reject' and ranges > 0 then
      local log, offset = origin_at(ARGV, origins_at, position)
      origin_note(logs[log], offset, true)
    end
  elseif not skip[position] then
    skip[position] = true
    redis.call('ZADD', DUE, ARGV[12 + position * 3], ARGV[11 + position * 3])
    redis.call('HSET', MESSAGES, ARGV[11 + position * 3], ARGV[13 + position * 3])
    index_add(INDEX, field, ARGV[11 + position * 3])
  end
end
local scores, envelopes, length = {}, {}, 0
for position = 1, count do
  if not skip[position] then
    local at = 11 + position * 3
    scores[length + 1], scores[length + 2] = ARGV[at + 1], ARGV[at]
    envelopes[length + 1], envelopes[length + 2] = ARGV[at], ARGV[at + 2]
    length = length + 2
  end
end
if redis.call('EXISTS', PARKS) == 1 then moved(PARKS, 'parked', ids_in(ARGV, 14, count), '') end
in_pieces('ZADD', DUE, scores)
in_pieces('HSET', MESSAGES, envelopes)
index_add_all(INDEX, ARGV, found_at, ids_passed)
history_note(HISTORY, replaced, tonumber(ARGV[6]), tonumber(ARGV[7]))
if ranges > 0 then origins_write(OFFSETS, logs) end
if ARGV[3] ~= '' and count > 0 then wake_if_nearer(DUE, ARGV[3], tonumber(ARGV[12])) end

local reply = {kept, rejected, passed}
local total = (before[3] or 0) + count - #kept - #rejected - #passed
local writes, empty = {'parked', string.format('%d', total)}, {}
if ARGV[4] ~= '' then
  writes[3], writes[4] = RECENT_TOTAL, recent_add(RECENT, ARGV[4], tonumber(ARGV[5]), before[2])
end
for n = 4, #fields do
  local route = ARGV[routes_at + n * 2 - 7]
  local number = (before[n] or 0) + added[route]
  added[route] = nil
  if number > 0 then
    writes[#writes + 1], writes[#writes + 2] = fields[n], string.format('%d', number)
  else
    empty[#empty + 1] = fields[n]
  end
end
in_pieces('HDEL', COUNTS, empty)
for route, number in pairs(added) do route_add(COUNTS, 'parked', route, number) end
redis.call('HSET', COUNTS, fields[1], call_value(ARGV[1], reply), unpack(writes))
return reply
