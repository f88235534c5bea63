-- For each route with held messages, a moment before which none of them was due: among the counts, in the field NUL,
-- 'held_ms', NUL, route. In half milliseconds: an odd number says that none of those seen at its millisecond is left,
-- though others may be. A hold makes it earlier. A step through the held messages makes it later, if the steps before
-- left none.
local function held_since(counts, route)
  return tonumber(redis.call('HGET', counts, '\0held_ms\0' .. route))
end

local function set_held_since(counts, route, half_ms)
  redis.call('HSET', counts, '\0held_ms\0' .. route, string.format('%d', half_ms))
end

local function hold_since(counts, route, due)
  if due * 2 < (held_since(counts, route) or math.huge) then set_held_since(counts, route, due * 2) end
end
