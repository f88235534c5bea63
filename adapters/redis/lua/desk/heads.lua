#!lua flags=no-writes
-- Looks at the messages of a shard that are due next, to tell the routes apart, and at those that were refused.
--
-- KEYS  1 due (zset)   2 messages (hash)   3 refused (zset)
-- ARGV  1 maximum number of messages   2 maximum bytes of envelopes to read (the first envelope is always read)
-- Returns  {now us, score of the last message seen or -1 if that is all, overdue messages seen, a list with three
--          values for each route with refused messages: route, their number, due ms of the oldest; then three values
--          for each route seen: route, score of its first message, how many were seen that are overdue, without the
--          refused ones}
--- @include include/held
--- @include include/now
--- @include include/refused
local DUE, MESSAGES, REFUSED = KEYS[1], KEYS[2], KEYS[3]
local limit, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_us()
local now_ms = math.floor(now / 1000)
local end_ms = '(' .. string.format('%d', HELD_MS)
local found = redis.call('ZRANGEBYSCORE', DUE, '-inf', end_ms, 'WITHSCORES', 'LIMIT', 0, limit)
local reply, places = {now, #found < limit * 2 and -1 or tonumber(found[#found]), 0, refused_routes(REFUSED)}, {}
for at = 1, #found, 2 do
  local id, score = found[at], tonumber(found[at + 1])
  bytes_left = bytes_left - redis.call('HSTRLEN', MESSAGES, id)
  if bytes_left < 0 and at > 1 then
    reply[2] = tonumber(found[at - 1])
    break
  end
  local envelope = redis.call('HGET', MESSAGES, id) or ''
  local route = envelope_route(envelope)
  local place = places[route]
  if not place then
    place = #reply + 1
    places[route] = place
    reply[place], reply[place + 1], reply[place + 2] = route, score, 0
  end
  if score < now_ms then
    reply[3] = reply[3] + 1
    if #reply[4] == 0 or not redis.call('ZSCORE', REFUSED, refused_member(id, envelope)) then
      reply[place + 2] = reply[place + 2] + 1
    end
  end
end
return reply
