#!lua flags=allow-oom
-- Orders that a route is paused, drains or runs. A route that runs has no field. An order that repeats the last one's
-- state keeps its moment. Works while memory is full, because that is when routes are paused.
--
-- KEYS  1 orders (hash route -> JSON: state, since_ms, by, reason)
-- ARGV  1 route   2 state (running, paused, draining)   3 by   4 reason
-- Returns  1 if the state of the route changed, else 0
--- @include include/now
local ORDERS = KEYS[1]
local route, state, by, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if state == 'running' then return redis.call('HDEL', ORDERS, route) end
local last = redis.call('HGET', ORDERS, route)
local whole, before = pcall(cjson.decode, last or '')
local same = whole and type(before) == 'table' and before.state == state
local since_ms = same and tonumber(before.since_ms) or math.floor(now_us() / 1000)
local since = string.format('%d', since_ms)
local text = '{"since_ms":' .. since .. ',' .. string.sub(cjson.encode({state = state, by = by, reason = reason}), 2)
redis.call('HSET', ORDERS, route, text)
return same and 0 or 1
