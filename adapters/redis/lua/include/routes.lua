-- How many messages each route has in a state (parked, which includes claimed; held; dead), in the hash of the totals.
-- A field is NUL, the state, NUL, the route, so it is never the name of a total. A count of 0 has no field. No count
-- falls below 0: a message that someone deletes by hand is never counted out. With the count of held messages goes the
-- moment of the oldest (include/held_since.lua).
local function route_add(counts, state, route, number)
  if number == 0 then return end
  local field = '\0' .. state .. '\0' .. route
  if redis.call('HINCRBY', counts, field, string.format('%d', number)) <= 0 then
    redis.call('HDEL', counts, field, '\0' .. state .. '_ms\0' .. route)
  end
end

-- Returns the routes that have messages in a state, as the keys of a table.
local function routes_in(counts, state)
  local head, routes = '\0' .. state .. '\0', {}
  for _, field in ipairs(redis.call('HKEYS', counts)) do
    if string.sub(field, 1, #head) == head then routes[string.sub(field, #head + 1)] = true end
  end
  return routes
end
