#!lua flags=allow-oom
-- held -> parked: its route was resumed, has room in its rate or is back. Goes through the held messages of a shard in
-- their order.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 drain (string: instance)   4 counts (hash)
-- ARGV  1 instance   2 due ms and 3 id of the message to go on after (-1 and '': from the start)
--       4 maximum number of messages to look at
--       5 maximum bytes of envelopes to read (the first envelope is always read)
--       6 microseconds between two messages that are due from now on
--       7 whether all messages of other routes may go, each at its own due moment (1 or 0)
--       then pairs: route, how many of its messages may go, from now on
-- Returns  {0} when another instance drains the shard; else {1, number moved, first ms moved to or -1, last due ms
--          looked at, last id looked at, 1 if there are no more or 0, then the routes that have held messages}
--- @include include/now
--- @include include/envelope
--- @include include/held
--- @include include/held_since
--- @include include/pieces
--- @include include/routes
local DUE, MESSAGES, DRAIN, COUNTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local instance, after_ms, after_id = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local limit, bytes_left, gap_us = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local owner = redis.call('GET', DRAIN)
if owner and owner ~= instance then return {0} end
-- How many messages of each route may go, and how many in all.
local others = ARGV[7] == '1' and math.huge or 0
local left, room = {}, others
for at = 8, #ARGV, 2 do
  left[ARGV[at]] = tonumber(ARGV[at + 1])
  room = room + left[ARGV[at]]
end

-- Returns the place in the due set behind a score and an id, whether that id is still there or not.
local function place_after(score, id)
  local text = string.format('%d', score)
  local low, high = redis.call('ZCOUNT', DUE, '-inf', '(' .. text), redis.call('ZCOUNT', DUE, '-inf', text)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', DUE, middle, middle)[1] <= id then low = middle + 1 else high = middle end
  end
  return low
end

-- `stays` has for each route the first message that stays.
local found, ended, moved, numbers, stays, first_ms, from_ms = {}, false, {}, {}, {}, -1, after_ms
if room > 0 then
  local place = place_after(HELD_MS + after_ms, after_id)
  found = redis.call('ZRANGE', DUE, place, place + limit - 1, 'WITHSCORES')
  ended = #found < limit * 2
end
local moment_us, before_ms, before_id = now_us(), 0, ''
for at = 1, #found, 2 do
  local id, due = found[at], tonumber(found[at + 1]) - HELD_MS
  bytes_left = bytes_left - redis.call('HSTRLEN', MESSAGES, id)
  if (bytes_left < 0 and at > 1) or room == 0 then
    ended = false
    break
  end
  local route = envelope_route(redis.call('HGET', MESSAGES, id) or '')
  local more = left[route] or others
  if more > 0 then
    local to_ms = due
    if left[route] then
      -- Equal moments leave in the order of ids, so a smaller id after a larger one needs a later moment.
      to_ms = math.max(due, math.floor(moment_us / 1000), id < before_id and before_ms + 1 or before_ms)
      moment_us, before_ms, before_id = moment_us + gap_us, to_ms, id
      left[route], room = more - 1, room - 1
    end
    moved[#moved + 1] = string.format('%d', to_ms)
    moved[#moved + 1] = id
    numbers[route] = (numbers[route] or 0) + 1
    if first_ms < 0 then first_ms = to_ms end
  else
    stays[route] = stays[route] or due
  end
  after_ms, after_id = due, id
end
in_pieces('ZADD', DUE, moved)
for route, number in pairs(numbers) do route_add(COUNTS, 'held', route, -number) end
local reply = {1, #moved / 2, first_ms, after_ms, after_id, ended and 1 or 0}
for route in pairs(routes_in(COUNTS, 'held')) do
  reply[#reply + 1] = route
  local since, left_ms = held_since(COUNTS, route) or 0, stays[route]
  if since > from_ms * 2 then
    set_held_since(COUNTS, route, left_ms and left_ms * 2 or math.max(since, after_ms * 2 + 1))
  end
end
return reply
