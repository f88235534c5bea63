#!lua flags=allow-oom
-- Orders that a route is paused, drains or runs. A route that runs and was never paused has no field. An order that
-- repeats the last one's state keeps its moment. Works while memory is full, because that is when routes are paused.
--
-- KEYS  1 orders (hash route -> JSON: state, since_ms, let_go_ms (when the last pause ended, or 0), who, via, reason)
-- ARGV  1 route   2 state (running, paused, draining)   3 who   4 via   5 reason
-- Returns  1 if the state of the route changed, else 0
--- @include include/now
local ORDERS = KEYS[1]
local route, state = ARGV[1], ARGV[2]
local last = redis.call('HGET', ORDERS, route)
local whole, before = pcall(cjson.decode, last or '')
if not whole or type(before) ~= 'table' then before = {state = last and 'paused' or 'running'} end
local same, now_ms = before.state == state, math.floor(now_us() / 1000)
local since_ms = same and tonumber(before.since_ms) or now_ms
local ended = before.state == 'paused' and not same
local let_go_ms = ended and now_ms or tonumber(before.let_go_ms) or 0
if state == 'running' and let_go_ms == 0 then
  redis.call('HDEL', ORDERS, route)
elseif state ~= 'running' or not same then
  local moments = string.format('{"since_ms":%d,"let_go_ms":%d,', since_ms, let_go_ms)
  local words = cjson.encode({state = state, who = ARGV[3], via = ARGV[4], reason = ARGV[5]})
  redis.call('HSET', ORDERS, route, moments .. string.sub(words, 2))
end
return same and 0 or 1
