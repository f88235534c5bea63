#!lua flags=allow-oom
-- parked -> parked, no longer held: its route runs again, or has room in its rate. Goes through the held messages of a
-- shard in their order.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 drain (string: instance)   4 counts (hash)
-- ARGV  1 instance   2 due ms and 3 id of the message to go on after (-1 and '': from the start)
--       4 maximum number of messages to look at
--       5 maximum bytes of envelopes to read (the first envelope is always read)
--       6 the only route to let go ('': all routes, each message at its own due moment)
--       7 the most messages of that route   8 microseconds between two of them, from now on
--       then, without that route, the routes whose messages stay held
-- Returns  {0} when another instance drains the shard; else {1, 1 at the end or 0, first ms moved to or -1,
--          number moved, last due ms looked at, last id looked at, then the running routes that have more held ones}
--- @include include/now
--- @include include/envelope
--- @include include/held
--- @include include/pieces
--- @include include/routes
local DUE, MESSAGES, DRAIN, COUNTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local instance, after_ms, after_id = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local limit, bytes_left = tonumber(ARGV[4]), tonumber(ARGV[5])
local only, most, gap_us = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local owner = redis.call('GET', DRAIN)
if owner and owner ~= instance then return {0} end
if only ~= '' and not routes_in(COUNTS, 'held')[only] then return {1, 1, -1, 0, after_ms, after_id} end
local stays = {}
for at = 9, #ARGV do stays[ARGV[at]] = true end

-- Returns whether messages of a route stay held.
local function keeps(route)
  if only ~= '' then return route ~= only end
  return stays[route]
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

local place = place_after(HELD_MS + after_ms, after_id)
local found = redis.call('ZRANGE', DUE, place, place + limit - 1, 'WITHSCORES')
local moved, numbers, reply = {}, {}, {1, #found < limit * 2 and 1 or 0, -1, 0, after_ms, after_id}
local moment_us, before_ms, before_id = now_us(), 0, ''
for at = 1, #found, 2 do
  local id, due = found[at], tonumber(found[at + 1]) - HELD_MS
  bytes_left = bytes_left - redis.call('HSTRLEN', MESSAGES, id)
  if (bytes_left < 0 and at > 1) or (only ~= '' and reply[4] == most) then
    reply[2] = 0
    break
  end
  local route = envelope_route(redis.call('HGET', MESSAGES, id) or '')
  if not keeps(route) then
    local to_ms = due
    if only ~= '' then
      -- Equal moments leave in the order of ids, so a smaller id after a larger one needs a later moment.
      to_ms = math.max(math.floor(moment_us / 1000), id < before_id and before_ms + 1 or before_ms)
      moment_us, before_ms, before_id = moment_us + gap_us, to_ms, id
    end
    moved[#moved + 1] = string.format('%d', to_ms)
    moved[#moved + 1] = id
    numbers[route] = (numbers[route] or 0) + 1
    reply[4] = reply[4] + 1
    if reply[3] < 0 then reply[3] = to_ms end
  end
  reply[5], reply[6] = due, id
end
in_pieces('ZADD', DUE, moved)
for route, number in pairs(numbers) do route_add(COUNTS, 'held', route, -number) end
if reply[2] == 1 or only ~= '' then return reply end
for route in pairs(routes_in(COUNTS, 'held')) do
  if not stays[route] then reply[#reply + 1] = route end
end
return reply
