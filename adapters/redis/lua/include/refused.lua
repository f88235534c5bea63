-- Messages that a broker refused, or whose route is missing, until they are delivered, dead, cancelled, rescheduled or
-- held by an order: a zset of members with score 0, which Redis sorts by bytes. A member is route, NUL, due ms (8
-- bytes, big-endian), id. So a route's members stand together, the oldest first, and are counted without reading them.
--- @include include/envelope
local function refused_member(id, envelope)
  return envelope_route(envelope) .. '\0' .. struct.pack('>I8', envelope_due(envelope)) .. id
end

local function refused_add(refused, why, id, envelope, reason)
  redis.call('HSET', why, id, reason)
  redis.call('ZADD', refused, 0, refused_member(id, envelope))
end

-- Removes a message that may have been refused, and returns its envelope, which has the due moment with which it was.
local function refused_remove(refused, id, envelope)
  redis.call('ZREM', refused, refused_member(id, envelope))
  return envelope
end

-- Returns for each route: its name, its number of refused messages, the due ms of the oldest.
local function refused_routes(refused)
  local found, from = {}, '-'
  while true do
    local first = redis.call('ZRANGEBYLEX', refused, from, '+', 'LIMIT', 0, 1)[1]
    if not first then return found end
    local route = string.sub(first, 1, -30)
    found[#found + 1] = route
    found[#found + 1] = redis.call('ZLEXCOUNT', refused, '[' .. first, '(' .. route .. '\1')
    found[#found + 1] = struct.unpack('>I8', first, #route + 2)
    from = '[' .. route .. '\1'
  end
end
