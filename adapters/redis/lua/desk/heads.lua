#!lua flags=no-writes
-- Looks at the messages of a shard that are due next, to tell the routes apart.
--
-- KEYS  1 due (zset)   2 messages (hash)
-- ARGV  1 maximum number of messages   2 maximum bytes of envelopes to read (the first envelope is always read)
-- Returns  {now us, score of the last message seen or -1 if that is all, then three values for each route: route, score
--          of its first message, how many were seen that are overdue}
--- @include include/envelope
--- @include include/held
--- @include include/now
local DUE, MESSAGES = KEYS[1], KEYS[2]
local limit, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_us()
local now_ms = math.floor(now / 1000)
local end_ms = '(' .. string.format('%d', HELD_MS)
local found = redis.call('ZRANGEBYSCORE', DUE, '-inf', end_ms, 'WITHSCORES', 'LIMIT', 0, limit)
local reply, places = {now, #found < limit * 2 and -1 or tonumber(found[#found])}, {}
for at = 1, #found, 2 do
  local id, score = found[at], tonumber(found[at + 1])
  bytes_left = bytes_left - redis.call('HSTRLEN', MESSAGES, id)
  if bytes_left < 0 and at > 1 then
    reply[2] = tonumber(found[at - 1])
    break
  end
  local route = envelope_route(redis.call('HGET', MESSAGES, id) or '')
  local place = places[route]
  if not place then
    place = #reply + 1
    places[route] = place
    reply[place], reply[place + 1], reply[place + 2] = route, score, 0
  end
  if score < now_ms then reply[place + 2] = reply[place + 2] + 1 end
end
return reply
