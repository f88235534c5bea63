-- For each route with held messages, a moment (ms) before which none of them was due: among the counts, in the field
-- NUL, 'held_ms', NUL, route. A hold makes it earlier. A step through the held messages makes it later, if it has seen
-- all before.
local function held_since(counts, route)
  return tonumber(redis.call('HGET', counts, '\0held_ms\0' .. route))
end

local function set_held_since(counts, route, due)
  redis.call('HSET', counts, '\0held_ms\0' .. route, string.format('%d', due))
end

local function hold_since(counts, route, due)
  if due < (held_since(counts, route) or math.huge) then set_held_since(counts, route, due) end
end
