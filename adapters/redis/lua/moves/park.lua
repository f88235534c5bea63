#!lua
-- new -> parked. Parks a batch once. A repeated token changes nothing and gets the reply of the first call.
-- A message whose origin was dealt with before is skipped, whatever call brings it.
-- Deliberately without allow-oom: at maxmemory only new messages are refused, and the source waits.
-- A small batch pays for calls of Redis, for each key and argument, and for each function that Lua makes. So the
-- counts and the token are read and written once, numbers come packed, and what is rare includes its functions itself.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 counts (hash)   4 recent (list)   5 offsets (hash)
--       6 parks (stream: ids of all that is parked or rejected, where the journal is written behind)
--       for a batch of a journal: 7 moved (stream)
--       and for a batch with a mark, with keyed messages or with such as are found by a field:
--       8 cold (string)   9 key index (hash)   10 why (hash)   11 history (stream)   12 refused (zset)
-- ARGV  1 token (8 bytes); Unix s, maximum number of messages in recent, number of messages, of keyed ones, of ranges
--       of origins, of routes, maximum of the history (0: none), in 4 bytes each; ms to keep the history, earliest due
--       ms, in 8 bytes each; in a byte: twice the number of logs that begin if they are missing (moved, parks), and 1
--       to skip messages whose id the store has, 8 if these count as parked; the mark that the shard must have, if any
--       2 caller   3 wake channel, or '' if the caller drains the shard   4 recent entry or ''
--       then for each message: id, due ms, envelope
--       for each keyed one: position (from 1), index field, mode if a message with it is parked (replace, keep, reject)
--       for each range: log, first offset, number; of the messages, then of those that the caller rejects after this
--       for each route: its name, its number of messages
--       then, to the end, pairs: index field, ids (messages that are found by it and never replace each other)
-- Returns  1 if all are parked; else three lists of positions: not parked because an older message is kept; not parked
--          and to be rejected; dealt with before; 0 if the shard has another mark, and nothing was done
--- @include include/pieces
--- @include include/recent
local DUE, MESSAGES, COUNTS, RECENT, OFFSETS, PARKS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MOVED, COLD, INDEX, WHY, HISTORY, REFUSED = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local recent_max, count, keyed, ranges, routes, most, keep_ms, earliest_ms, how, mark_at =
  struct.unpack('>I4I4I4I4I4I4I8I8B', ARGV[1], 13)
local keyed_at = 4 + count * 3
local origins_at = keyed_at + keyed * 3
local routes_at = origins_at + ranges * 3
local found_at = routes_at + routes * 2

local call, fields, added = string.sub(ARGV[1], 1, 12), {'\1call\1' .. ARGV[2], RECENT_TOTAL, 'parked'}, {}
for at = routes_at + 1, found_at, 2 do
  if #fields < PIECE / 4 then fields[#fields + 1] = '\0parked\0' .. ARGV[at] end
  added[ARGV[at]] = tonumber(ARGV[at + 1])
end
local before = redis.call('HMGET', COUNTS, unpack(fields))
if not before[1] or string.sub(before[1], 1, 8) == string.sub(call, 1, 8) then
  --- @include include/calls
  local earlier = call_answered(COUNTS, fields[1], before[1], call)
  if earlier then return earlier end
end
if mark_at <= #ARGV[1] and redis.call('GET', COLD) ~= string.sub(ARGV[1], mark_at) then return 0 end
if how > 1 then
  --- @include include/moved
  log_begin(MOVED)
  if how % 8 > 3 then log_begin(PARKS) end
end

local kept, rejected, passed, there, skip = {}, {}, {}, {}, {}
if ranges > 0 then
  --- @include include/origin_ranges
  passed = origins_take(OFFSETS, ARGV, origins_at, ranges, count)
  for _, position in ipairs(passed) do skip[position] = 'before' end
end
for n = 1, (how % 2 == 1 or how > 7) and count or 0 do
  if not skip[n] and redis.call('HEXISTS', MESSAGES, ARGV[2 + n * 3]) == 1 then
    skip[n] = 'before'
    table.insert(how > 7 and there or passed, n)
  end
end
if keyed > 0 then
  --- @include include/replace
  local shard = {due = DUE, messages = MESSAGES, index = INDEX, counts = COUNTS}
  shard.why, shard.refused, shard.moved = WHY, REFUSED, MOVED
  local replaced
  kept, rejected, replaced = park_keyed(shard, ARGV, keyed_at, origins_at, skip, added)
  history_note(HISTORY, replaced, keep_ms, most)
  if #rejected > 0 and ranges > 0 then
    --- @include include/origin_ranges
    origins_owe(OFFSETS, ARGV, origins_at, rejected)
  end
end
local scores, envelopes, length = {}, {}, 0
for position = 1, count do
  if not skip[position] then
    local at = 2 + position * 3
    scores[length + 1], scores[length + 2] = ARGV[at + 1], ARGV[at]
    envelopes[length + 1], envelopes[length + 2] = ARGV[at], ARGV[at + 2]
    length = length + 2
  end
end
if how > 2 or redis.call('EXISTS', PARKS) == 1 then
  --- @include include/moved
  moved(PARKS, 'parked', ids_in(ARGV, 5, count), '')
  if how > 2 and how % 2 == 1 then moved(MOVED, 'restored', ids_left(ARGV, 5, count, {kept, rejected, passed}), '') end
end
in_pieces('ZADD', DUE, scores)
in_pieces('HSET', MESSAGES, envelopes)
if #ARGV > found_at then
  --- @include include/key_index
  local gone = {}
  for n, why in pairs(skip) do gone[ARGV[2 + n * 3]] = why == 'before' or nil end
  for at = found_at + 1, #ARGV, 2 do
    local ids = next(gone) and ids_without(ARGV[at + 1], gone) or ARGV[at + 1]
    if ids ~= '' then index_add(INDEX, ARGV[at], ids) end
  end
end
if ARGV[3] ~= '' and count > 0 then
  --- @include include/wake
  wake_if_nearer(DUE, ARGV[3], earliest_ms)
end

local reply, answer, total = 1, call, (before[3] or 0) + count
if #kept + #rejected + #passed + #there > 0 then
  --- @include include/envelope
  reply = {kept, rejected, passed}
  answer = call .. cmsgpack.pack(reply)
  for _, positions in ipairs({kept, rejected, passed, there}) do
    for _, position in ipairs(positions) do
      local route = envelope_route(ARGV[4 + position * 3])
      added[route], total = (added[route] or 0) - 1, total - 1
    end
  end
end
local writes = {fields[1], answer, 'parked', string.format('%d', total)}
if ARGV[4] ~= '' then
  writes[5], writes[6] = RECENT_TOTAL, recent_add(RECENT, ARGV[4], recent_max, before[2])
end
for n = 4, #fields do
  local route = ARGV[routes_at + n * 2 - 7]
  local number = (before[n] or 0) + added[route]
  added[route] = nil
  if number > 0 then
    writes[#writes + 1], writes[#writes + 2] = fields[n], string.format('%d', number)
  elseif before[n] then
    redis.call('HDEL', COUNTS, fields[n])
  end
end
if next(added) then
  --- @include include/routes
  for route, number in pairs(added) do route_add(COUNTS, 'parked', route, number) end
end
redis.call('HSET', COUNTS, unpack(writes))
return reply
